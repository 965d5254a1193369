/* SPDX-License-Identifier: MIT */
/*
 * cutover.pml - attach: the first calls of communicators, and the number of the first call that is served
 *
 * Each rank makes calls on each communicator, in an order of its own. Its set-up begins with its first call, and votes
 * when all ranks' have begun; a call may wait for that, and give up at any time. NCCL, which here never waits (as for
 * the root of a broadcast), may reject a call, whose number is then given again; it may have had work before the first
 * call (WORK). Mutations: NOTE_AFTER, NOTE_BLIND, NO_PLUS_ONE, OWN_ONLY, READ_ONLY, COUNT_REJECTED, WAIT_FOREVER,
 * VOTE_UNORDERED.
 */
#include "ranks.pml"
#ifndef COMMS
#define COMMS 1
#endif
#ifndef CALLS
#define CALLS 3 /* on each communicator */
#endif
#ifndef REJECTS
#define REJECTS 1 /* of a rank, at most */
#endif
#ifndef WORK
#define WORK 0
#endif
mtype = { none, nccl, onehop };
#define AT(c, r) ((c) * N + (r))
#if COMMS > 1
#define ALL_MADE (made[0] == CALLS && made[1] == CALLS)
#else
#define ALL_MADE (made[0] == CALLS)
#endif

byte noted[COMMS * N]; /* the word of a rank: the number, and */
bool closed[COMMS * N];
byte begun[COMMS], votes[COMMS]; /* ranks */
bool asked[COMMS * N];           /* this rank has begun */
bool worked[COMMS * N], ordered[COMMS * N]; /* NCCL has had work; an event is behind it */
byte calls[COMMS * N], first[COMMS * N]; /* struct oh_attach */
bool settled[COMMS * N];
mtype way[COMMS * (CALLS + 1)] = none; /* how call k went, whoever made it */

/* oh_cutover_close: one word in one step, the words one after the other. */
inline close_switch(c, r)
{
    do
    :: k < N ->
        d_step {
#ifndef READ_ONLY
            closed[AT(c, k)] = true;
#endif
#ifdef OWN_ONLY
            x = (k == r && noted[AT(c, k)] > x -> noted[AT(c, k)] : x);
#else
            x = (noted[AT(c, k)] > x -> noted[AT(c, k)] : x);
#endif
            k++
        }
    :: else -> break
    od;
    atomic {
#ifdef NO_PLUS_ONE
        first[AT(c, r)] = (x > 0 -> x : 1);
#else
        first[AT(c, r)] = x + 1;
#endif
        k = 0;
        x = 0
    }
}

/* Call number `number` has gone this way on a rank, and is not taken back. */
inline went(c, number, how)
{
    d_step {
        assert(way[c * (CALLS + 1) + number] == none || way[c * (CALLS + 1) + number] == how);
        way[c * (CALLS + 1) + number] = how
    }
}

/* oh_cutover_announce */
inline note(c, r)
{
    d_step {
        if
#ifdef NOTE_BLIND
        :: true -> noted[AT(c, r)] = calls[AT(c, r)] + 1; counted = true
#elif defined(NOTE_AFTER)
        :: !closed[AT(c, r)] -> counted = true
#else
        :: !closed[AT(c, r)] && noted[AT(c, r)] == calls[AT(c, r)] ->
            noted[AT(c, r)] = calls[AT(c, r)] + 1;
            counted = true
#endif
        :: else
        fi
    }
}

/* count_call in attach.c */
inline decide(c, r)
{
    counted = false;
    if
    :: settled[AT(c, r)] || first[AT(c, r)] != 0
    :: else ->
        on = votes[c] == N;
        if
        :: !on -> note(c, r)
        :: else
        fi;
        if
        :: !counted -> close_switch(c, r)
        :: else
        fi
    fi;
    atomic {
        if
        :: !counted && calls[AT(c, r)] + 1 >= first[AT(c, r)] -> settled[AT(c, r)] = true
        :: else
        fi;
        served = settled[AT(c, r)];
        if
        :: !served -> calls[AT(c, r)]++
        :: else
        fi
    }
}

/* oh_attach_end_call of a call that NCCL has: an event is recorded behind it; or NCCL has rejected it. */
inline end_call(c, r)
{
    if
    :: atomic {
        true ->
        made[c]++;
        went(c, made[c], nccl);
#ifdef NOTE_AFTER
        noted[AT(c, r)] = calls[AT(c, r)];
#endif
        ordered[AT(c, r)] = true
    }
    :: atomic {
        rejected < REJECTS ->
        rejected++;
#ifndef COUNT_REJECTED
        if /* oh_cutover_retract */
        :: !closed[AT(c, r)] && noted[AT(c, r)] == calls[AT(c, r)] -> noted[AT(c, r)] = calls[AT(c, r)] - 1
        :: else
        fi;
        calls[AT(c, r)]--
#endif
    }
    fi
}

inline call(c, r)
{
    if /* oh_attach_begin */
    :: !asked[AT(c, r)] -> atomic { asked[AT(c, r)] = true; begun[c]++; first_call = true }
    :: else -> first_call = false
    fi;
    if /* oh_attach_wait */
    :: settled[AT(c, r)] || votes[c] == N
#ifdef WAIT_FOREVER
    :: !first_call
#else
    :: true /* the bound passes */
#endif
    fi;
    decide(c, r);
    if
    :: atomic {
        served ->
        assert(votes[c] == N && (!worked[AT(c, r)] || ordered[AT(c, r)]));
        made[c]++;
        went(c, made[c], onehop)
    }
    :: else -> end_call(c, r)
    fi;
    served = false;
    on = false
}

proctype Caller(byte r)
{
    byte made[COMMS], rejected, k, x;
    bool served, counted, on, first_call;
    do
    :: made[0] < CALLS -> call(0, r)
#if COMMS > 1
    :: made[1] < CALLS -> call(1, r)
#endif
#if WORK
    :: !asked[AT(0, r)] && !worked[AT(0, r)] -> worked[AT(0, r)] = true
#endif
    :: ALL_MADE -> break
    od
}

/* A rank's set-up, up to its vote (agreement.c). It needs the other ranks' memory, and no more of its program but the
 * order (note_ordered in nccl.c). */
proctype Setup(byte c; byte r)
{
    begun[c] == N;
#ifndef VOTE_UNORDERED
    !worked[AT(c, r)] || ordered[AT(c, r)];
#endif
    votes[c]++
}

/* What was begun ends, though a program that makes few calls may not come to be served. */
init
{
    byte c, r;
    atomic {
        for (r : 0 .. N - 1) {
            run Caller(r);
            for (c : 0 .. COMMS - 1) { run Setup(c, r) }
        }
        r = 0;
        c = 0
    }
}
