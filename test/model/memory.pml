/* SPDX-License-Identifier: MIT */
/*
 * memory.pml - what the models of the kernels share: threads, kernels on a stream, and memory that is slow
 *
 * A model sets LOCS (words of memory) and includes this. N ranks of BLOCKS blocks of THREADS threads make CALLS calls.
 * A store is posted, and gets into memory at some later time: any store before any other, unless a fence or the end of
 * the kernel orders them. So a missing one of these shows. A word holds the number of the round that its
 * content is of; 0 is an empty word. README.md says which line stands for what in the source.
 */
#ifndef N
#define N 2
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef THREADS
#define THREADS 1
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef WORD
#define WORD 1 /* parts of a word, that land one by one */
#endif
#define LANES (BLOCKS * THREADS) /* threads of a rank */
#define LANE(r, b, t) (((r) * BLOCKS + (b)) * THREADS + (t))

#define CELLS ((LOCS + 3) / 4 * 4) /* they land in fours */
byte mem[CELLS];
byte sent[CELLS];   /* a store on its way; 0: none */
byte sender[CELLS]; /* the thread that posted it */
bool wiping[CELLS]; /* the owner empties the word; on its way */
byte wiper[CELLS];
byte out[N * LANES];    /* stores of a thread that are on their way */
byte epoch[N * BLOCKS]; /* the epoch words of a rank, one for each block */
byte ended[N];          /* threads of a rank that have ended, in all kernels so far */
#if THREADS > 1
byte arrived[N * BLOCKS]; /* at the block's barriers, in all */
#endif
byte grid[CALLS]; /* blocks of a call: the same on all ranks; chosen by the model's init */
byte made;        /* threads that have made all calls */

#ifndef ON_LANDING
#define ON_LANDING(at) skip
#endif

/*
 * SLOW_WORD: only the stores to one word of rank 0 are slow, any one; all others land at once. Nothing is missed so
 * (README.md, "One slow word"), and there are far fewer states.
 */
#ifdef SLOW_WORD
byte slow;
inline post(at, value, lane)
{
    if
    :: (at) / WORD == slow ->
        assert(sent[at] == 0);
        sent[at] = value;
        sender[at] = lane;
        out[lane]++
    :: else ->
        ON_LANDING(at);
        mem[at] = value
    fi
}
#elif defined(FAST_STORES) /* fewer states, to see more threads: only what an owner empties is slow */
inline post(at, value, lane)
{
    ON_LANDING(at);
    mem[at] = value
}
#else
/* Two stores to one word must not be under way together: nothing says which one stays. */
inline post(at, value, lane)
{
    assert(sent[at] == 0);
    sent[at] = value;
    sender[at] = lane;
    out[lane]++
}
#endif

#ifdef SLOW_WORD
#define IS_WIPED_SLOWLY(at) ((at) / WORD == slow)
#else
#define IS_WIPED_SLOWLY(at) true
#endif
inline wipe(at, lane)
{
    assert(!wiping[at]);
    if
    :: IS_WIPED_SLOWLY(at) ->
        wiping[at] = true;
        wiper[at] = lane;
        out[lane]++
    :: else -> mem[at] = 0
    fi
}

#define LAND(at)                                                                                                       \
    :: d_step { sent[at] != 0 -> ON_LANDING(at); mem[at] = sent[at]; sent[at] = 0; out[sender[at]]--; sender[at] = 0 } \
    :: d_step { wiping[at] -> mem[at] = 0; wiping[at] = false; out[wiper[at]]--; wiper[at] = 0 }
#define LAND4(at) LAND(at) LAND(at + 1) LAND(at + 2) LAND(at + 3)

active proctype Memory()
{
end:
    do
#ifdef SLOW_WORD
    LAND(slow * WORD)
#if WORD > 1
    LAND(slow * WORD + 1)
#endif
#else
    LAND4(0)
#if LOCS > 4
    LAND4(4)
#endif
#if LOCS > 8
    LAND4(8)
#endif
#if LOCS > 12
    LAND4(12)
#endif
#if LOCS > 16
    LAND4(16)
#endif
#if LOCS > 20
    LAND4(20)
#endif
#if LOCS > 24
    LAND4(24)
#endif
#if LOCS > 28
    LAND4(28)
#endif
#if LOCS > 32
    LAND4(32)
#endif
#if LOCS > 36
    LAND4(36)
#endif
#if LOCS > 40
#error "more words than Memory has lines"
#endif
#endif
    od
}

/* --- kernels on a stream ---------------------------------------------------------------------------------------- */

#if LANES == 1
#define AT_REST(r) (out[r] == 0)
#elif LANES == 2
#define AT_REST(r) (out[2 * (r)] == 0 && out[2 * (r) + 1] == 0)
#else
#error "more threads than AT_REST has terms"
#endif

/* oh_grid_wait: the kernel before has ended, and what it wrote is there. */
#ifdef NO_GRID_WAIT
#define grid_wait(r, c) skip
#else
#define grid_wait(r, c) (ended[r] >= LANES * (c) && AT_REST(r))
#endif

#define fence(lane) (out[lane] == 0)

#if THREADS > 1
inline block_sync(r, b)
{
    arrived[(r) * BLOCKS + (b)]++;
    passed++;
    (arrived[(r) * BLOCKS + (b)] >= THREADS * passed)
}
#else
#define block_sync(r, b) skip
#endif

/* oh_epoch_finish */
inline epoch_finish(r, b, t, g, e)
{
#ifndef NO_FINISH_BARRIER
    block_sync(r, b);
#endif
    d_step {
#ifdef OWN_EPOCH_WORD
        epoch[(r) * BLOCKS + (b)] = e;
#else
        k = (b) + (t) * (g);
        do
        :: k < BLOCKS -> epoch[(r) * BLOCKS + k] = e; k = k + THREADS * (g)
        :: else -> break
        od;
        k = 0;
#endif
        ended[r]++
    }
}

/* Between kernels all words of a rank are equal; looked at when all is over. */
inline all_made()
{
    d_step {
        made++;
        if
        :: made == N * LANES ->
            k = 0;
            do
            :: k < N * BLOCKS -> assert(epoch[k] == epoch[0]); k++
            :: else -> break
            od
        :: else
        fi
    }
}

inline run_all()
{
    c = 0;
    do
    :: c < N * LANES ->
        x = c / LANES;
        y = c % LANES;
        run Lane(x, y / THREADS, y % THREADS);
        c++
    :: else -> break
    od;
    c = 0; x = 0; y = 0
}
