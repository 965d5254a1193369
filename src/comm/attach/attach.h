/* SPDX-License-Identifier: MIT */
/*
 * attach.h - what onehop does between the creation of a communicator and its first served call
 *
 * Does: Three steps (doc/design.md, "Attach", argues why ranks always agree and why no wait can deadlock a program):
 *      presence   before NCCL creates a communicator, its ranks open one segment (segment.h) and count themselves in
 *      set-up     begins at the first call that onehop could serve: memory, peers, kernels, a vote (agreement.c)
 *      cutover    once all ranks have voted yes, the number of the first served call follows from the calls that NCCL
 *                 has served meanwhile (cutover.c): the same number on all ranks
 * Threads: the thread that uses the communicator, unless a function says any. One background thread advances the
 *    set-ups of all communicators.
 * Owns: a communicator is its creator's until it is registered.
 */
#ifndef OH_COMM_ATTACH_ATTACH_H_
#define OH_COMM_ATTACH_ATTACH_H_

#include "comm/comm_internal.h"

/* --- creation.c --------------------------------------------------------------------------------------------------- */

/* NCCL has not created the communicator. Frees it. */
void oh_creation_cancel(struct oh_comm *comm);

/*
 * NCCL has returned the handle, which the registry does not have; the creation itself may still go on in the
 * background. The caller uses it, as after oh_comm_find; oh_comm_created follows. False: there is no room in the
 * registry, and the communicator is freed.
 */
bool oh_creation_register(struct oh_comm *comm, ncclComm_t nccl);

/*
 * NCCL creates a split in the background, and writes its handle when the parent is ready again: the parent keeps it.
 * oh_creation_watch returns false if another thread has ended the parent meanwhile: the caller cancels the split.
 * oh_comm_take_children returns the list when the parent is ready, or an empty list if `begun` was read, and the state
 * with it, before a split of the list began. The caller registers or cancels each, and then calls
 * oh_comm_children_done: until then oh_comm_has_pending_creations is true of the parent.
 */
bool oh_creation_watch(struct oh_comm *comm);
struct oh_comm *oh_comm_take_children(struct oh_comm *comm, unsigned begun);
void oh_comm_children_done(struct oh_comm *comm, unsigned count);

/* What NCCL says of this rank. */
struct oh_nccl_rank {
    int rank, nranks, cuda_device;
};

/*
 * NCCL has created the communicator. All ranks were counted before NCCL's barrier: a communicator of which a rank has
 * no onehop falls back now. rank NULL: NCCL has failed to create it, and it falls back. False: this was called before,
 * and nothing is done. Any thread.
 */
bool oh_comm_created(struct oh_comm *comm, const struct oh_nccl_rank *rank);

/* --- completion.c ------------------------------------------------------------------------------------------------- */

/*
 * Ends creations after NCCL has returned `res`: with ncclSuccess, registers them by what NCCL says of this rank; with
 * ncclInProgress, registers them, or waits for their handles (oh_comm_query_nccl); else cancels them. Returns their
 * number.
 */
unsigned oh_creations_finish(const struct oh_nccl *library, struct oh_comm *list, ncclResult_t res);

/*
 * Before the end of a group: NCCL has written the handles, but for splits. Programs may copy a handle and use its
 * variable for something else: NCCL writes it once, in the creator (src/init.cc, ncclCommInitRankDev).
 */
void oh_creations_keep_handles(struct oh_comm *list);

/*
 * Queries NCCL's state of the communicator by ncclCommGetAsyncError of `nccl`. If NCCL is ready, notes the calls that
 * it has launched, and completes pending creations: of the communicator, and of its splits. Returns NCCL's result.
 */
ncclResult_t oh_comm_query_nccl(struct oh_comm *comm, const struct oh_nccl *nccl, ncclResult_t *state_p);

/* The same, if there are pending creations. */
void oh_creations_query(struct oh_comm *comm);

/*
 * Returns whether NCCL still works on a creation for which it returned ncclSuccess: the split and shrinking of a
 * non-blocking communicator, and maybe others (2.28.9 and 2.31, src/init.cc: NCCLCHECK drops ncclInProgress). The
 * handle of a split is undefined until the parent is ready; one that grows has a handle at once, whose state tells.
 */
bool oh_creation_is_in_progress(const struct oh_nccl *library, const struct oh_comm *comm);

/* --- initial.c ---------------------------------------------------------------------------------------------------- */

/* A creator that passes the hooks has succeeded. */
void oh_initial_comm_creation_end(const struct oh_nccl *nccl);

/* A communicator ends, the initial one or another; the process ends. */
void oh_initial_comm_forget(const struct oh_comm *comm);
void oh_initial_comm_end_process(void);

/* --- attach.c: calls of a communicator that is not settled, in this order ----------------------------------------- */

/* NCCL has got work of any kind on the communicator, which no event of onehop's is after. */
void oh_attach_note_work(struct oh_comm *comm);

/* The program asks for NCCL's state: before the first call, it must if the communicator is non-blocking. Any thread. */
void oh_attach_note_poll(struct oh_comm *comm);

/* NCCL is about to get the call. Begins the set-up of a communicator that is invariant. */
void oh_attach_note_call(const struct oh_call *call);

/*
 * True when the call could be served: then oh_attach_begin and oh_attach_wait are called for it before
 * oh_attach_count. Depends on what is equal on all ranks.
 */
bool oh_attach_wants(const struct oh_call *call);

/*
 * Lets a decision of the ranks take effect at this call: FALLBACK, or the cutover. Counts the call if it has a number
 * (oh_call_is_counted). Returns true if the call is past the cutover, on every rank, as all later calls; false: NCCL
 * executes it, on every rank.
 */
bool oh_attach_count(struct oh_call *call);

/* Returns whether the next call is past the cutover. For the thread that uses the communicator. */
bool oh_attach_is_past_cutover(const struct oh_comm *comm);

/* Enters SERVED, if the call is past the cutover. A call that NCCL rejects may have gone before. */
void oh_attach_enter_served(const struct oh_call *call);

/* Ends a call after oh_attach_count. is_executed false: NCCL has rejected it, and the next call gets its number. */
void oh_attach_end_call(struct oh_call *call, bool is_executed);

/* The communicator falls back for good, if its ranks have not agreed. Any thread. */
void oh_attach_cancel(struct oh_comm *comm, const char *reason);

/* --- setup.c ------------------------------------------------------------------------------------------------------ */

/* Begins the set-up if no earlier call has. `stream`: of the call, whose context becomes the communicator's. */
void oh_attach_begin(struct oh_comm *comm, CUstream stream);

/*
 * Waits until the ranks of the communicator have decided: up to 2 s after `start_ns`, when a call began to wait, or a
 * group with calls of several communicators, longer while set-ups make steps; no more after one failed wait. The thread
 * holds back its calls of all of them meanwhile.
 */
void oh_attach_wait(struct oh_comm *comm, uint64_t start_ns);

/* The communicator ends. Waits for a set-up under way, 50 ms at most: so its memory is usually free soon. */
void oh_attach_await(struct oh_comm *comm);

/* --- invariant.c -------------------------------------------------------------------------------------------------- */

/*
 * Part of oh_attach_wait for a communicator that is invariant. Waits until the ranks have decided, as long
 * as NCCL would if it waits here, else 10 s.
 */
void oh_invariant_wait(struct oh_comm *comm, uint64_t start_ns, bool nccl_waits);

/*
 * Refuses a call of a communicator that is invariant and that NCCL still creates, as NCCL does. Returns ncclSuccess, or
 * ncclInvalidArgument (logged).
 */
ncclResult_t oh_invariant_check(const struct oh_call *call);

/* --- agreement.c: a set-up under way; the background thread's once it has begun ----------------------------------- */

/*
 * Begins a set-up, in the thread that makes the first call, on `stream`: context and events, so that calls that NCCL
 * serves are ordered from now on. A failure makes it decline.
 */
void oh_agreement_begin(struct oh_comm *comm, CUstream stream);

/* The collectives that ONEHOP_COLLECTIVES names, by bit. */
uint32_t oh_agreement_collectives(void);

/* Another number after each step of a set-up in this process, or of this communicator's on any rank. */
uint32_t oh_agreement_steps(const struct oh_comm *comm);

/* Takes the steps that do not wait. OH_STEP_DONE: all ranks have decided. */
enum oh_step oh_agreement_advance(struct oh_comm *comm);

/* Ends a set-up after the decision, which takes effect at the next call. */
void oh_agreement_end(struct oh_comm *comm);

/* --- reclaim.c ---------------------------------------------------------------------------------------------------- */

/* Nobody finds the communicator any more: frees it, once threads, kernels, graphs and peers are done with it. */
void oh_comm_free(struct oh_comm *comm);

/* The communicator is not served, which is logged: gives up segment and staging memory. */
void oh_comm_detach(struct oh_comm *comm);

/* --- end.c -------------------------------------------------------------------------------------------------------- */

/* Passes later calls to NCCL, for a reason that the program's user is told. */
void oh_comm_pass_calls(struct oh_comm *comm, const char *reason);

/* The program ends the communicator: passes later calls to NCCL, and no peer waits for this rank from now on. */
void oh_comm_leave(struct oh_comm *comm, enum oh_end end);

/*
 * Logs results that differ (ONEHOP_VERIFY), and prints the statistics, once. Returns as oh_difference_log does. Called
 * when the communicator's calls have ended, as far as the program waits for them.
 */
ncclResult_t oh_comm_report_end(struct oh_comm *comm);

/*
 * Ends a communicator that this thread has removed from the registry, and the thread's use. The memory is freed when
 * nothing uses it any more.
 */
void oh_comm_retire(struct oh_comm *comm);

#endif
