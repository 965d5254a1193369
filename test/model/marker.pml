/* SPDX-License-Identifier: MIT */
/*
 * marker.pml - oneshot and twoshot: words that are there when they are not empty, emptied by the reader; kernels that
 * run ahead: that send before the one before has ended. PAIRS: with oneshot a rank may also run two kernels as one.
 *
 * Mutations: ONESHOT_SLOTS, SCATTER_SLOTS, GATHER_SLOTS, LARGE_SLOTS (one less), LARGE_AHEAD, BEHIND_LARGE,
 * EARLY_RELEASE, RELEASE_ANY_THREAD, LAST_EPOCH, NO_ROW_FENCE, NO_CLEAR_FLUSH, NO_GRID_WAIT, OWN_EPOCH_WORD,
 * NO_FINISH_BARRIER, ONE_PART, LOST_WORD, NO_ONESHOT_WIPE, NO_SCATTER_WIPE, NO_GATHER_WIPE, PAIR_AHEAD, PAIR_IN_ONE_SLOT.
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

#define ONESHOT 1
#define SMALL 2
#define LARGE 3
#ifndef KINDS
#define KINDS 7 /* a bit for each kind of kernel */
#endif
#define HAS_ONESHOT ((KINDS) & 1)
#define HAS_SMALL ((KINDS) & 2)
#define HAS_LARGE ((KINDS) & 4)

/* Slots. What is sent first in one-shot and in small two-shot goes to the same ones. */
#ifndef ONESHOT_SLOTS
#define ONESHOT_SLOTS 4
#endif
#ifndef SCATTER_SLOTS
#define SCATTER_SLOTS 4
#endif
#ifndef GATHER_SLOTS
#define GATHER_SLOTS 2
#endif
#ifndef LARGE_SLOTS
#define LARGE_SLOTS 2
#endif
#if ONESHOT_SLOTS == 3 || SCATTER_SLOTS == 3
#define CYCLE 12
#endif
#if ONESHOT_SLOTS != SCATTER_SLOTS /* areas of their own, so that only the lack of slots is seen */
#define FIRST_SCATTER ONESHOT_SLOTS
#define FIRST_GATHER (ONESHOT_SLOTS + SCATTER_SLOTS)
#elif KINDS & 3
#define FIRST_SCATTER 0
#define FIRST_GATHER ONESHOT_SLOTS
#else
#define FIRST_SCATTER 0
#define FIRST_GATHER 0
#endif
#if KINDS & 2
#define FIRST_LARGE (FIRST_GATHER + 2)
#else
#define FIRST_LARGE FIRST_GATHER
#endif
#if KINDS & 4
#define SLOTS (FIRST_LARGE + 3)
#else
#define SLOTS FIRST_LARGE
#endif
#define ROW(owner, source) ((source) - ((source) > (owner)))
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

inline marker_store(owner, slot, place)
{
    post(AT(owner, slot, place, 0), e + 1);
#if HALVES > 1
    post(AT(owner, slot, place, 1), e + 1)
#endif
}

/* One word to each peer, at place i of this rank's row. */
inline send_all(slot)
{
    marker_store(OTHER(r, 1), slot, ROW(OTHER(r, 1), r) * PLACES + i);
#if N > 2
    marker_store(OTHER(r, 2), slot, ROW(OTHER(r, 2), r) * PLACES + i)
#endif
}

inline marker_clear(slot, place)
{
    wipe(AT(r, slot, place, 0));
#if HALVES > 1
    wipe(AT(r, slot, place, 1))
#endif
}

/* The words at place i of all peers' rows. */
#if N > 2
#define ALL(what, slot) (what(slot, i) && what(slot, PLACES + i))
#else
#define ALL(what, slot) what(slot, i)
#endif
inline clear_all(slot)
{
    marker_clear(slot, i);
#if N > 2
    marker_clear(slot, PLACES + i)
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
    :: kind[n] == SMALL -> to = FIRST_SCATTER + e % SCATTER_SLOTS; back = FIRST_GATHER + e % GATHER_SLOTS
#endif
#if KINDS & 4
    :: kind[n] == LARGE -> to = FIRST_LARGE + e % LARGE_SLOTS; back = FIRST_LARGE + 2
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

/* Two kernels of oneshot as one: what the first does for the second, which then has nothing left to do. */
#ifdef PAIRS
#if BLOCKS * THREADS > 1 || PLACES > 1
#error "pairs are for ranks of one thread"
#endif
#define PAIRED 3
byte carried[N]; /* the kernel that has been run by the one before, plus 1; 0: none */
inline send_second()
{
    if
    :: next[q] == PAIRED ->
#ifndef PAIR_IN_ONE_SLOT
        e = AFTER(e);
#endif
        send();
#ifndef PAIR_IN_ONE_SLOT
        e = BEFORE(e);
#endif
        slots()
    :: else
    fi
}
inline reduce_second()
{
    if
    :: next[q] == PAIRED ->
        e = AFTER(e);
        slots();
        i = FIRST;
        reduce();
        carried[r] = AFTER(n) + 1
    :: else
    fi
}
#define SKIP_CARRIED                                                                                                   \
    if                                                                                                                 \
    :: carried[r] == n + 1 -> carried[r] = 0; ahead = false; end_lane(); goto again                                    \
    :: else                                                                                                            \
    fi;
#ifdef PAIR_AHEAD
#define MAY_PAIR true
#else
#define MAY_PAIR (!ahead)
#endif
#else
#define send_second() skip
#define reduce_second() skip
#define SKIP_CARRIED
#endif

/* --- what is known when a kernel is launched -------------------------------------------------------------------- */

#ifdef BEHIND_LARGE
#define MAY_LET_IN(its_kind) true
#else
#define MAY_LET_IN(its_kind) ((its_kind) != LARGE)
#endif
#ifdef LARGE_AHEAD
#define MAY_RUN_AHEAD(its_kind) true
#else
#define MAY_RUN_AHEAD(its_kind) ((its_kind) != LARGE)
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
        :: HAS_SMALL -> kind[m] = SMALL
        :: HAS_LARGE -> kind[m] = LARGE
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
 * Each rank chooses for itself which kernels run ahead; the kinds are the same on all. NO_ROWS: all do that may, and
 * know their epoch. Nothing is missed of the slots: one that begins late does what one does that waits.
 */
inline choose()
{
    if
    :: next[q] == 0 ->
        choose_kind(n);
        if
#ifdef NO_ROWS
        :: !(HAS_NEXT && MAY_LET_IN(kind[n])) -> next[q] = ALONE
#else
        :: next[q] = ALONE
#endif
        :: HAS_NEXT && MAY_LET_IN(kind[n]) ->
            choose_kind(AFTER(n));
            if
            :: MAY_RUN_AHEAD(kind[AFTER(n)]) -> next[q] = AHEAD
#ifdef PAIRS
            :: MAY_PAIR && kind[n] == ONESHOT && kind[AFTER(n)] == ONESHOT -> next[q] = PAIRED
#endif
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
#define MAY_RELEASE (ahead || b > 0 || t == 0) /* a leader's row word comes before all that speaks for block 0 */
#endif
inline let_next_in()
{
    if
    :: next[q] == AHEAD && MAY_RELEASE -> release()
    :: else
    fi
}

/* The first of a row says its epoch to those that run ahead behind it. */
inline publish()
{
    if
    :: next[q] == AHEAD && b == 0 && t == 0 ->
#ifdef NO_ROWS
        skip
#elif defined(NO_ROW_FENCE)
        row_sent[r] = e + 1
#else
        row[r] = e /* and a fence: nobody looks until the next is let in, so it may as well be there at once */
#endif
    :: else
    fi
}

/* Ahead, the words of the epoch are yet to be written. */
#ifdef NO_ROWS /* fewer states */
#define EPOCH_AHEAD n
#elif defined(LAST_EPOCH)
#define EPOCH_AHEAD AFTER(epoch[r * BLOCKS + b])
#else
#define EPOCH_AHEAD ((row[r] + in_row[q]) % CYCLE)
#endif

proctype Lane(byte r; byte j; byte b; byte t)
{
    byte n = (j == 0 -> KERNELS : j); /* the kernel */
    byte q = r * KERNELS + j;
    byte e; /* its epoch, as it reckons itself */
    byte to, back; /* slots */
    byte i;
    bool ahead;
again:
    do
#ifdef CALLS
    :: n > CALLS -> break
#endif
    :: atomic {
            WANTED && (IS_LET_IN || MAY_BEGIN) -> /* launched, and begun or past its wait */
            ahead = IS_LET_IN;
            SKIP_CARRIED
            choose();
            if
            :: b >= grid -> ahead = false; end_lane(); goto again /* not part of this kernel */
            :: else
            fi;
#if THREADS > 1 /* others of the block may be past this */
        };
        atomic {
#endif
            if
            :: ahead -> e = EPOCH_AHEAD
            :: else -> e = AFTER(epoch[r * BLOCKS + b])
            fi;
            assert(e == n);
            if
            :: ahead
            :: else -> publish(); let_next_in()
            fi;
            send();
            send_second()
        };
        if
        :: ahead ->
#ifdef EARLY_RELEASE
            let_next_in();
            grid_wait();
#else
            atomic { grid_wait(); let_next_in() };
#endif
            ahead = false
        :: else
        fi;
        reduce();
        if
        :: kind[n] == ONESHOT -> reduce_second()
        :: else -> gather()
        fi;
        epoch_finish()
    od
}

/* The ranks are alike, their rows, and the slots of an area: one word, of rank 0, stands for those of all. */
#define SLOW_IN(slot) (AT(0, slot, 0, 0) / HALVES)

init
{
    byte c, x, y;
    atomic {
#ifdef SLOW_WORD
        if
#if KINDS & 3
        :: slow = SLOW_IN(1)
#if FIRST_SCATTER > 0
        :: slow = SLOW_IN(FIRST_SCATTER + 1)
#endif
#endif
#if KINDS & 2
        :: slow = SLOW_IN(FIRST_GATHER + 1 % GATHER_SLOTS)
#endif
#if KINDS & 4
        :: slow = SLOW_IN(FIRST_LARGE + 1 % LARGE_SLOTS)
        :: slow = SLOW_IN(FIRST_LARGE + 2)
#endif
        fi;
#endif
        run_all()
    }
}
