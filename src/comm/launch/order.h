/* SPDX-License-Identifier: MIT */
/*
 * order.h - the order of a communicator's launches, whatever streams and graphs they are on
 *
 * Inside of src/comm. Every function is called in the communicator's context, by the thread that uses the
 * communicator.
 */
#ifndef OH_COMM_LAUNCH_ORDER_H_
#define OH_COMM_LAUNCH_ORDER_H_

#include "comm/comm_internal.h"

/* Where a stream is now. */
CUresult oh_stream_query(const struct oh_comm *comm, CUstream stream, struct oh_stream_state *stream_state_p);

/* Puts the submission's stream behind the last launch, in the world (eager, or one graph) that the stream is in now. */
CUresult oh_order_before(struct oh_submission *submission);

/* Notes the launches of the submission as the last ones. */
CUresult oh_order_after(struct oh_submission *submission);

/*
 * True of an error that says only that the capture of the stream is invalid already: by the program, or by a failure
 * before. Nothing of such a capture is ever replayed, so no rank has launched more kernels than another.
 */
static inline bool oh_order_is_void(CUresult result)
{
    return result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/*
 * After a failure: makes the capture that the stream is in invalid, if `stream_state` does not tell that there is none,
 * so that nothing of the capture can be replayed. The CUDA programming guide ("Prohibited and Unhandled Operations")
 * has a query of a stream under capture do so.
 */
void oh_order_invalidate(const struct oh_comm *comm, CUstream stream, const struct oh_stream_state *stream_state);

/*
 * A call could not be put in order. True: the ranks had not agreed yet, and now all fall back, or have before: this is
 * no failure. False: the communicator is served, or will be.
 */
bool oh_order_withdraw(struct oh_comm *comm, CUresult result);

#endif
