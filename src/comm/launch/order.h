/* SPDX-License-Identifier: MIT */
/*
 * order.h - the order of a communicator's launches on different streams and in graphs
 *
 * Does: Orders a submission before its first launch, and records it after its last.
 * Threads: the one that uses the communicator, in the communicator's context.
 * Owns: nothing.
 */
#ifndef OH_COMM_LAUNCH_ORDER_H_
#define OH_COMM_LAUNCH_ORDER_H_

#include "comm/comm_internal.h"

/* The state of a stream. */
CUresult oh_stream_query(CUstream stream, struct oh_stream_state *stream_state_p);

/* Orders the submission's stream after the last launch, eager or in the capture that the stream is in. */
CUresult oh_order_before(struct oh_submission *submission);

/* Records the launches of the submission as the last ones. */
CUresult oh_order_after(struct oh_submission *submission);

/*
 * After a failure: invalidates the capture of the stream, unless `stream_state` shows that there is none, so that
 * nothing of it can be replayed. A query of a stream under capture does so (CUDA programming guide, "Prohibited and
 * Unhandled Operations").
 */
void oh_order_invalidate(CUstream stream, const struct oh_stream_state *stream_state);

/*
 * A driver error in `what`. Returns ncclSuccess if the ranks had not agreed, so that all fall back: this is no failure.
 * Returns ncclUnhandledCudaError (logged at WARN) if the communicator is served, or will be: then it has failed, unless
 * only the capture of the stream was invalid before. Any thread.
 */
ncclResult_t oh_order_fail(struct oh_comm *comm, CUresult result, const char *what);

#endif
