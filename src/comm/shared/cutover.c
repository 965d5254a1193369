/* SPDX-License-Identifier: MIT */
/*
 * cutover.c - the number of the first served call, agreed in shared memory
 *
 * Does: Implements the compare-and-swap protocol that segment.h describes.
 * Threads: any rank and thread; no lock, no wait.
 * Owns: nothing; the words lie in the segment.
 */
#include "comm/shared/segment.h"

#define CLOSED (UINT64_C(1) << 63)

/*
 * A compare-and-swap and a fetch_or on one word are totally ordered: either the number is stored before the word is
 * closed and every oh_cutover_close reads it, or the compare-and-swap fails. No order between words is needed. acq_rel
 * pairs with the fetch_or, and publishes what the rank prepared before its vote.
 */
bool oh_cutover_announce(struct oh_cutover *cutover, uint32_t rank, uint64_t number)
{
    uint64_t before = number - 1;
    return atomic_compare_exchange_strong_explicit(&cutover->rank[rank].word, &before, number, memory_order_acq_rel,
                                                   memory_order_acquire);
}

void oh_cutover_retract(struct oh_cutover *cutover, uint32_t rank, uint64_t number)
{
    atomic_compare_exchange_strong_explicit(&cutover->rank[rank].word, &number, number - 1, memory_order_acq_rel,
                                            memory_order_relaxed);
}

uint64_t oh_cutover_close(struct oh_cutover *cutover, uint32_t nranks)
{
    uint64_t last = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        uint64_t noted = atomic_fetch_or_explicit(&cutover->rank[r].word, CLOSED, memory_order_acq_rel) & ~CLOSED;
        last = noted > last ? noted : last;
    }
    return last + 1;
}

bool oh_cutover_is_after(const struct oh_cutover *cutover, uint32_t nranks, uint64_t number)
{
    bool is_after = false;
    for (uint32_t r = 0; r < nranks; r++) {
        is_after |= (atomic_load_explicit(&cutover->rank[r].word, memory_order_relaxed) & ~CLOSED) >= number;
    }
    return is_after;
}
