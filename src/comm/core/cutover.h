/* SPDX-License-Identifier: MIT */
/*
 * cutover.h - the call number from which all ranks of a communicator do something else
 *
 * Ranks make the same calls in the same order, but not at the same time. While they have not switched, each notes in
 * shared memory how many calls it has made, before it makes the next. Whoever has learned that all ranks are ready
 * closes the words of all ranks, each in one step; a closed word never changes again. The largest number that any rank
 * had noted, plus one, is the call from which all ranks take the new way: the same number for whoever computes it, and
 * larger than that of any call that went the old way. A rank that finds its own word closed does not wait for the one
 * who closed it: it closes the others' words itself, if they are open, and computes. So nobody ever waits.
 * doc/design.md, "Attach", has the proof. Memory of all zeros is a switch that no rank has used.
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
 * Notes that `rank` makes its call `number` (1, 2, 3, ...) the old way. True: noted, and the switch will be later than
 * this call. False: closed; oh_cutover_close tells from which call on the new way is taken, which may still be later.
 */
bool oh_cutover_announce(struct oh_cutover *cutover, uint32_t rank, uint64_t number);

/*
 * The call `number`, which was noted and is the last, has come to nothing; the next call has this number. The switch
 * may have counted it, and is then later than that next call.
 */
void oh_cutover_retract(struct oh_cutover *cutover, uint32_t rank, uint64_t number);

/* Closes the words of all ranks and returns the number of the first call that goes the new way. Never waits. */
uint64_t oh_cutover_close(struct oh_cutover *cutover, uint32_t nranks);

#endif
