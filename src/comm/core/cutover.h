/* SPDX-License-Identifier: MIT */
/*
 * cutover.h - the call number from which all ranks of a communicator do something else
 *
 * Does: Ranks make the same calls in the same order, at different times. Before the cutover each rank stores the number
 *    of its next call in its word. A rank that knows that all ranks are ready closes the words of all ranks, each by
 *    one atomic operation; a closed word never changes again. The largest number in the words, plus one, is the first
 *    call of the new way: every rank computes the same number, and no call of the old way has it. A rank that finds its
 *    own word closed closes the others itself; so no rank waits. doc/design.md, "Attach", has the proof. Memory of all
 *    zeros is valid.
 * Threads: any, without a lock.
 * Owns: nothing.
 */
#ifndef OH_COMM_CORE_CUTOVER_H_
#define OH_COMM_CORE_CUTOVER_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/abi.h"

struct oh_cutover {
    struct {
        _Alignas(64) _Atomic uint64_t word; /* a number of calls; its top bit: closed */
    } rank[OH_MAX_RANKS];
};

/*
 * Stores that `rank` makes its call `number` (1, 2, 3, ...) the old way. True: stored; the cutover is after this call.
 * False: closed; oh_cutover_close returns the call of the cutover, which may be after this call, too.
 */
bool oh_cutover_announce(struct oh_cutover *cutover, uint32_t rank, uint64_t number);

/*
 * The last call, of this number, was rejected; the next call has the number. If the word was closed before, the cutover
 * is after that next call.
 */
void oh_cutover_retract(struct oh_cutover *cutover, uint32_t rank, uint64_t number);

/* Closes the words of all ranks and returns the number of the first call that goes the new way. Never waits. */
uint64_t oh_cutover_close(struct oh_cutover *cutover, uint32_t nranks);

#endif
