/* SPDX-License-Identifier: MIT */
/*
 * push.pml - twoshot_push: plain words ordered by one flag for each block and peer, two flags a round, one pair of areas
 *
 * A word and a flag hold the number of their round. A thread has one place, the same in all rounds of a call.
 * Mutations: NO_GRID_WAIT, OWN_EPOCH_WORD, NO_FINISH_BARRIER (memory.pml), NO_RELEASE, NO_ACQUIRE, NO_BARRIER,
 * NO_ANY_BARRIER, NO_SECOND_FLAG, LOST_FLAG, ONE_EPOCH_A_CALL, BLOCKS_MOVE.
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
#define PLACES (BLOCKS * THREADS)
/* Of each owner: scatter [source][place], gather [source][place], flags [phase][block][source]. */
#define ROW (N * PLACES)
#define OWN (2 * ROW + 2 * BLOCKS * N)
#define LOCS (N * OWN)
#define WORD(owner, area, source, place) ((owner) * OWN + (area) * ROW + (source) * PLACES + (place))
#define FLAG(owner, phase, block, source) ((owner) * OWN + 2 * ROW + ((phase) * BLOCKS + (block)) * N + (source))

/*
 * oh_flag_store is a release: it lands when all that its block wrote before it has. What is of a later round, or, for a
 * flag of scatter, of the same round's gather, was written after it.
 */
#define IS_FLAG(at) ((at) % OWN >= 2 * ROW)
#define PHASE(at) (((at) % OWN - 2 * ROW) / (BLOCKS * N))
#define SOURCE(at) (sender[at] / PLACES)
#define BLOCK_OF(lane) ((lane) / THREADS)
#define FINE(at, w, after) (sent[w] == 0 || BLOCK_OF(sender[w]) != BLOCK_OF(sender[at]) || sent[w] >= sent[at] + (after))
#define EARLIER(at, x, y)                                                                                              \
    (FINE(at, WORD(x, 0, SOURCE(at), y), 1) && FINE(at, WORD(x, 1, SOURCE(at), y), PHASE(at)))
#if BLOCKS * THREADS == 1
#define WORDS_OF(at, x) EARLIER(at, x, 0)
#else
#define WORDS_OF(at, x) (EARLIER(at, x, 0) && EARLIER(at, x, 1))
#endif
#if N > 2
#define RELEASED(at) (WORDS_OF(at, 0) && WORDS_OF(at, 1) && WORDS_OF(at, 2))
#else
#define RELEASED(at) (WORDS_OF(at, 0) && WORDS_OF(at, 1))
#endif
#ifndef NO_RELEASE
#define MAY_LAND(at) (!IS_FLAG(at) || RELEASED(at))
#endif
#include "memory.pml"

byte rounds[CALLS];

#define OTHER(r, j) (((r) + (j)) % N)
#if N > 2
#define ALL(what) (what(OTHER(r, 1)) && what(OTHER(r, 2)))
#else
#define ALL(what) what(OTHER(r, 1))
#endif

/* This thread's word of an area to all peers. */
inline push_all(area, e)
{
    d_step {
        post(WORD(OTHER(r, 1), area, r, place), e, lane);
#if N > 2
        post(WORD(OTHER(r, 2), area, r, place), e, lane)
#endif
    }
}

#define FLAGGED(s) (mem[FLAG(r, phase, b, s)] == e)
#define SCATTERED(s) (mem[WORD(r, 0, s, place)] == e)
#define GATHERED(s) (mem[WORD(r, 1, s, place)] == e)

/* push_exchange; a block's thread 0 stands for all that store flags. */
inline exchange(e)
{
#ifndef NO_BARRIER
    block_sync(r, b);
#endif
#ifdef NO_ACQUIRE /* loads of the words may come before that of the flag */
    if
    :: early = (phase == 0 -> ALL(SCATTERED) : ALL(GATHERED)) -> looked = true
    :: looked = false
    fi;
#endif
    if
#ifdef NO_SECOND_FLAG
    :: t == 0 && phase == 0 ->
#else
    :: t == 0 ->
#endif
#ifndef LOST_FLAG
        d_step {
            post(FLAG(OTHER(r, 1), phase, b, r), e, lane);
#if N > 2
            post(FLAG(OTHER(r, 2), phase, b, r), e, lane)
#endif
        };
#endif
        ALL(FLAGGED)
    :: else
    fi;
#ifndef NO_ANY_BARRIER
    block_sync(r, b)
#endif
}

#ifdef NO_ACQUIRE
#define SEES(what) (looked -> early : ALL(what))
#else
#define SEES(what) ALL(what)
#endif

proctype Lane(byte r; byte b; byte t)
{
    byte c, e, k, round, phase, place;
    byte lane = LANE(r, b, t);
#if THREADS > 1
    byte passed;
#endif
#ifdef NO_ACQUIRE
    bool early, looked;
#endif
    do
    :: c < CALLS ->
        grid_wait(r, c);
        if
        :: b >= grid[c] -> ended[r]++ /* not part of this kernel */
        :: else ->
            e = epoch[r * BLOCKS + b];
            do
            :: round < rounds[c] ->
#ifdef ONE_EPOCH_A_CALL
                e = epoch[r * BLOCKS + b] + 1;
#else
                e++;
#endif
#ifdef BLOCKS_MOVE /* a place goes to another block in the next round */
                place = (b * THREADS + t + round) % PLACES;
#else
                place = b * THREADS + t;
#endif
                push_all(0, e);
                phase = 0;
                exchange(e);
                assert(SEES(SCATTERED));
                push_all(1, e);
                phase = 1;
                exchange(e);
                assert(SEES(GATHERED));
                round++
            :: else -> break
            od;
            atomic { round = 0; phase = 0; place = 0 };
            epoch_finish(r, b, t, grid[c], e)
        fi;
        c++
    :: else -> break
    od;
    e = 0;
    all_made()
}

init
{
    byte c, x, y;
    atomic {
        do
        :: c < CALLS ->
            if
            :: rounds[c] = 1
            :: rounds[c] = 2
            fi;
            if
            :: grid[c] = BLOCKS
            :: BLOCKS > 1 -> grid[c] = 1
            fi;
            c++
        :: else -> break
        od;
        run_all()
    }
}
