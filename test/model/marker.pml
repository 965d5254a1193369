/* SPDX-License-Identifier: MIT */
/*
 * marker.pml - oneshot and twoshot: words that are there when they are not empty, emptied by the reader; two slots for
 * what is sent first, one for results
 *
 * Mutations: NO_GRID_WAIT, OWN_EPOCH_WORD, NO_FINISH_BARRIER (memory.pml), ONE_SLOT, ONE_PART, LOST_WORD,
 * NO_SCATTER_WIPE, NO_GATHER_WIPE, NO_FENCE, SHORT_ROUND (with STORY), ONESHOT_IN_GATHER.
 */
#ifndef N
#define N 2
#endif
#ifndef HALVES
#define HALVES 1
#endif
#ifndef PLACES
#define PLACES 1 /* places of a row, at most */
#endif
#ifndef MOST_ROUNDS
#define MOST_ROUNDS 2 /* of a call, or 3: then a scatter slot is used again within the call */
#endif
#define AREA (N * PLACES)
#define LOCS (N * 3 * AREA * HALVES)
#ifdef ONE_SLOT
#define SLOT(e, area) (2 * (area))
#else
#define SLOT(e, area) ((area) == 1 -> 2 : (e) % 2)
#endif
#define AT(owner, e, area, place, half) ((((owner) * 3 + SLOT(e, area)) * AREA + (place)) * HALVES + (half))

/* A word that has not been emptied must not be written: what was there would be lost, or what comes wiped. */
#define ON_LANDING(at) assert(mem[at] == 0 && !wiping[at])
#define WORD HALVES
#include "memory.pml"

byte chunk[CALLS];  /* words to each rank in a round */
byte rounds[CALLS]; /* 0: one-shot */

#define OTHER(r, j) (((r) + (j)) % N)
#ifdef ONESHOT_IN_GATHER
#define ONESHOT_AREA 1
#else
#define ONESHOT_AREA 0
#endif

#if HALVES == 1 || defined(ONE_PART)
#define HERE(e, area, place) (mem[AT(r, e, area, place, 0)] != 0)
#else
#define HERE(e, area, place) (mem[AT(r, e, area, place, 0)] != 0 && mem[AT(r, e, area, place, 1)] != 0)
#endif
#if HALVES == 1
#define RIGHT(e, area, place) (mem[AT(r, e, area, place, 0)] == e)
#else
#define RIGHT(e, area, place) (mem[AT(r, e, area, place, 0)] == e && mem[AT(r, e, area, place, 1)] == e)
#endif

inline marker_store(owner, e, area, place)
{
    post(AT(owner, e, area, place, 0), e, lane);
#if HALVES > 1
    post(AT(owner, e, area, place, 1), e, lane)
#endif
}

inline send_all(e, area, place)
{
    marker_store(OTHER(r, 1), e, area, place);
#if N > 2
    marker_store(OTHER(r, 2), e, area, place)
#endif
}

inline marker_clear(e, area, place)
{
    wipe(AT(r, e, area, place, 0), lane);
#if HALVES > 1
    wipe(AT(r, e, area, place, 1), lane)
#endif
}

/* The words at first + source * step of all sources. */
#if N > 2
#define ALL(what, e, area, first, step)                                                                                \
    (what(e, area, (first) + OTHER(r, 1) * (step)) && what(e, area, (first) + OTHER(r, 2) * (step)))
#else
#define ALL(what, e, area, first, step) what(e, area, (first) + OTHER(r, 1) * (step))
#endif
#define take_all(e, area, first, step)                                                                                 \
    atomic { ALL(HERE, e, area, first, step) -> assert(ALL(RIGHT, e, area, first, step)) }
inline clear_all(e, area, first, step)
{
    marker_clear(e, area, first + OTHER(r, 1) * step);
#if N > 2
    marker_clear(e, area, first + OTHER(r, 2) * step)
#endif
}

/* My places of a round of call c. */
#ifdef SHORT_ROUND
#define LENGTH(round) (rounds[c] > 1 && (round) + 1 == rounds[c] -> 1 : chunk[c])
#else
#define LENGTH(round) chunk[c]
#endif
#define FIRST (b * THREADS + t)
#define STEP (grid[c] * THREADS)

inline scatter(e, round)
{
    atomic {
        i = FIRST;
        do
        :: i < LENGTH(round) -> send_all(e, 0, r * PLACES + i); i = i + STEP
        :: else -> break
        od;
        i = FIRST
    }
}

inline reduce(e, round)
{
    i = FIRST;
    do
    :: i < LENGTH(round) ->
        take_all(e, 0, i, PLACES);
        d_step {
#ifndef LOST_WORD
            send_all(e, 1, r * PLACES + i);
#endif
#ifndef NO_SCATTER_WIPE
            clear_all(e, 0, i, PLACES);
#endif
            i = i + STEP
        }
    :: else -> break
    od
}

inline gather(e, round)
{
    i = FIRST;
    do
    :: i < LENGTH(round) ->
        take_all(e, 1, i, PLACES);
        d_step {
#ifndef NO_GATHER_WIPE
            clear_all(e, 1, i, PLACES);
#endif
            i = i + STEP
        }
    :: else -> break
    od
}

/* With chunk[c] words; the rows of a one-shot message are as long as it. */
inline oneshot(e)
{
    atomic {
        i = FIRST;
        do
        :: i < chunk[c] -> send_all(e, ONESHOT_AREA, r * chunk[c] + i); i = i + STEP
        :: else -> break
        od;
        i = FIRST
    };
    do
    :: i < chunk[c] ->
        take_all(e, ONESHOT_AREA, i, chunk[c]);
        d_step { clear_all(e, ONESHOT_AREA, i, chunk[c]); i = i + STEP }
    :: else -> break
    od
}

proctype Lane(byte r; byte b; byte t)
{
    byte c, e, i, k, round;
    byte lane = LANE(r, b, t);
#if THREADS > 1
    byte passed;
#endif
    do
    :: c < CALLS ->
        grid_wait(r, c);
        if
        :: b >= grid[c] -> ended[r]++ /* not part of this kernel */
        :: else ->
            e = epoch[r * BLOCKS + b] + 1;
            if
            :: rounds[c] == 0 -> oneshot(e)
            :: else ->
                scatter(e, 0);
                do
                :: reduce(e, round);
                    gather(e, round);
                    if
                    :: round + 1 == rounds[c] -> break
                    :: else ->
                        atomic { e++; round++ };
#ifndef NO_FENCE
                        fence(lane);
#endif
                        scatter(e, round)
                    fi
                od
            fi;
            atomic { i = 0; round = 0 };
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
#ifdef STORY /* two rounds of whole rows, then one shot */
            rounds[c] = (c == 0 -> 2 : 0);
            chunk[c] = PLACES;
            grid[c] = BLOCKS;
#else
            if
#ifdef ONLY_ROUNDS /* of all calls */
            :: rounds[c] = ONLY_ROUNDS
#else
            :: rounds[c] = 0
#ifndef NO_TWOSHOT
            :: rounds[c] = 1
            :: rounds[c] = 2
            :: MOST_ROUNDS > 2 -> rounds[c] = 3
#endif
#endif
            fi;
            if
            :: chunk[c] = PLACES
            :: PLACES > 1 -> chunk[c] = 1
            fi;
            if
            :: grid[c] = BLOCKS
            :: BLOCKS > 1 -> grid[c] = 1
            fi;
#endif
            c++
        :: else -> break
        od;
#ifdef SLOW_WORD /* the ranks are alike: a word of rank 0 stands for those of the others */
        select(slow : 0 .. LOCS / N / HALVES - 1);
#endif
        run_all()
    }
}
