/* SPDX-License-Identifier: MIT */
/*
 * ll.pml - oneshot_ll and twoshot_ll: words that carry the flag of their epoch, two slots by parity, the sweep
 *
 * Mutations: NO_GRID_WAIT, OWN_EPOCH_WORD, NO_FINISH_BARRIER (memory.pml), ONE_SLOT, ONE_FLAG, LOST_HALF, SUM_LOST;
 * with SWEEP: NO_SWEEP, SWEEP_ONCE, SWEEP_OWN_SLOT, SWEEP_NO_FENCE, SWEEP_NO_BARRIER, SWEEP_IDLE.
 */
#ifndef N
#define N 2
#endif
#ifndef HALVES
#define HALVES 2
#endif
#ifndef WORDS
#define WORDS 2 /* of a one-shot message, at most */
#endif
#ifdef NO_TWOSHOT
#define ROW (N * WORDS)
#elif N == 2 && WORDS == 2
#define ROW 4
#else
#define ROW (2 * N)
#endif
#define LOCS (N * 2 * ROW * HALVES)
#define AT(owner, e, place, half) ((((owner) * 2 + SLOT(e)) * ROW + (place)) * HALVES + (half))
#ifdef ONE_SLOT
#define SLOT(e) 0
#else
#define SLOT(e) ((e) % 2)
#endif

#ifdef SWEEP
#define WIPES
#define WRAP 8 /* flags repeat after so many rounds; a sweep follows each multiple of half of it */
#else
#define WRAP 128
#endif
#include "memory.pml"

byte words[CALLS]; /* 0: two-shot, one word for each owner */

#define HAS(at, e) (mem[at] != 0 && mem[at] % WRAP == (e) % WRAP)
#if HALVES == 1 || defined(ONE_FLAG)
#define HERE(owner, e, place) HAS(AT(owner, e, place, 0), e)
#else
#define HERE(owner, e, place) (HAS(AT(owner, e, place, 0), e) && HAS(AT(owner, e, place, 1), e))
#endif
#if HALVES == 1
#define RIGHT(owner, e, place) (mem[AT(owner, e, place, 0)] == e)
#else
#define RIGHT(owner, e, place) (mem[AT(owner, e, place, 0)] == e && mem[AT(owner, e, place, 1)] == e)
#endif
#define OTHER(r, j) (((r) + (j)) % N)

/* oh_ll_store */
inline ll_store(owner, e, place)
{
    post(AT(owner, e, place, 0), e, lane);
#if HALVES > 1 && !defined(LOST_HALF)
    post(AT(owner, e, place, 1), e, lane)
#endif
}

/* Sends a word to all peers, or waits for the words of all peers, at first + source * step. */
inline send_all(e, place)
{
    ll_store(OTHER(r, 1), e, place);
#if N > 2
    ll_store(OTHER(r, 2), e, place)
#endif
}
#if N > 2
#define ALL(what, e, first, step)                                                                                      \
    (what(r, e, (first) + OTHER(r, 1) * (step)) && what(r, e, (first) + OTHER(r, 2) * (step)))
#else
#define ALL(what, e, first, step) what(r, e, (first) + OTHER(r, 1) * (step))
#endif
#define take_all(e, first, step) atomic { ALL(HERE, e, first, step) -> assert(ALL(RIGHT, e, first, step)) }

#ifdef SWEEP
#ifdef NO_SWEEP
#define SWEEPS(e) false
#elif defined(SWEEP_ONCE)
#define SWEEPS(e) ((e) % (WRAP / 2) == 0)
#else
#define SWEEPS(e) ((e) % (WRAP / 2) <= 1)
#endif
#ifdef SWEEP_OWN_SLOT
#define SWEPT(e) (e)
#else
#define SWEPT(e) ((e) + 1)
#endif
/* oh_active_blocks */
#ifdef SWEEP_IDLE
#define ACTIVE(c) grid[c]
#else
#define ACTIVE(c) ((words[c] + THREADS - 1) / THREADS < grid[c] -> (words[c] + THREADS - 1) / THREADS : grid[c])
#endif
/* oh_sweep: of the slot that this round does not use, shared out among the active blocks. */
inline sweep(e)
{
    workers = ACTIVE(c);
    if
    :: SWEEPS(e) && b < workers ->
        atomic {
            k = b * THREADS + t;
            do
            :: k < ROW * HALVES -> i = AT(r, SWEPT(e), 0, 0) + k; wipe(i, lane); k = k + THREADS * workers
            :: else -> break
            od;
            k = 0;
            i = 0
        };
#ifndef SWEEP_NO_FENCE
        fence(lane);
#endif
#ifndef SWEEP_NO_BARRIER
        block_sync(r, b)
#endif
    :: else
    fi
}
#endif

proctype Lane(byte r; byte b; byte t)
{
    byte c, e, i, k;
    byte lane = LANE(r, b, t);
#ifdef SWEEP
    byte workers;
#endif
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
#ifdef SWEEP
            sweep(e);
#endif
            if
            :: words[c] > 0 -> /* oneshot_ll */
                atomic {
                    i = b * THREADS + t;
                    do
                    :: i < words[c] -> send_all(e, r * words[c] + i); i = i + grid[c] * THREADS
                    :: else -> break
                    od;
                    i = b * THREADS + t
                };
                do
                :: i < words[c] -> take_all(e, i, words[c]); i = i + grid[c] * THREADS
                :: else -> break
                od
#ifndef NO_TWOSHOT
            :: words[c] == 0 && b + t == 0 -> /* twoshot_ll, chunks of one word */
                d_step { send_all(e, r) };
                take_all(e, 0, 1);
#ifndef SUM_LOST
                d_step { send_all(e, N + r) };
#endif
                take_all(e, N, 1)
#endif
            :: else
            fi;
            i = 0;
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
#ifdef SWEEP
            /* Large, small until the flags repeat, large again: its second word is as the first one left it. */
            words[c] = (c % WRAP == 0 -> WORDS : 1);
            grid[c] = BLOCKS;
#else
            if
            :: words[c] = 1
            :: WORDS > 1 -> words[c] = WORDS
#ifndef NO_TWOSHOT
            :: words[c] = 0
#endif
            fi;
            if
            :: grid[c] = 1
            :: BLOCKS > 1 -> grid[c] = BLOCKS
            fi;
#endif
            c++
        :: else -> break
        od;
#ifdef SWEEP
        if /* the large calls in the one slot or in the other */
        :: x = 0
        :: x = 1
        fi;
        c = 0;
        do
        :: c < N * BLOCKS -> epoch[c] = x; c++
        :: else -> break
        od;
#endif
        run_all()
    }
}
