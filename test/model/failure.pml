/* SPDX-License-Identifier: MIT */
/*
 * failure.pml - fail-stop: launches that fail, processes that end, programs that take no notice
 *
 * Each rank has a program, a device that runs its kernels one after the other, and a monitor. All programs make the same
 * calls; a call is eager, which onehop can refuse, or a replay, which it cannot. A program that has an error may abort,
 * or go on. So often as TROUBLES says a launch fails, a process is killed, or a program aborts for no reason; and each
 * process may end after its last call has completed: that is no trouble.
 *
 * At the end of every run: a kernel that waits is one whose rank has been told; none waits after an abort; where nothing
 * went wrong, nobody has been told. At each step: a kernel that completes has words of one call from all ranks.
 *
 * Mutations: LEAVE_ALONE, NO_HOLD, NO_HOLD_BEHIND, FAIL_SOFT, NO_PUBLISH, NO_WAIT, NO_GRACE, CALLS_ONLY, STAY.
 */
#include "ranks.pml"
#ifndef CALLS
#define CALLS 3
#endif
#ifndef TROUBLES
#define TROUBLES 1
#endif
#define K (CALLS + 1)

mtype = { eager, replay };
mtype kind[K];                           /* of call c: the first program to make it chooses */
bool gone[N];                            /* the process has ended */
bool failed[N], lost[N];                 /* struct oh_comm */
bool published;                          /* `failed` of the segment */
bool held[N], released[N];               /* struct oh_epoch; OH_ABORT_LEAVE */
byte launched[N], finished[N], waits[N]; /* kernels; the epoch of that which waits, 0: none */
bool sending[N];
byte call_of[N * K];  /* of a rank's k-th kernel */
byte here[N * N * K]; /* call whose words a rank has sent a peer for an epoch; 0: none */
byte troubles;

#define WORDS(from, to, e) here[((from) * N + (to)) * K + (e)]
#define DEPARTED(p) (gone[p] || released[p])
#define HAS_SENT(p) (gone[p] || !sending[p])
#define IS_HERE(p) (WORDS(p, r, e) != 0)
#define IS_RIGHT(p) (WORDS(p, r, e) == call_of[r * K + k])
#define IS_HERE_TOO(p) (WORDS(p, r, waits[r]) != 0)
#define IS_TOLD(p) failed[p]
#define WAITS_UNTOLD(p) (!gone[p] && !released[p] && waits[p] != 0 && !failed[p])
#define WAITS_ENDED(p) (!gone[p] && released[p] && waits[p] != 0)

/* The rank's kernel waits for a peer: what ranks have sent has arrived after GRACE_NS. */
#ifdef NO_WAIT
#define MISSES(r) true
#elif defined NO_GRACE
#define MISSES(r) (waits[r] != 0 && !ALL_OF(IS_HERE_TOO))
#else
#define MISSES(r) (waits[r] != 0 && !ALL_OF(IS_HERE_TOO) && ALL_OF(HAS_SENT))
#endif

/* oh_comm_fail */
inline fail(r)
{
    d_step {
        failed[r] = true;
#ifndef NO_PUBLISH
        published = true
#endif
    }
}

/* hold_graphs: before the program has its error */
inline hold(r)
{
#ifndef NO_HOLD
    held[r] = true
#else
    skip
#endif
}

inline launch(r, c)
{
    d_step {
        launched[r]++;
        call_of[r * K + launched[r]] = c
    }
}

inline abort(r)
{
    released[r] = true
}

/* oh_comm_refuse_call, or oh_call_launch */
inline call_eager(r, c)
{
    if
    :: failed[r] || lost[r] ->
        fail(r);
        hold(r)
    :: !failed[r] && !lost[r] ->
        if
        :: troubles < TROUBLES ->
            troubles++;
#ifndef FAIL_SOFT
            fail(r);
            hold(r)
#endif
        :: launch(r, c)
        fi
    fi
}

proctype Program(byte r)
{
    byte c = 1;
    {
        do
        :: c > CALLS -> break
        :: c <= CALLS ->
            if
            :: atomic { kind[c] == 0 -> if :: kind[c] = eager :: kind[c] = replay fi }
            :: atomic { kind[c] == eager -> call_eager(r, c); c++ }
            :: atomic { kind[c] == replay -> launch(r, c); c++ }
            fi
        :: failed[r] -> abort(r); break
        :: atomic { troubles < TROUBLES -> troubles++; abort(r) } break
        od;
        if
        :: finished[r] == CALLS && launched[r] == CALLS -> gone[r] = true /* it ends, and all its work is done */
        :: failed[r] -> abort(r)
        :: skip
        fi
    } unless {
        gone[r]
    }
}

/* oh_abort_leave: the kernel's epoch has not ended, so the kernels that are queued behind it have the same */
inline leave(r)
{
#ifndef NO_HOLD_BEHIND
    held[r] = true
#else
    skip
#endif
}

/* Kernels of a rank. They go on without the program, but end with its process. */
proctype Device(byte r)
{
    byte k = 1, e = 1, p = 0; /* e: its epoch */
    {
        skip; /* spin takes no label there */
end_idle:
        do
        :: atomic {
            k <= CALLS && launched[r] >= k ->
            sending[r] = !held[r]; /* oh_epoch_of, oh_receive */
            waits[r] = (held[r] -> e : 0)
            }
            if
            :: !sending[r] ->
end_held:
                released[r]
            :: sending[r] ->
                do
                :: atomic { p < N -> WORDS(r, p, e) = call_of[r * K + k]; p++ }
                :: atomic {
                    p == N ->
                    p = 0;
                    sending[r] = false;
                    waits[r] = e;
                    break
                    }
                od;
end_wait:
                if
                :: atomic { ALL_OF(IS_HERE) -> assert(released[r] || ALL_OF(IS_RIGHT)); e++ }
#ifndef STAY
                :: atomic { released[r] -> leave(r) }
#endif
#ifdef LEAVE_ALONE
                :: atomic { failed[r] -> assert(released[r] || ALL_OF(IS_RIGHT)); e++ }
#endif
                fi
            fi;
            atomic {
                waits[r] = 0;
                finished[r] = k;
                k++
            }
        od
    } unless {
        gone[r]
    }
}

/* check_departures and check_shared_failure */
proctype Monitor(byte r)
{
    {
        skip;
end_watch:
        do
        :: !lost[r] && !released[r] && ANY_OF(DEPARTED) -> lost[r] = true
#ifndef CALLS_ONLY
        :: !failed[r] && !released[r] && ANY_OF(DEPARTED) && MISSES(r) -> fail(r)
#endif
        :: published && !failed[r] -> failed[r] = true
        od
    } unless {
        gone[r]
    }
}

proctype Killer()
{
    byte victim = 0;
    if
    :: skip
    :: troubles < TROUBLES ->
        select(victim : 0 .. N - 1);
        atomic {
            if
            :: troubles < TROUBLES -> troubles++; gone[victim] = true
            :: else
            fi
        }
    fi
}

/* When nothing goes on any more. */
proctype End()
{
end_of_all:
    timeout ->
    assert(!ANY_OF(WAITS_UNTOLD));
    assert(!ANY_OF(WAITS_ENDED));
    assert(troubles > 0 || !ANY_OF(IS_TOLD))
}

init
{
    byte r = 0;
    atomic {
        for (r : 0 .. N - 1) {
            run Program(r);
            run Device(r);
            run Monitor(r)
        }
        run Killer();
        run End()
    }
}
