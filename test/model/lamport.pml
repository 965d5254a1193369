/* SPDX-License-Identifier: MIT */
/*
 * lamport.pml - oneshot and twoshot: words that are there when they are not empty, emptied by the reader. With PARTS,
 * kernels of oneshot may be parts of a call that send early: before the part before them has ended.
 *
 * Mutations: ONESHOT_SLOTS, SCATTER_SLOTS (one less), TWOSHOT_EARLY, BEHIND_TWOSHOT, EARLY_RELEASE, RELEASE_ANY_THREAD,
 * LAST_EPOCH, NO_HEAD_FENCE, NO_CLEAR_FLUSH, NO_GRID_WAIT, OWN_EPOCH_WORD, NO_FINISH_BARRIER, ONE_PART, LOST_WORD,
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

#ifndef ONESHOT_SLOTS
#ifdef PARTS
#define ONESHOT_SLOTS 4
#else
#define ONESHOT_SLOTS 2
#endif
#endif
#ifndef SCATTER_SLOTS
#define SCATTER_SLOTS 2
#endif
#if ONESHOT_SLOTS == 3
#define CYCLE 12
#endif
#if KINDS & 1
#define FIRST_SCATTER ONESHOT_SLOTS
#else
#define FIRST_SCATTER 0
#endif
#if KINDS & 2
#define GATHER (FIRST_SCATTER + SCATTER_SLOTS)
#define SLOTS (GATHER + 1)
#else
#define SLOTS FIRST_SCATTER
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

/* Where the words of epoch e go. */
inline slots()
{
    if
#if KINDS & 1
    :: kind[n] == ONESHOT -> to = e % ONESHOT_SLOTS
#endif
#if KINDS & 2
    :: kind[n] == TWOSHOT -> to = FIRST_SCATTER + e % SCATTER_SLOTS; back = GATHER
#endif
    fi
}

inline send()
{
    slots();
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
                send_all(back);
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
            i < chunk && ALL(HERE, back) ->
            assert(ALL(RIGHT, back));
#ifndef NO_GATHER_WIPE
            clear_all(back);
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

/* --- what is known when a kernel is launched -------------------------------------------------------------------- */

#if !defined(PARTS)
#define MAY_TRIGGER(its_kind) false
#elif defined(BEHIND_TWOSHOT)
#define MAY_TRIGGER(its_kind) true
#else
#define MAY_TRIGGER(its_kind) ((its_kind) == ONESHOT)
#endif
#ifdef TWOSHOT_EARLY
#define MAY_SEND_EARLY(its_kind) true
#else
#define MAY_SEND_EARLY(its_kind) ((its_kind) == ONESHOT)
#endif
#ifdef CALLS
#define WANTED (n <= CALLS)
#if CALLS + KERNELS >= CYCLE
#error "CYCLE must be longer"
#endif
#define HAS_NEXT (n < CALLS)
#else
#define WANTED true
#define HAS_NEXT true
#endif

inline choose_kind(m)
{
    if
    :: kind[m] == 0 ->
        if
        :: HAS_ONESHOT -> kind[m] = ONESHOT
        :: HAS_TWOSHOT -> kind[m] = TWOSHOT
        fi;
        if
        :: shape[m] = 0
        :: PLACES > 1 -> shape[m] = 1
        :: BLOCKS > 1 -> shape[m] = 2
        :: PLACES > 1 && BLOCKS > 1 -> shape[m] = 3
        fi
    :: else
    fi
}

/*
 * Each rank chooses for itself which kernels send early; the kinds are the same on all. KNOWN_EPOCH: all do that may, and
 * know their epoch. Nothing is missed of the slots: a kernel that begins late does what a kernel does that waits.
 */
inline choose()
{
    if
    :: next[q] == 0 ->
        choose_kind(n);
        if
#ifdef KNOWN_EPOCH
        :: !(HAS_NEXT && MAY_TRIGGER(kind[n])) -> next[q] = ALONE
#else
        :: next[q] = ALONE
#endif
        :: HAS_NEXT && MAY_TRIGGER(kind[n]) ->
            choose_kind(AFTER(n));
            if
            :: MAY_SEND_EARLY(kind[AFTER(n)]) -> next[q] = EARLY
            :: else -> next[q] = ALONE
            fi
        fi
    :: else
    fi
}

/* --- a kernel --------------------------------------------------------------------------------------------------- */

#ifdef RELEASE_ANY_THREAD
#define MAY_RELEASE true
#else
#define MAY_RELEASE (early || b > 0 || t == 0) /* the head's epoch comes before all that triggers for block 0 */
#endif
inline trigger()
{
    if
    :: next[q] == EARLY && MAY_RELEASE -> release()
    :: else
    fi
}

/* The head of a pipeline publishes its epoch for the kernels that send early behind it. */
inline publish()
{
    if
    :: next[q] == EARLY && b == 0 && t == 0 ->
#ifdef KNOWN_EPOCH
        skip
#elif defined(NO_HEAD_FENCE)
        head_sent[r] = e + 1
#else
        head[r] = e /* and a fence: no kernel reads it until the next begins, so it may as well be there at once */
#endif
    :: else
    fi
}

/* The words of the epoch are yet to be written. */
#ifdef KNOWN_EPOCH /* fewer states */
#define EARLY_EPOCH n
#elif defined(LAST_EPOCH)
#define EARLY_EPOCH AFTER(epoch[r * BLOCKS + b])
#else
#define EARLY_EPOCH ((head[r] + position[q]) % CYCLE)
#endif

proctype Lane(byte r; byte j; byte b; byte t)
{
    byte n = (j == 0 -> KERNELS : j); /* the kernel */
    byte q = r * KERNELS + j;
    byte e; /* its epoch, as it reckons itself */
    byte to, back; /* slots */
    byte i;
    bool early;
again:
    do
#ifdef CALLS
    :: n > CALLS -> break
#endif
    :: atomic {
            WANTED && (IS_LET_IN || MAY_BEGIN) -> /* launched, and begun or past its wait */
            early = IS_LET_IN;
            choose();
            if
            :: b >= grid -> early = false; end_lane(); goto again /* not part of this kernel */
            :: else
            fi;
#if THREADS > 1 /* others of the block may be past this */
        };
        atomic {
#endif
            if
            :: early -> e = EARLY_EPOCH
            :: else -> e = AFTER(epoch[r * BLOCKS + b])
            fi;
            assert(e == n);
            if
            :: early
            :: else -> publish(); trigger()
            fi;
            send()
        };
        if
        :: early ->
#ifdef EARLY_RELEASE
            trigger();
            grid_wait();
#else
            atomic { grid_wait(); trigger() };
#endif
            early = false
        :: else
        fi;
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
#if KINDS & 1
        :: slow = SLOW_IN(1 % ONESHOT_SLOTS)
#endif
#if KINDS & 2
        :: slow = SLOW_IN(FIRST_SCATTER + 1 % SCATTER_SLOTS)
        :: slow = SLOW_IN(GATHER)
#endif
        fi;
#endif
        run_all()
    }
}
