/* SPDX-License-Identifier: MIT */
/*
 * switch.pml - late attach: the number of the first call that is served
 *
 * Each rank makes calls; a thread of its own finds out that all ranks are ready and closes the words. NCCL may reject
 * a call, whose number is then given again. Mutations: NOTE_AFTER, NOTE_BLIND, NO_PLUS_ONE, OWN_ONLY, READ_ONLY,
 * SETTLE_PASSING, COUNT_REJECTED.
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef REJECTS
#define REJECTS 1 /* of a rank, at most */
#endif
mtype = { none, nccl, onehop };

byte noted[N]; /* the word of a rank: the number, and */
bool closed[N];
byte votes;
byte calls[N], first[N]; /* struct oh_late */
bool passing[N], settled[N], mutex[N];
mtype way[CALLS + 1] = none; /* how call k went, whoever made it */

/*
 * What a thread does with the mutex held is one step, as far as it looks at one word of the meeting at most: the rest
 * concerns its rank alone.
 */
#define locked(r) !mutex[r] -> mutex[r] = true

/* oh_switch_close: one word in one step, the words one after the other. The mutex is held. */
inline switch_on(r)
{
    if
    :: first[r] == 0 ->
        do
        :: k < N ->
            d_step {
#ifndef READ_ONLY
                closed[k] = true;
#endif
#ifdef OWN_ONLY
                x = (k == r && noted[k] > x -> noted[k] : x);
#else
                x = (noted[k] > x -> noted[k] : x);
#endif
                k++
            }
        :: else -> break
        od;
        atomic {
#ifdef NO_PLUS_ONE
            first[r] = (x > 0 -> x : 1);
#else
            first[r] = x + 1;
#endif
            k = 0;
            x = 0
        }
    :: else
    fi;
    settle_when_reached(r)
}

inline settle_when_reached(r)
{
    d_step {
        if
#ifdef SETTLE_PASSING
        :: first[r] != 0 && calls[r] + 1 >= first[r] -> settled[r] = true
#else
        :: first[r] != 0 && !passing[r] && calls[r] + 1 >= first[r] -> settled[r] = true
#endif
        :: else
        fi
    }
}

/* Call number `number` has gone this way on a rank, and is not taken back. */
inline went(number, how)
{
    d_step {
        assert(way[number] == none || way[number] == how);
        way[number] = how
    }
}

/* oh_switch_note */
inline note(r)
{
    d_step {
        if
#ifdef NOTE_BLIND
        :: true -> noted[r] = calls[r] + 1; counted = true
#elif defined(NOTE_AFTER)
        :: !closed[r] -> counted = true
#else
        :: !closed[r] && noted[r] == calls[r] -> noted[r] = calls[r] + 1; counted = true
#endif
        :: else
        fi
    }
}

/* oh_switch_retract */
inline retract(r)
{
    d_step {
        if
        :: !closed[r] && noted[r] == calls[r] -> noted[r] = calls[r] - 1
        :: else
        fi
    }
}

/* The end of oh_comm_note_result. */
inline note_result(r)
{
#ifdef NOTE_AFTER
    noted[r] = calls[r];
#endif
    passing[r] = false;
    if
    :: !settled[r] -> settle_when_reached(r)
    :: else
    fi;
    mutex[r] = false
}

proctype Caller(byte r)
{
    byte made, rejected, k, x;
    bool served, counted;
    do
    :: made < CALLS ->
        atomic { /* oh_late_decide */
            locked(r);
            served = settled[r];
            counted = false;
            if
            :: !served && first[r] == 0 -> note(r)
            :: !served && first[r] != 0 -> settle_when_reached(r); counted = !settled[r]; served = settled[r]
            :: else
            fi
        };
        if
        :: !served && !counted -> switch_on(r); served = settled[r]
        :: else
        fi;
        atomic {
            if
            :: served -> made++; went(made, onehop)
            :: else -> calls[r]++; passing[r] = true
            fi;
            mutex[r] = false
        };
        if
        :: served
        :: atomic { !served -> locked(r); made++; went(made, nccl); note_result(r) } /* oh_comm_note_result */
        :: atomic {
            !served && rejected < REJECTS ->
            locked(r);
            rejected++;
#ifndef COUNT_REJECTED
            if
            :: settled[r]
            :: else -> retract(r); calls[r]--
            fi;
#endif
            note_result(r)
        }
        fi
    :: else -> break
    od
}

/* The rank's vote, then the decision; it may come at any time. */
proctype Setup(byte r)
{
    byte k, x;
    votes++;
    atomic { votes == N -> locked(r) };
    switch_on(r);
    mutex[r] = false
}

init
{
    byte r;
    atomic {
        for (r : 0 .. N - 1) { run Caller(r); run Setup(r) }
        r = 0
    }
}
