/* SPDX-License-Identifier: MIT */
/*
 * group.pml - attach: calls alone and in groups, until a communicator is served or falls back
 *
 * All ranks run one program: CALLS calls on COMMS communicators, counted (of a kind that has kernels: allreduce,
 * all-gather, reduce-scatter, broadcast) or not (reduce, send), alone or in groups. The ranks of a communicator decide yes or no at any time; the decision takes effect at a call of each rank.
 * One rank may estimate a group before it makes the group. On one rank, a call or a group may be rejected, at a wrong
 * argument or at any other call; the rank makes it again. No call waits: cutover.pml has the waits. Mutations:
 * BACKGROUND, KEEP_COUNTED, COUNT_ESTIMATE, COUNT_WRONG_CALL, COUNT_FAILED_CALL, COUNT_REJECTED_GROUP, FIRST_FIRST,
 * SERVED_EARLY.
 */
#include "ranks.pml"
#ifndef COMMS
#define COMMS 1
#endif
#ifndef CALLS
#define CALLS 3 /* on all communicators */
#endif
#ifndef ESTIMATES
#define ESTIMATES 1 /* of one rank, at most */
#endif
#ifndef REJECTS
#define REJECTS 1 /* of one rank, at most */
#endif
#define AT(c, r) ((c) * N + (r))
mtype = { alone, inside, last }; /* not in a group, in a group, as the last call of a group */
mtype = { pending, yes, no };
mtype = { none, nccl, onehop };
mtype = { idle, attaching, cutover, served, fallback }; /* enum oh_comm_state */

/* The program. The first rank that makes a call chooses it. */
mtype place[CALLS] = none;
byte comm_of[CALLS];
bool is_counted[CALLS];
mtype way[CALLS] = none; /* how the call went, whoever made it */

byte begun[COMMS]; /* ranks */
mtype decision[COMMS] = pending;
byte noted[COMMS * N]; /* the word of a rank: the number, and */
bool closed[COMMS * N];

/* Of a rank: struct oh_comm, struct oh_call, struct group */
#define IS_SETTLED (state[c] == served || state[c] == fallback)
#define IS_UNDECIDED (is_counted[i] && !IS_SETTLED)
#define IS_PAST_CUTOVER (state[c] == served || (state[c] == cutover && calls[c] + 1 >= first[c]))
#define FALL_BACK state[c] = (state[c] == attaching && decision[c] == no -> fallback : state[c])

/* must_keep */
#if defined(KEEP_COUNTED)
#define MUST_KEEP (keeps && IS_UNDECIDED)
#elif defined(BACKGROUND)
#define MUST_KEEP (keeps && state[c] != fallback)
#else
#define MUST_KEEP keeps
#endif

/* decide_kept: a kept call is made at the end of the group. */
#ifdef COUNT_ESTIMATE
#define IS_MADE (kept[j] && !is_rejected)
#else
#define IS_MADE (kept[j] && !is_rejected && !is_estimate)
#endif

/* The numbers of an estimate, or of a rejected group, are given again. */
#if defined(COUNT_ESTIMATE) || defined(COUNT_WRONG_CALL)
#define TAKES_BACK !is_estimate
#elif defined(COUNT_REJECTED_GROUP)
#define TAKES_BACK (place[start] == alone)
#else
#define TAKES_BACK true
#endif

inline choose()
{
    if
    :: place[i] == none ->
        if
        :: i == 0 || place[i - 1] != inside -> place[i] = alone
        :: i + 1 < CALLS -> place[i] = inside
        :: place[i] = last
        fi;
        select(k : 0 .. (i > 0 -> COMMS - 1 : 0)); comm_of[i] = k;
        select(k : 0 .. 1); is_counted[i] = k;
        k = 0
    :: else
    fi
}

/* The program makes call i: begin_alone, or oh_group_add with keep. */
inline add()
{
    choose();
    c = comm_of[i];
    if :: i == start && place[i] != alone && estimates > 0 -> estimates--; is_estimate = true :: true fi;
#ifdef BACKGROUND
    if :: FALL_BACK :: true fi;
#endif
    if :: is_counted[i] && state[c] == idle -> state[c] = attaching; begun[c]++ :: else fi; /* oh_attach_begin */
    if
    :: place[i] != alone && rejects > 0 && !is_rejected -> /* a wrong argument: oh_call_is_valid */
        rejects--;
        is_rejected = true;
        is_wrong = true
    :: keeps = keeps || (place[i] != alone && IS_UNDECIDED); kept[i] = MUST_KEEP
    fi;
    j = i;
    i++;
    is_adding = (place[j] == inside)
}

/* oh_attach_end_call of call q, which is not executed, with oh_cutover_retract */
inline take_back(q)
{
    d_step {
        c = comm_of[q];
        if
        :: number[q] != 0 && !IS_SETTLED ->
            noted[AT(c, r)] = noted[AT(c, r)] - (!closed[AT(c, r)] && noted[AT(c, r)] == number[q]);
            calls[c]--
        :: else
        fi
    }
}

/* Call `next` begins the next group, or the same once more. */
inline end_group(next)
{
    for (x : start .. made - 1) { how[x] = none; number[x] = 0; kept[x] = false }
    start = next; i = next; made = next; given = (given > next -> next : given);
    x = 0; c = 0; j = 0; is_adding = true; keeps = false; is_estimate = false; is_rejected = false
}

/* end_calls of a group that NCCL has accepted, with oh_attach_enter_served */
inline accept()
{
    for (x : start .. i - 1) {
        c = comm_of[x];
        assert(way[x] == none || way[x] == how[x]); /* all ranks have the call go the same way */
        way[x] = how[x];
        state[c] = (how[x] == onehop -> served : state[c])
    }
    end_group(i)
}

proctype Rank(byte r; byte estimates; byte rejects)
{
    mtype state[COMMS] = idle, how[CALLS] = none;
    byte calls[COMMS], first[COMMS], number[CALLS];
    byte start, made, i, given; /* first call of the group; next to make at the end, to add; NCCL's last call, plus 1 */
    byte j, c, k, x;
    bool kept[CALLS], is_adding = true, keeps, is_estimate, is_rejected, is_wrong, counts, on;
next:
    atomic { /* up to a call that is made */
        do
        :: is_adding -> add(); if :: kept[j] :: else -> break fi
        :: !is_adding && made < i -> j = made; made++; if :: IS_MADE -> break :: else fi /* decide_kept */
        :: !is_adding && made == i && (is_rejected || is_estimate) -> goto again
        :: !is_adding && made == i && !is_rejected && !is_estimate ->
            accept();
            if :: i == CALLS -> goto done :: else fi
        od;
        c = comm_of[j]; /* oh_call_route: oh_attach_count with fall_back and count_call */
        FALL_BACK;
        counts = is_counted[j];
        on = (counts && state[c] == attaching && decision[c] == yes)
    };
    do
    :: d_step {
        counts && state[c] == attaching && !on && k == 0 -> /* oh_cutover_announce */
            on = closed[AT(c, r)] || noted[AT(c, r)] != calls[c];
            noted[AT(c, r)] = (on -> noted[AT(c, r)] : calls[c] + 1);
            k = (on -> 0 : N)
    }
    :: d_step {
        on && k < N -> /* oh_cutover_close: one word in one step, the words one after the other */
            assert(decision[c] == yes);
            closed[AT(c, k)] = true;
            first[c] = (noted[AT(c, k)] >= first[c] -> noted[AT(c, k)] + 1 : first[c]);
            k++
    }
    :: else -> break
    od;
    atomic {
        state[c] = (on -> cutover : state[c]);
        how[j] = (counts && IS_PAST_CUTOVER -> onehop : nccl);
        number[j] = (counts && how[j] == nccl && state[c] != fallback -> calls[c] + 1 : 0);
        calls[c] = calls[c] + (number[j] > 0);
#ifdef SERVED_EARLY
        state[c] = (how[j] == onehop -> served : state[c]);
#endif
        assert(how[j] == onehop || is_wrong || j >= given); /* NCCL gets its calls in the program's order */
        given = (how[j] == nccl && !is_wrong -> j + 1 : given);
        k = 0; c = 0; on = false; counts = false; is_wrong = false
    };
    if /* NCCL rejects call j, or its group; or onehop fails call j: make */
    :: rejects > 0 && !is_rejected && !is_estimate ->
        rejects--;
        is_rejected = true;
#ifdef COUNT_FAILED_CALL
        number[j] = (place[j] == alone -> number[j] : 0)
#endif
    :: true
    fi;
    goto next;
again:
    x = start;
    do
    :: x < i && TAKES_BACK ->
#ifdef FIRST_FIRST
        take_back(x);
#else
        take_back(start + i - 1 - x);
#endif
        x++
    :: else -> break
    od;
    atomic { end_group(start) };
    goto next;
done:
    skip
}

/* A rank votes yes once all have begun, and no at any time. */
proctype Ranks(byte c)
{
    if
    :: begun[c] == N -> decision[c] = yes
    :: decision[c] = no
    fi
}

/* The ranks are alike: rank 0 estimates. */
init
{
    byte r, rejecter;
    atomic {
        select(rejecter : 0 .. 1);
        for (r : 0 .. N - 1) { run Rank(r, (r == 0 -> ESTIMATES : 0), (r == rejecter -> REJECTS : 0)) }
        for (r : 0 .. COMMS - 1) { run Ranks(r) }
        r = 0; rejecter = 0
    }
}
