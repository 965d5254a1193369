/* SPDX-License-Identifier: MIT */
/*
 * lamport.pml - the kernels: words that are there when they are not empty, emptied by the reader. Kernels of all kinds
 * follow one another, and send into the same two slots by turns. The second hop of two-shot has two slots of its own.
 * The words there are emptied by the next two-shot kernel.
 *
 * Mutations: ONE_SLOT, NO_CLEAR_FLUSH, NO_GRID_WAIT, OWN_EPOCH_WORD, NO_FINISH_BARRIER, ONE_PART, LOST_WORD,
 * NO_WIPE (the kind of kernels whose words of the first hop are left), NO_BROADCAST_WIPE; of the gather slots:
 * NO_GATHER_WIPE, ONE_GATHER_SLOT, GATHER_BY_EPOCH, OWN_GATHER_WORD, NEW_LEFT; of the words that a broadcast's
 * receivers send: NO_BEGUN_WORD, NO_BEGUN_WORD_TO_ROOT, NO_BEGUN_WORD_TO_RECEIVER, BEGUN_NOT_AWAITED_BY_ROOT,
 * BEGUN_NOT_AWAITED_BY_RECEIVER, NO_BEGUN_WIPE.
 */
#include "ranks.pml"
#ifndef HALVES
#define HALVES 1
#endif
#ifndef PLACES
#define PLACES 1 /* words of a section, at most */
#endif

#define ONESHOT 1
#define TWOSHOT 2
#define ALLGATHER 3
#define REDUCESCATTER 4
#define BROADCAST 5 /* and the numbers from there on: a choice of roots each */
#ifndef KINDS
#define KINDS 31 /* a bit for each kind of kernel, in this order */
#endif
#define HAS(kind_) ((KINDS) & (1 << ((kind_)-1)))

#ifdef ONE_SLOT
#define SENT_TO(epoch_) 0
#else
#define SENT_TO(epoch_) ((epoch_) % 2)
#endif
#if KINDS & 2
#define SLOTS 4
#else
#define SLOTS 2
#endif
#define GATHER 2 /* and the next, by turns of two-shot kernels */
#ifdef ONE_GATHER_SLOT
#define GATHER_AT(turn_) GATHER
#else
#define GATHER_AT(turn_) (GATHER + (turn_))
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
/* Sections are as long as the message, those of two-shot as long as can be. */
#if PLACES > 1
#define length (kind[n] == TWOSHOT -> PLACES : chunk)
#else
#define length 1
#endif

/* A word that has not been emptied must not be written: what was there would be lost, or what comes wiped. */
#define ON_LANDING(at) assert(mem[at] == 0 && !wiping[at])

/* A rank's account of its last two-shot kernel: the gather slot, 0 or 1, and twice the words that it has left in a
 * section there. Beside each epoch word, and written with it. */
#define ACCOUNT(turn_, left_) ((turn_) + 2 * (left_))
#define TURN_BEFORE (last % 2)
#ifdef GATHER_BY_EPOCH
#define TURN (e % 2)
#else
#define TURN (1 - TURN_BEFORE)
#endif
#ifdef NEW_LEFT
#define LEFT (last == 0 -> 0 : chunk)
#else
#define LEFT (last / 2)
#endif
#ifdef OWN_GATHER_WORD
#define IS_ACCOUNTED(word) (kind[n] == TWOSHOT && (word) == b)
#else
#define IS_ACCOUNTED(word) (kind[n] == TWOSHOT)
#endif
#define WITH_EPOCH(word)                                                                                               \
    if                                                                                                                 \
    :: IS_ACCOUNTED(word) -> gathered[r * BLOCKS + word] = ACCOUNT(TURN, chunk)                                        \
    :: else                                                                                                            \
    fi
#include "memory.pml"

byte gathered[N * BLOCKS]; /* the accounts */

/* What a word that was taken, and is not empty, holds from then on: the number of no kernel. Its old number is of no
 * use, and would make many states of one. */
#define TAKEN (CYCLE + 1)

#define OTHER(r, j) (((r) + (j)) % N)
#define PLACE(owner, source) (SECTION(owner, source) * length + i)

/*
 * Word i of a broadcast comes from its root; a call list has a root for each call, here one for the first word and one
 * for the others. With the first word all ranks send each peer one that says that they have begun.
 */
#define ROOT (i == 0 -> (kind[n] - BROADCAST) % N : (kind[n] - BROADCAST) / N)
#if defined(NO_BEGUN_WORD)
#define IS_TOLD(owner) false
#elif defined(NO_BEGUN_WORD_TO_ROOT)
#define IS_TOLD(owner) ((owner) != ROOT)
#elif defined(NO_BEGUN_WORD_TO_RECEIVER)
#define IS_TOLD(owner) ((owner) == ROOT)
#else
#define IS_TOLD(owner) true
#endif
#define SENDS(source, owner) (kind[n] < BROADCAST || ROOT == (source) || i == 0 && IS_TOLD(owner))
#if defined(BEGUN_NOT_AWAITED_BY_ROOT)
#define AWAITS(source) (SENDS(source, r) && (kind[n] < BROADCAST || ROOT != r))
#elif defined(BEGUN_NOT_AWAITED_BY_RECEIVER)
#define AWAITS(source) (SENDS(source, r) && (kind[n] < BROADCAST || ROOT == r || ROOT == (source)))
#else
#define AWAITS(source) SENDS(source, r)
#endif

/* What is not emptied, of the words of the first hop. */
#if defined(NO_WIPE)
#define IS_LEFT(source) (kind[n] == NO_WIPE)
#elif defined(NO_BROADCAST_WIPE)
#define IS_LEFT(source) (kind[n] >= BROADCAST && ROOT == (source))
#elif defined(NO_BEGUN_WIPE)
#define IS_LEFT(source) (kind[n] >= BROADCAST && ROOT != (source))
#else
#define IS_LEFT(source) false
#endif

#define HALF(slot, source, half) mem[AT(r, slot, PLACE(r, source), half)]
#if HALVES == 1 || defined(ONE_PART)
#define HERE(slot, source) (!AWAITS(source) || HALF(slot, source, 0) != 0)
#else
#define HERE(slot, source) (!AWAITS(source) || HALF(slot, source, 0) != 0 && HALF(slot, source, 1) != 0)
#endif
/* A word that is about to be emptied might be empty already. */
#define IS_RIGHT(slot, source, half)                                                                                   \
    (HALF(slot, source, half) == e + 1 && !wiping[AT(r, slot, PLACE(r, source), half)])
#if HALVES == 1
#define RIGHT(slot, source) (!AWAITS(source) || IS_RIGHT(slot, source, 0))
#else
#define RIGHT(slot, source) (!AWAITS(source) || IS_RIGHT(slot, source, 0) && IS_RIGHT(slot, source, 1))
#endif

/* The words at place i of all peers' sections, and what is done with each. */
#if N > 2
#define ALL(what, slot) (what(slot, OTHER(r, 1)) && what(slot, OTHER(r, 2)))
#define EACH(do_, slot) do_(OTHER(r, 1), slot); do_(OTHER(r, 2), slot)
#else
#define ALL(what, slot) what(slot, OTHER(r, 1))
#define EACH(do_, slot) do_(OTHER(r, 1), slot)
#endif

inline lamport_store(owner, slot)
{
    if
    :: SENDS(r, owner) ->
        post(AT(owner, slot, PLACE(owner, r), 0), e + 1);
#if HALVES > 1
        post(AT(owner, slot, PLACE(owner, r), 1), e + 1)
#endif
    :: else
    fi
}

inline lamport_clear(source, slot)
{
    if
    :: SENDS(source, r) && (slot >= GATHER || !IS_LEFT(source)) ->
        wipe(AT(r, slot, PLACE(r, source), 0));
#if HALVES > 1
        wipe(AT(r, slot, PLACE(r, source), 1))
#endif
    :: else
    fi
}

/* Empties what the last two-shot kernel has left, whose blocks and words may be others. */
inline empty_left()
{
    last = gathered[r * BLOCKS + b];
#ifndef NO_GATHER_WIPE
    i = FIRST;
    do
    :: i < LEFT -> EACH(lamport_clear, GATHER_AT(TURN_BEFORE)); i = i + STEP
    :: else -> break
    od
#endif
}

inline send()
{
    to = SENT_TO(e);
    i = FIRST;
    do
    :: i < chunk -> EACH(lamport_store, to); i = i + STEP
    :: else -> break
    od;
    if
    :: kind[n] == TWOSHOT -> empty_left()
    :: else
    fi;
    i = FIRST
}

/* Takes what came first, and in two-shot sends the results. */
inline reduce()
{
    do
    :: atomic {
            i < chunk && ALL(HERE, to) ->
            assert(ALL(RIGHT, to));
#ifndef LOST_WORD
            if
            :: kind[n] == TWOSHOT -> EACH(lamport_store, GATHER_AT(TURN))
            :: else
            fi;
#endif
            EACH(lamport_clear, to);
            i = i + STEP;
            if
            :: i >= chunk -> break
            :: else
            fi
        }
    :: i >= chunk -> break
    od
}

inline mark_taken(source, slot)
{
    HALF(slot, source, 0) = TAKEN;
#if HALVES > 1
    HALF(slot, source, 1) = TAKEN
#endif
}

/* Takes the results. The next two-shot kernel empties the words. */
inline gather()
{
    i = FIRST;
    do
    :: atomic {
            i < chunk && ALL(HERE, GATHER_AT(TURN)) ->
            assert(ALL(RIGHT, GATHER_AT(TURN)));
            EACH(mark_taken, GATHER_AT(TURN));
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
        :: shape[n] = 0
        :: PLACES > 1 -> shape[n] = 1
        :: BLOCKS > 1 -> shape[n] = 2
        :: PLACES > 1 && BLOCKS > 1 -> shape[n] = 3
        fi;
        if
        :: HAS(ONESHOT) -> kind[n] = ONESHOT
        :: HAS(TWOSHOT) -> kind[n] = TWOSHOT
        :: HAS(ALLGATHER) -> kind[n] = ALLGATHER
        :: HAS(REDUCESCATTER) -> kind[n] = REDUCESCATTER
        :: HAS(BROADCAST) ->
            kind[n] = BROADCAST;
            do
            :: kind[n] < BROADCAST + (chunk == 1 -> N : N * N) - 1 -> kind[n]++
            :: break
            od
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
    byte last; /* of two-shot: the account that it found */
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
        :: kind[n] == TWOSHOT -> gather()
        :: else
        fi;
        epoch_finish()
    od
}

/* The ranks are alike, and the slots of an area: the words of one slot of rank 0 stand for those of all. Where sections
 * have one word, they are alike, too. */
#define SLOW_IN(slot) (AT(0, slot, 0, 0) / HALVES)
#ifdef CALLS
#define UNLIKE_WORDS 1
#else
#define UNLIKE_WORDS (PLACES > 1 -> AREA : 1)
#endif

init
{
    byte lane;
    atomic {
#ifdef SLOW_WORD
        if
        :: slow = SLOW_IN(SENT_TO(1))
#if KINDS & 2
        :: slow = SLOW_IN(GATHER_AT(1)) /* that of the first two-shot kernel */
#endif
        fi;
        do
        :: slow % AREA < UNLIKE_WORDS - 1 -> slow++
        :: break
        od;
#endif
        for (lane : 0 .. N * KERNELS * LANES - 1) {
            run Lane(lane / LANES / KERNELS, lane / LANES % KERNELS, lane % LANES / THREADS, lane % THREADS)
        }
        lane = 0
    }
}
