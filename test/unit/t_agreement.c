/* SPDX-License-Identifier: MIT */
/*
 * t_agreement.c - one word decides: whatever the ranks do and when, all of them read the same
 *
 * Ranks are threads, each with its own mapping of the segment. In each round every rank fills its slot, waits for the
 * others, and votes; some refuse, some come late. Who may open a segment: t_segment.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/shared/segment.h"
#include "test/unit/unit.h"
#include "util/clock.h"

#define ROUNDS 150
#define MS UINT64_C(1000000)

struct rank {
    uint32_t rank, nranks;
    bool refuses;
    useconds_t delay, vote_delay;
    uint64_t patience_ns;
    bool on;
    char reason[OH_REASON_BYTES];
    struct oh_segment segment;
};

/* Waits for a rank's slot; false: the decision is off, or time is up. */
static bool wait_slot(struct oh_segment *segment, uint32_t rank, uint64_t deadline)
{
    while (!atomic_load(&segment->shared->peer_info[rank].ready)) {
        if (oh_segment_decision(segment) == OH_DECISION_OFF || oh_now_ns() > deadline) {
            return false;
        }
        oh_segment_pause(0);
    }
    return oh_segment_decision(segment) != OH_DECISION_OFF;
}

/* Waits for the decision, refusing when time is up. True: on; false: off, with the reason. */
static bool wait_decision(struct oh_segment *segment, uint64_t deadline, char *reason_p)
{
    enum oh_decision decision;
    while ((decision = oh_segment_decision(segment)) == OH_DECISION_PENDING) {
        if (oh_now_ns() > deadline) {
            oh_segment_vote_no(segment, "a rank did not answer in time");
        } else {
            oh_segment_pause(0);
        }
    }
    if (decision == OH_DECISION_OFF) {
        oh_segment_reason(segment, reason_p);
    }
    return decision == OH_DECISION_ON;
}

static void *take_part(void *user)
{
    struct rank *self = user;
    uint64_t deadline = oh_now_ns() + self->patience_ns;
    usleep(self->delay);
    struct oh_peer_info *slot = &self->segment.shared->peer_info[self->rank];
    oh_peer_info_identify(slot);
    atomic_store(&slot->ready, 1);
    bool here = true;
    for (uint32_t r = 0; r < self->nranks && here; r++) {
        here = wait_slot(&self->segment, r, deadline);
    }
    usleep(self->vote_delay);
    if (self->refuses) {
        char reason[OH_REASON_BYTES];
        snprintf(reason, sizeof reason, "rank %u says no", self->rank);
        oh_segment_vote_no(&self->segment, reason);
    } else if (here) {
        oh_segment_vote_yes(&self->segment, self->nranks);
    }
    self->on = wait_decision(&self->segment, deadline, self->reason);
    oh_segment_set_peers_closed(&self->segment, self->rank);
    return NULL;
}

/* True when all ranks came to the same end; *on_p is that end. */
static bool run_round(struct rank *ranks, uint32_t n, bool *on_p)
{
    struct oh_key key = oh_key_random();
    bool same = true;
    for (uint32_t r = 0; r < n; r++) {
        ranks[r].rank = r;
        ranks[r].nranks = n;
        if (oh_segment_open(&ranks[r].segment, &key) != ncclSuccess) {
            return false;
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        same &= atomic_load(&ranks[r].segment.shared->present) == n;
        oh_segment_unlink(&ranks[r].segment);
    }
    unit_run_threads(take_part, ranks, sizeof *ranks, n);
    for (uint32_t r = 0; r < n; r++) {
        same &= ranks[r].on == ranks[0].on && strcmp(ranks[r].reason, ranks[0].reason) == 0;
        same &= oh_segment_is_unreferenced(&ranks[r].segment, r, n);
        oh_segment_discard(&ranks[r].segment);
    }
    *on_p = ranks[0].on;
    return same;
}

/* Tight: deadlines fall while the votes come in. Then the decision is on or off, but the same for all. */
static void test_rounds(unsigned seed, bool is_tight)
{
    int split = 0, wrong = 0, on_count = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t n = 2 + (uint32_t)rand_r(&seed) % (is_tight ? 3 : 7);
        struct rank ranks[OH_MAX_RANKS] = {0};
        bool refused = false, on = false;
        for (uint32_t r = 0; r < n; r++) {
            ranks[r].refuses = !is_tight && rand_r(&seed) % 10 == 0;
            ranks[r].delay = (useconds_t)(rand_r(&seed) % (is_tight ? 1500 : 3000));
            ranks[r].vote_delay = (useconds_t)(rand_r(&seed) % (is_tight ? 1500 : 500));
            ranks[r].patience_ns = is_tight ? (uint64_t)(rand_r(&seed) % 4000) * 1000 : 5000 * MS;
            refused |= ranks[r].refuses;
        }
        split += !run_round(ranks, n, &on);
        wrong += !is_tight && on == refused;
        on_count += on;
    }
    tap_ok(split == 0 && wrong == 0, "%d rounds%s: all ranks of each read the same decision and reason, %d times on",
           ROUNDS, is_tight ? " with deadlines in the middle" : ", on where no rank refuses", on_count);
}

static void test_keys(void)
{
    ncclUniqueId a, b;
    memset(&a, 7, sizeof a);
    b = a;
    struct oh_key ka = oh_key_of_ids(&a, 1), kb = oh_key_of_ids(&b, 1);
    tap_ok(oh_key_compare(&ka, &kb) == 0, "equal ids give equal keys");
    ((char *)&b)[sizeof b - 1] ^= 1;
    kb = oh_key_of_ids(&b, 1);
    tap_ok(oh_key_compare(&ka, &kb) != 0, "one bit of the id changes the key");
    struct oh_key s0 = oh_key_of_split(&ka, 0, 1), s1 = oh_key_of_split(&ka, 1, 1), s2 = oh_key_of_split(&ka, 0, 2);
    tap_ok(oh_key_compare(&s0, &s1) && oh_key_compare(&s0, &s2) && oh_key_compare(&s0, &ka),
           "splits differ by number and colour");

    ncclUniqueId ids[2] = {a, b};
    struct oh_key one = oh_key_of_ids(ids, 1), two = oh_key_of_ids(ids, 2);
    tap_ok(oh_key_compare(&one, &ka) == 0 && oh_key_compare(&two, &ka) != 0,
           "one of several ids is that id, two are not");
    struct oh_key x0 = oh_key_of_shrink(&ka, 0, (const int[]){1, 2}, 2),
                  x1 = oh_key_of_shrink(&ka, 0, (const int[]){2, 1, 2}, 3),
                  x2 = oh_key_of_shrink(&ka, 0, (const int[]){2, 3}, 2),
                  x3 = oh_key_of_shrink(&ka, 1, (const int[]){1, 2}, 2),
                  x4 = oh_key_of_shrink(&ka, 0, (const int[]){3}, 1);
    tap_ok(oh_key_compare(&x0, &x1) == 0, "shrinking: the order of the excluded ranks makes no difference");
    tap_ok(oh_key_compare(&x0, &x2) && oh_key_compare(&x0, &x3) && oh_key_compare(&x0, &x4) && oh_key_compare(&x0, &s0),
           "shrinkings differ by the ranks excluded and by number");
}

int main(int argc, char **argv)
{
    unsigned seed = unit_seed(argc, argv);
    setenv("ONEHOP_DEBUG", "NONE", 1);
    test_rounds(seed, false);
    test_rounds(seed + 1, true);
    test_keys();
    return tap_done();
}
