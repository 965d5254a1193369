/* SPDX-License-Identifier: MIT */
/*
 * memory.pml - what is below the kernels of lamport.pml: threads, kernels on a stream, and memory that is slow
 *
 * lamport.pml sets LOCS (words of memory, or halves of them), ON_LANDING, and WITH_EPOCH, which is what a kernel writes
 * beside its epoch, and includes this. N ranks of BLOCKS blocks of THREADS threads make calls without end, or CALLS of
 * them. Kernels are numbered from 1 on, modulo CYCLE, which tells all apart that ranks can be at together (ARE_NEAR),
 * and all slots. A kernel of a rank is one of KERNELS places in turn, its q; two are there at most.
 *
 * A store is posted, and gets into memory at some later time: any store before any other, unless the end of the kernel
 * orders them. So a missing wait shows. A word holds the number of the kernel that its content is of, plus 1; 0 is an
 * empty word. README.md says which line stands for what in the source.
 */
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef THREADS
#define THREADS 1
#endif
#define KERNELS 2
#ifdef CALLS
#define CYCLE 8
#else
#define CYCLE 4
#endif
#define LANES (BLOCKS * THREADS) /* threads of a rank's kernel */
#define BEFORE(k) (((k) + CYCLE - 1) % CYCLE)
#define AFTER(k) (((k) + 1) % CYCLE)

#define CELLS ((LOCS + 3) / 4 * 4) /* they land in fours */
byte mem[CELLS];
byte sent[CELLS];   /* a store on its way; 0: none */
byte sender[CELLS]; /* the kernel that posted it */
bool wiping[CELLS]; /* the owner empties the word; on its way */
byte wiper[CELLS];
byte epoch[N * BLOCKS]; /* the epoch words of a rank, one for each block */
byte complete[N];       /* the newest kernel that has ended, and all before */

/* Of a kernel, at q = rank * KERNELS + its place */
byte out[N * KERNELS];   /* stores that are on their way */
byte ended[N * KERNELS]; /* threads that have ended */
#if THREADS > 1
byte arrived[N * KERNELS * BLOCKS]; /* at the barrier of a block */
#endif

byte kind[CYCLE]; /* of a kernel, the same on all ranks; chosen by the first that must know; 0: not yet */
byte shape[CYCLE]; /* its blocks and places, as kind */
byte made[CYCLE]; /* ranks that have completed it */

/* The end of a kernel: all of its threads have ended, and all that it wrote is there. Part of a d_step. */
#if THREADS > 1
#if BLOCKS > 1
#define CLEAR_BARRIERS(q) arrived[2 * (q)] = 0; arrived[2 * (q) + 1] = 0;
#else
#define CLEAR_BARRIERS(q) arrived[q] = 0;
#endif
#else
#define CLEAR_BARRIERS(q)
#endif
#define RANK_OF(q) ((q) / KERNELS)
#define DONE(q) complete[RANK_OF(q)]
/* A rank is one kernel ahead of another at most: so a number modulo CYCLE is of one kernel only. */
#define IS_NEAR(q, r_) (DONE(q) != AFTER(AFTER(complete[r_])))
#if N > 2
#define ARE_NEAR(q) (IS_NEAR(q, 0) && IS_NEAR(q, 1) && IS_NEAR(q, 2))
#else
#define ARE_NEAR(q) (IS_NEAR(q, 0) && IS_NEAR(q, 1))
#endif
#define SETTLE(q)                                                                                                      \
    if                                                                                                                 \
    :: ended[q] == LANES && out[q] == 0 ->                                                                             \
        DONE(q) = AFTER(DONE(q));                                                                                      \
        assert(ARE_NEAR(q));                                                                                           \
        ended[q] = 0;                                                                                                  \
        CLEAR_BARRIERS(q)                                                                                              \
        made[DONE(q)]++;                                                                                               \
        if                                                                                                             \
        :: made[DONE(q)] == N -> kind[DONE(q)] = 0; shape[DONE(q)] = 0; made[DONE(q)] = 0                              \
        :: else                                                                                                        \
        fi                                                                                                             \
    :: else                                                                                                            \
    fi

/*
 * SLOW_WORD: only the stores to one word of rank 0 are slow, any one; all others land at once. Nothing is missed so
 * (README.md, "One slow word"), and there are far fewer states.
 */
#ifdef SLOW_WORD
byte slow;
#define IS_SLOW(at) ((at) / HALVES == slow)
#else
#define IS_SLOW(at) true
#endif

/* Two stores to one word must not be under way together: nothing says which one stays. */
inline post(at, value)
{
    if
    :: IS_SLOW(at) ->
        assert(sent[at] == 0);
        sent[at] = value;
        sender[at] = q;
        out[q]++
    :: else ->
        ON_LANDING(at);
        mem[at] = value
    fi
}

inline wipe(at)
{
    assert(!wiping[at]);
    if
    :: IS_SLOW(at) ->
        wiping[at] = true;
#ifndef NO_CLEAR_FLUSH
        wiper[at] = q;
        out[q]++
#endif
    :: else -> mem[at] = 0
    fi
}

#define LANDED(who) out[who]--; SETTLE(who); who = 0
#ifdef NO_CLEAR_FLUSH /* the end of a kernel does not wait for what it empties */
#define MAY_CLEAR(at) wiping[at]
#define CLEAR_LANDED(at)
#else
/* As late as can be, which misses nothing (README.md, "Memory"), and makes far fewer states. */
#define MAY_CLEAR(at) (wiping[at] && ended[wiper[at]] == LANES)
#define CLEAR_LANDED(at) ; LANDED(wiper[at])
#endif
#define LAND(at)                                                                                                       \
    :: d_step { sent[at] != 0 -> ON_LANDING(at); mem[at] = sent[at]; sent[at] = 0; LANDED(sender[at]) }                \
    :: d_step { MAY_CLEAR(at) -> mem[at] = 0; wiping[at] = false CLEAR_LANDED(at) }
#define LAND4(at) LAND(at) LAND(at + 1) LAND(at + 2) LAND(at + 3)

active proctype Memory()
{
end:
    do
#ifdef SLOW_WORD
    LAND(slow * HALVES)
#if HALVES > 1
    LAND(slow * HALVES + 1)
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

/* oh_pdl_wait: the kernel before has ended, and what it wrote is there. */
#ifdef NO_GRID_WAIT
#define MAY_BEGIN true
#else
#define MAY_BEGIN (complete[r] == BEFORE(n))
#endif

/* oh_epoch_finish */
inline epoch_finish()
{
#if THREADS > 1 && !defined(NO_FINISH_BARRIER)
    arrived[q * BLOCKS + b]++;
    (arrived[q * BLOCKS + b] == THREADS);
#endif
    d_step {
#ifdef OWN_EPOCH_WORD
        epoch[r * BLOCKS + b] = e;
        WITH_EPOCH(b);
#else
        i = b + t * grid;
        do
        :: i < BLOCKS -> epoch[r * BLOCKS + i] = e; WITH_EPOCH(i); i = i + THREADS * grid
        :: else -> break
        od;
        i = 0;
#endif
        end_lane()
    }
}

inline end_lane()
{
    e = 0; to = 0; last = 0;
    n = (n + KERNELS) % CYCLE;
    ended[q]++;
    SETTLE(q)
}
