/* SPDX-License-Identifier: MIT */
/*
 * first.h - the communicator that NCCL was creating when it opened onehop as a network plugin
 *
 * Its creator was called before the hooks were in place, so its handle is not known. What is known is what NCCL tells a
 * network plugin of version 11 or later, on every rank before the ranks meet: the communicator's hash, the same on all
 * ranks and of no other communicator, and where the plugin's context is kept, which is inside the handle. So every rank
 * publishes its presence under the hash, and the first call with a handle that onehop has not seen is looked at: does
 * this handle hold that context, and that hash? Then it is set up in the background, like any communicator that is met
 * late; no call waits. A rank that cannot tell never joins, and then all ranks go to NCCL.
 */
#ifndef OH_HOOK_FIRST_H_
#define OH_HOOK_FIRST_H_

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"

/* NCCL is creating a communicator with this hash, and keeps the plugin's context at `context`. Only the first counts.
 */
void oh_first_begin(const void *context, uint64_t hash);

/* True from oh_first_begin until the communicator has been registered: load it (acquire) before a search for a handle.
 */
extern atomic_bool oh_first_awaited __attribute__((visibility("hidden")));

/*
 * A handle that onehop does not know, in a call from the address `caller`: is it that communicator? Then it is
 * registered, and returned; NULL: it is not, or cannot be told. Thread-safe; keeps errno.
 */
struct oh_comm *oh_first_find(ncclComm_t comm, const void *caller);

/*
 * It, once it has been found. Its creator was not onehop's, and its end may be out of sight, too, where the program
 * took those addresses early: then NCCL may give the same handle to another communicator. oh_first_has_gone: it has;
 * asked at each call with that handle, which is alive. oh_first_forget: this communicator, if it is the first, ends.
 */
extern _Atomic(struct oh_comm *) oh_first_comm __attribute__((visibility("hidden")));
bool oh_first_has_gone(void);
void oh_first_forget(const struct oh_comm *comm);

#endif
