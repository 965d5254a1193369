/* SPDX-License-Identifier: MIT */
/*
 * launch.h - the steps of a launch: decide, order, capture, verify
 *
 * Does: The parts of a launch, a file each. submit.c: launches the calls of a submission. decide.c: whether the table
 *    serves a call, in which parts it is launched, and with which other calls. verify.c: which calls NCCL makes, too,
 *    and the comparison. order.c: orders launches, and fails those that cannot be ordered. nccl.c: orders calls that
 *    NCCL serves. capture.c: keeps, for each capture, the nodes after which its next call comes, and the record node.
 * Threads: the one that uses the communicator, in the communicator's context; where a function says so, any.
 * Owns: the entries of captures.
 */
#ifndef OH_COMM_LAUNCH_LAUNCH_H_
#define OH_COMM_LAUNCH_LAUNCH_H_

#include "comm/comm_internal.h"

/* --- submit.c ----------------------------------------------------------------------------------------------------- */

/*
 * Calls of one communicator that the application made together: one alone, or those of a group. As in NCCL, a group
 * on several streams starts after the earlier work of each of these streams, and their later work after all of it.
 * Use: set calls and count, advance until launched == count. Submissions of other communicators may advance in between.
 */
#define OH_SUBMISSION_QUANTUM 16 /* kernels after which a turn ends */
struct oh_submission {
    const struct oh_call *calls;
    size_t count;
    size_t launched;                     /* calls */
    size_t kernels;                      /* that are launched */
    size_t turn_end;                     /* kernels after which the present turn ends */
    uint64_t done;                       /* elements of the next call that are launched */
    uint32_t call_number;                /* of the next call, or call list */
    struct oh_stream_state stream_state; /* of its stream, the first call's; known from the first turn on */
    struct oh_capture *capture;          /* NULL: eager */
};

/*
 * Takes a turn. oh_submission_leave instead of further turns: notes what was launched. Each returns ncclSuccess, the
 * error of the communicator, or ncclUnhandledCudaError (logged at WARN). After an error the submission is over, and the
 * communicator has failed: this rank may have launched fewer kernels than the others. A capture is invalid then. (If
 * the program's capture was invalid before, the communicator stays as it was.)
 */
ncclResult_t oh_submission_advance(struct oh_submission *submission);
ncclResult_t oh_submission_leave(struct oh_submission *submission);

/* A submission of one call, from begin to end. The communicator is in use. */
ncclResult_t oh_call_launch(const struct oh_call *call);

/*
 * Orders the later work of the stream `to` after the earlier work of `from`, of a communicator that is served; both are
 * captured by one graph, or neither is. Returns ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_join(struct oh_comm *comm, CUstream from, CUstream to);

/* Looks for a profiler that wants ranges around launches (util/nvtx.h). */
void oh_ranges_start(void);

/* --- decide.c ----------------------------------------------------------------------------------------------------- */

/*
 * Returns whether no NCCL rejects the arguments (ArgsCheck, src/misc/argcheck.cc of 2.28.9). A call that NCCL would
 * reject is not kept, waits for no rank and fails no communicator: the program gets the error from the call itself.
 */
bool oh_call_is_valid(const struct oh_call *call);

/*
 * Decides by the agreed table whether onehop executes a call past the cutover, of any kind: OH_FALLBACK_NONE; then op
 * and plan of the call are set. Else returns why NCCL does. Depends only on what is equal on all ranks.
 */
enum oh_fallback oh_call_decide(struct oh_call *call);

/* Returns the bytes of the larger buffer, which the table goes by. */
uint64_t oh_call_bytes(const struct oh_call *call);

/* Return count and stride as the kernels have them (kernels/abi.h) for `count` elements of the call. */
uint64_t oh_call_elements(const struct oh_call *call, uint64_t count);
uint64_t oh_call_stride(const struct oh_call *call);

/* Returns the elements of each part of the call, but for the last, which may have fewer: one kernel each. */
uint64_t oh_call_part_count(const struct oh_call *call);

/*
 * Kernel fusion: a launch and a hop cost the same for any size, so consecutive calls of a group of one kind share one
 * launch, as long as the table serves a message as large as all of them; those that reduce only with the same datatype
 * and op. What decides is the same on all ranks, which pointers and streams are not.
 *
 * Returns how many of the first calls share a launch: 1 (an ordinary launch) to OH_LIST_CALLS. count > 0; all calls of
 * one communicator.
 */
size_t oh_fuse_count(const struct oh_plan_table *table, const struct oh_call *calls, size_t count);

/* Fills in calls, words and items of the list for the first `count` calls, as oh_fuse_count returned, and the plan. */
void oh_fuse_list(const struct oh_plan_table *table, const struct oh_call *calls, size_t count,
                  struct oh_kernel_list_args *list_p, struct oh_plan *plan_p);

/* --- verify.c ----------------------------------------------------------------------------------------------------- */

/*
 * ONEHOP_VERIFY, where comm->verify.interval is not 0. oh_verify_choose for each call that onehop executes, in the
 * order of their launches; `before`: so many are before it in its group. Returns whether NCCL makes the call, too,
 * before onehop: the same on all ranks. Then oh_verify_call is NCCL's call, and if oh_verify_magnitudes returns true,
 * NCCL makes *sum_p as well. oh_verify_prepare launches what runs before NCCL's part, on `stream`;
 * oh_verify_compare the comparison behind the call's last kernel. Both return the driver's result.
 */
bool oh_verify_choose(struct oh_call *call, size_t before);
struct oh_call oh_verify_call(const struct oh_call *call);
bool oh_verify_magnitudes(const struct oh_call *call, struct oh_call *sum_p);
CUresult oh_verify_prepare(const struct oh_call *call, CUstream stream);
CUresult oh_verify_compare(struct oh_submission *submission, const struct oh_call *call);

/* --- order.c ------------------------------------------------------------------------------------------------------ */

/* Asks the driver for the state of the stream. Returns the driver's result; after a failure it is not known. */
CUresult oh_order_get_stream(struct oh_stream_state *stream_state);

/* Orders an eager stream after the last launch; records launches on it as the last ones. */
CUresult oh_order_follow_launches(struct oh_comm *comm, const struct oh_stream_state *stream_state);
CUresult oh_order_record_launch(struct oh_comm *comm, const struct oh_stream_state *stream_state);

/* CUDA_SUCCESS: no kernel that a call has launched runs. A replay counts until its graph is destroyed. Any thread. */
CUresult oh_order_query(const struct oh_comm *comm);

/*
 * The same at the end of the communicator. Where graphs have no event nodes, no event tells of a replay, so each graph
 * counts until it is destroyed: NCCL waits for that, too (commDestroySync, src/init.cc of 2.28.9). Any thread.
 */
CUresult oh_order_query_end(const struct oh_comm *comm);

/*
 * Whether the capture of the stream was invalid before. Such a capture is never replayed, so no rank has launched more
 * kernels than another.
 */
static inline bool oh_order_is_void(CUresult result)
{
    return result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/*
 * Returns `result`. After a failure invalidates the capture of the stream, unless there is none, so that nothing of it
 * can be replayed; not before the ranks have agreed.
 */
CUresult oh_order_pass_on(struct oh_comm *comm, const struct oh_stream_state *stream_state, CUresult result);

/*
 * After a failure: votes no, if this rank still can, unless only the capture of the stream was invalid before. Returns
 * true if NCCL can have the call: the ranks had not agreed. False: the communicator is served, or will be. Any thread.
 */
bool oh_order_withdraw(struct oh_comm *comm, CUresult result);

/*
 * A driver error in `what`. Returns ncclSuccess if the ranks had not agreed, so that NCCL can have the call.
 * Returns ncclUnhandledCudaError (logged at WARN) if the communicator is served, or will be: then it has failed, unless
 * only the capture of the stream was invalid before. Any thread.
 */
ncclResult_t oh_order_fail(struct oh_comm *comm, CUresult result, const char *what);

/* In the thread that uses the communicator, whose call returns `res`: an error stops this rank's graphs. */
ncclResult_t oh_order_refuse(struct oh_comm *comm, ncclResult_t res);

/*
 * Returns ncclSuccess if `result` is CUDA_SUCCESS. Else a call on the stream has failed in `what`, and returns as
 * oh_order_fail: once the ranks have agreed, nothing of the stream's capture can be replayed, and the error stops this
 * rank's graphs. The thread that uses the communicator.
 */
ncclResult_t oh_order_check(struct oh_comm *comm, const struct oh_stream_state *stream_state, CUresult result,
                            const char *what);

/* --- nccl.c ------------------------------------------------------------------------------------------------------- */

/* Orders an eager stream after the last call that NCCL has served, if no call of onehop's follows that yet. */
CUresult oh_order_follow_nccl(struct oh_comm *comm, const struct oh_stream_state *stream_state);

/* Are calls that NCCL serves ordered with onehop's? From the begin of the set-up on, unless it falls back. */
bool oh_comm_is_ordered(const struct oh_comm *comm);

/*
 * The capture that a stream is in: a number that no other capture has, 0: none. The communicator is ordered. Returns
 * ncclSuccess or ncclUnhandledCudaError (logged as WARN).
 */
ncclResult_t oh_comm_capture(struct oh_comm *comm, CUstream stream, cuuint64_t *capture_p);

/* Returns whether the stream is known to be captured, for the thread that uses an ordered communicator. */
bool oh_order_is_captured(struct oh_comm *comm, CUstream stream);

/*
 * Around a call that NCCL serves on `stream`, of a communicator that is ordered: orders it after our launches, and our
 * later launches after it. What is not ordered: doc/design.md, "Order". *call_p is for the second function, which is
 * called if NCCL has accepted the call. It returns ncclSuccess, or ncclUnhandledCudaError (logged at WARN) if the
 * driver has failed in either: then the communicator has failed. launch: 0, or NCCL still launches the call
 * (ncclInProgress), and oh_order_new_launch has named the launch, for all communicators that have calls in it:
 * oh_order_nccl_launched, on any thread, notes these calls when NCCL has launched them; until then oh_comm_is_launching
 * is true. Its `launch` is what oh_order_launch returned before NCCL's state was read: a call that has begun since is
 * not noted.
 */
void oh_order_before_nccl(struct oh_comm *comm, CUstream stream, bool needs_all_ranks, struct oh_nccl_call *call_p);
unsigned oh_order_new_launch(bool is_shared);
ncclResult_t oh_order_after_nccl(struct oh_comm *comm, struct oh_nccl_call *call, unsigned launch);
unsigned oh_order_launch(const struct oh_comm *comm);
void oh_order_nccl_launched(struct oh_comm *comm, unsigned launch);
bool oh_comm_is_launching(const struct oh_comm *comm);

/* --- capture.c ---------------------------------------------------------------------------------------------------- */

/* A capture with calls of this communicator, onehop's or NCCL's. Lives as long as the graph and its executables. */
struct oh_capture {
    struct oh_capture *next; /* the list belongs to the thread that uses the communicator */
    struct oh_comm *comm;
    cuuint64_t id;         /* unique in the process */
    CUgraph graph;         /* valid, as the following, during the capture; NULL: the capture cannot be used */
    CUstream stream;       /* of its newest call */
    CUgraphNode *frontier; /* the nodes on which the stream's work after that call depends */
    size_t frontier_count;
    CUgraphNode record;    /* of OH_EVENT_LAUNCH, after the newest call; NULL: none */
    CUgraphNode kernel;    /* onehop's newest, if kernels can overlap; NULL: none, or unknown */
    CUgraphNode fence;     /* an empty node behind it, which alone the program's nodes can follow; NULL: none */
    atomic_bool destroyed; /* the graph is: the entry may be freed */
};

/* The entry of a capture under way; NULL: it has none yet, or cannot be used. */
struct oh_capture *oh_capture_find(const struct oh_comm *comm, cuuint64_t id);

/* Orders the next work of the stream after the communicator's calls in its capture, whose entry becomes *capture_p. */
CUresult oh_capture_before(struct oh_comm *comm, const struct oh_stream_state *stream_state,
                           struct oh_capture **capture_p);

/*
 * Around the calls of a submission. A fence is an empty node behind onehop's newest kernel, on which all further nodes
 * of the stream depend: so only onehop's nodes depend on the kernel, which may trigger their launch. oh_capture_fence
 * puts it behind the last kernel; oh_capture_unfence has the next kernel follow the last kernel directly, if nothing
 * else is behind the fence on the stream.
 */
CUresult oh_capture_fence(struct oh_capture *capture, CUstream stream);
CUresult oh_capture_unfence(struct oh_capture *capture, CUstream stream);

/* The stream's newest work becomes the frontier, and the record node moves behind it. */
CUresult oh_capture_after(struct oh_capture *capture, CUstream stream);

/*
 * After each kernel of the submission. In a capture, if the kernel depends on a single kernel: a kernel of the
 * communicator triggers the launch of this kernel; behind a kernel of the program this kernel is launched early
 * (gpu/edge.c). Fails only if the order of the two is lost; any other error leaves the capture as it was.
 */
CUresult oh_capture_link(const struct oh_submission *submission);

/* Frees the entries whose graphs are destroyed, or all. */
void oh_captures_free(struct oh_comm *comm, bool all);

#endif
