/* SPDX-License-Identifier: MIT */
/*
 * agreement.pml - the set-up: presence, slots, votes, the one word that decides, and who may free what after a refusal
 *
 * A rank may fail at any step, may come without onehop, and one may be killed at any step; its program may end the
 * communicator whenever the set-up waits. Steps have the names of agreement.c.
 * Mutations: BLIND_REFUSE, BLIND_ON, EARLY_ON, OWN_END, NO_END, VOTE_FIRST, FILL_LATE, FREE_AT_ONCE.
 */
#include "ranks.pml"
mtype = { pending, on, off };

mtype decision = pending;
byte present, yes;
byte born; /* ranks that NCCL's creation has, its barrier */
bool filled[N], gone[N], dead[N], alive[N];
bool ready[N];          /* could launch */
bool opened[N * N];     /* [who * N + whose] memory */
bool freed[N];
mtype view[N] = pending; /* what a rank went by in the end */

/* oh_segment_vote_no */
inline refuse()
{
#ifdef BLIND_REFUSE
    decision = off
#else
    atomic { if :: decision == pending -> decision = off :: else fi }
#endif
}

/* oh_agreement_decline */
inline give_up()
{
    alive[r] = false;
    refuse()
}

/* oh_segment_is_unreferenced */
#define NOTHING_OPEN(s) (s == r || (!filled[s] && decision == off) || gone[s] || dead[s])
#define IS_OPEN(s) opened[r * N + s]

/* One peer, if its slot is filled and it is not open yet: oh_segment_decision, then the driver. */
#ifdef FILL_LATE
#define CAN_OPEN(s) !IS_OPEN(s)
#else
#define CAN_OPEN(s) (!IS_OPEN(s) && filled[s])
#endif
inline open_peer(s)
{
    if
    :: decision == off -> goto decided
    :: else
    fi;
    if
    :: give_up(); goto decided /* the way is not NVLink, the memory does not open */
    :: atomic { assert(!freed[s]); opened[r * N + s] = true }
    fi
}

proctype Rank(byte r; bool mortal)
{
    byte s, seen;
    bool counted;

    /* oh_segment_open; a rank without onehop, or without shared memory, is not counted */
    if
    :: atomic { present++; counted = true }
    :: skip
    fi;
    born++;
    born == N;
    if
    :: !counted -> goto done
    :: else -> alive[r] = true
    fi;
    if
    :: present != N -> give_up(); goto decided /* count_ranks in creation.c */
    :: else
    fi;

    /* publish */
    if
    :: decision != pending -> goto decided
    :: else
    fi;
    if
    :: mortal -> goto died
    :: give_up(); goto decided /* no memory, no driver, ... */
    :: opened[r * N + r] = true;
#ifndef FILL_LATE
        filled[r] = true
#endif
    fi;

    /* open_peers, until all are open */
    do
    :: decision != pending -> goto decided
    :: ALL_OF(IS_OPEN) -> break
    :: mortal -> goto died
#ifndef NO_END
    :: goto ended
#endif
    :: CAN_OPEN(0) -> open_peer(0)
    :: CAN_OPEN(1) -> open_peer(1)
#if N > 2
    :: CAN_OPEN(2) -> open_peer(2)
#endif
    od;
#ifdef FILL_LATE
    filled[r] = true;
#endif

    /* prepare, and oh_segment_vote_yes */
#ifndef VOTE_FIRST
    if
    :: mortal -> goto died
    :: give_up(); goto decided
    :: ready[r] = true
    fi;
#endif
    atomic { yes++; seen = yes };
    if
#ifdef EARLY_ON
    :: seen + 1 >= N ->
#else
    :: seen == N ->
#endif
        if
        :: mortal -> goto died /* the one who would have switched it on */
        :: true
        fi;
#ifdef BLIND_ON
        decision = on
#else
        atomic { if :: decision == pending -> decision = on :: else fi }
#endif
    :: else
    fi;
    seen = 0;
#ifdef VOTE_FIRST
    ready[r] = true;
#endif
    do
    :: decision != pending -> goto decided
    :: mortal -> goto died
#ifndef NO_END
    :: goto ended
#endif
    od;

ended: /* oh_attach_cancel */
#ifdef OWN_END
    alive[r] = false;
#endif
    refuse();

decided: /* oh_agreement_end */
    if
    :: alive[r] && decision == on ->
        atomic {
            view[r] = on;
            for (s : 0 .. N - 1) { assert(ready[s] && opened[r * N + s]) };
            s = 0
        }
    :: else ->
        view[r] = off;
        /* oh_comm_detach: closes, says so, and frees when nobody has it open */
        atomic {
            for (s : 0 .. N - 1) {
                if
                :: s != r -> opened[r * N + s] = false
                :: else
                fi
            };
            s = 0
        };
        gone[r] = true;
#ifndef FREE_AT_ONCE
        ALL_OF(NOTHING_OPEN);
#endif
        atomic {
            freed[r] = true;
            for (s : 0 .. N - 1) { assert(s == r || !opened[s * N + r]) };
            s = 0
        }
    fi;
    goto done;

died:
    atomic {
        dead[r] = true;
        for (s : 0 .. N - 1) { opened[r * N + s] = false };
        s = 0
    };

done:
    /* Nobody goes by another answer than the rest. */
    atomic {
        for (s : 0 .. N - 1) { assert(view[r] == pending || view[s] == pending || view[r] == view[s]) };
        s = 0
    }
}

init
{
    byte r, dies;
    atomic {
        select(dies : 0 .. N); /* N: nobody */
        for (r : 0 .. N - 1) { run Rank(r, r == dies) }
        r = 0;
        dies = 0
    }
}
