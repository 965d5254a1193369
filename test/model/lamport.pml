/* SPDX-License-Identifier: MIT */
/*
 * lamport.pml - oneshot and twoshot: words that are there when they are not empty, emptied by the reader. Kernels of
 * both kinds follow one another, and send into the same two slots by turns.
 *
 * Mutations: ONE_SLOT, NO_CLEAR_FLUSH, NO_GRID_WAIT, OWN_EPOCH_WORD, NO_FINISH_BARRIER, ONE_PART, LOST_WORD,
 * NO_ONESHOT_WIPE, NO_SCATTER_WIPE, NO_GATHER_WIPE.
 */
#ifndef N
#define N 2
#endif
#ifndef HALVES
#define HALVES 1
#endif
#ifndef PLACES
#define PLACES 1 /* words of a section, at most */
#endif

#define ONESHOT 1
#define TWOSHOT 2
#ifndef KINDS
#define KINDS 3 /* a bit for each kind of kernel */
#endif
#define HAS_ONESHOT ((KINDS) & 1)
#define HAS_TWOSHOT ((KINDS) & 2)

#ifdef ONE_SLOT
#define SENT_TO(epoch_) 0
#else
#define SENT_TO(epoch_) ((epoch_) % 2)
#endif
#define GATHER 2
#if KINDS & 2
#define SLOTS 3
#else
#define SLOTS 2
#endif
#define SECTION(owner, source) ((source) - ((source) > (owner)))
#define AREA ((N - 1) * PLACES)
#define LOCS (N * SLOTS * AREA * HALVES)
#define AT(owner, slot, place, half) ((((owner) * SLOTS + (slot)) * AREA + (place)) * HALVES + (half))

/* The shape of a kernel: words to each rank, and blocks. */
#if PLACES > 1
#define chunk (shape[n] % 2 == 1 -> 1 : PLACES)
#else
#define chunk 1
#endif
#if BLOCKS > 1
#define grid (shape[n] >= 2 -> 1 : BLOCKS)
#else
#define grid 1
#endif
#define FIRST (b * THREADS + t)
#define STEP (grid * THREADS)

/* A word that has not been emptied must not be written: what was there would be lost, or what comes wiped. */
#define ON_LANDING(at) assert(mem[at] == 0 && !wiping[at])
#define WORD HALVES
#include "memory.pml"

#define OTHER(r, j) (((r) + (j)) % N)

#if HALVES == 1 || defined(ONE_PART)
#define HERE(slot, place) (mem[AT(r, slot, place, 0)] != 0)
#else
#define HERE(slot, place) (mem[AT(r, slot, place, 0)] != 0 && mem[AT(r, slot, place, 1)] != 0)
#endif
#if HALVES == 1
#define RIGHT(slot, place) (mem[AT(r, slot, place, 0)] == e + 1)
#else
#define RIGHT(slot, place) (mem[AT(r, slot, place, 0)] == e + 1 && mem[AT(r, slot, place, 1)] == e + 1)
#endif

inline lamport_store(owner, slot, place)
{
    post(AT(owner, slot, place, 0), e + 1);
#if HALVES > 1
    post(AT(owner, slot, place, 1), e + 1)
#endif
}

/* One word to each peer, at place i of this rank's section. */
inline send_all(slot)
{
    lamport_store(OTHER(r, 1), slot, SECTION(OTHER(r, 1), r) * PLACES + i);
#if N > 2
    lamport_store(OTHER(r, 2), slot, SECTION(OTHER(r, 2), r) * PLACES + i)
#endif
}

inline lamport_clear(slot, place)
{
    wipe(AT(r, slot, place, 0));
#if HALVES > 1
    wipe(AT(r, slot, place, 1))
#endif
}

/* The words at place i of all peers' sections. */
#if N > 2
#define ALL(what, slot) (what(slot, i) && what(slot, PLACES + i))
#else
#define ALL(what, slot) what(slot, i)
#endif
inline clear_all(slot)
{
    lamport_clear(slot, i);
#if N > 2
    lamport_clear(slot, PLACES + i)
#endif
}

inline send()
{
    to = SENT_TO(e);
    i = FIRST;
    do
    :: i < chunk -> send_all(to); i = i + STEP
    :: else -> break
    od;
    i = FIRST
}

/* Takes what came first, and in two-shot sends the results. */
inline reduce()
{
    do
    :: atomic {
            i < chunk && ALL(HERE, to) ->
            assert(ALL(RIGHT, to));
            if
            :: kind[n] == ONESHOT ->
#ifndef NO_ONESHOT_WIPE
                clear_all(to)
#else
                skip
#endif
            :: else ->
#ifndef LOST_WORD
                send_all(GATHER);
#endif
#ifndef NO_SCATTER_WIPE
                clear_all(to)
#else
                skip
#endif
            fi;
            i = i + STEP;
            if
            :: i >= chunk -> break
            :: else
            fi
        }
    :: i >= chunk -> break
    od
}

inline gather()
{
    i = FIRST;
    do
    :: atomic {
            i < chunk && ALL(HERE, GATHER) ->
            assert(ALL(RIGHT, GATHER));
#ifndef NO_GATHER_WIPE
            clear_all(GATHER);
#endif
            i = i + STEP;
            if
            :: i >= chunk -> break
            :: else
            fi
        }
    :: i >= chunk -> break
    od
}

/* --- a kernel --------------------------------------------------------------------------------------------------- */

#ifdef CALLS
#define WANTED (n <= CALLS)
#if CALLS + KERNELS >= CYCLE
#error "CYCLE must be longer"
#endif
#else
#define WANTED true
#endif

/* The kind and shape of a kernel are the same on all ranks: the first that begins it chooses. */
inline choose()
{
    if
    :: kind[n] == 0 ->
        if
        :: HAS_ONESHOT -> kind[n] = ONESHOT
        :: HAS_TWOSHOT -> kind[n] = TWOSHOT
        fi;
        if
        :: shape[n] = 0
        :: PLACES > 1 -> shape[n] = 1
        :: BLOCKS > 1 -> shape[n] = 2
        :: PLACES > 1 && BLOCKS > 1 -> shape[n] = 3
        fi
    :: else
    fi
}

proctype Lane(byte r; byte j; byte b; byte t)
{
    byte n = (j == 0 -> KERNELS : j); /* the kernel */
    byte q = r * KERNELS + j;
    byte e; /* its epoch, as it reckons itself */
    byte to; /* the slot that it sends to */
    byte i;
again:
    do
#ifdef CALLS
    :: n > CALLS -> break
#endif
    :: atomic {
            WANTED && MAY_BEGIN ->
            choose();
            if
            :: b >= grid -> end_lane(); goto again /* not part of this kernel */
            :: else
            fi;
#if THREADS > 1 /* others of the block may be past this */
        };
        atomic {
#endif
            e = AFTER(epoch[r * BLOCKS + b]);
            assert(e == n);
            send()
        };
        reduce();
        if
        :: kind[n] == ONESHOT
        :: else -> gather()
        fi;
        epoch_finish()
    od
}

/* The ranks are alike, their sections, and the slots of an area: one word, of rank 0, stands for those of all. */
#define SLOW_IN(slot) (AT(0, slot, 0, 0) / HALVES)

init
{
    byte c, x, y;
    atomic {
#ifdef SLOW_WORD
        if
        :: slow = SLOW_IN(SENT_TO(1))
#if KINDS & 2
        :: slow = SLOW_IN(GATHER)
#endif
        fi;
#endif
        run_all()
    }
}
