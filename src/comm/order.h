/* SPDX-License-Identifier: MIT */
/*
 * order.h - the order of a communicator's launches, whatever streams and graphs they are on
 *
 * Inside of src/comm. Every function is called in the communicator's context, by the thread that uses the
 * communicator; graph destructors run on a thread of the driver and touch atomics only.
 */
#ifndef OH_COMM_ORDER_H_
#define OH_COMM_ORDER_H_

#include "comm/comm.h"

/* A capture with calls of this communicator, ours or NCCL's. It lives until the graph, and all made from it, are gone.
 */
struct oh_capture {
    struct oh_capture *next; /* the list belongs to the thread that uses the communicator */
    struct oh_comm *comm;
    cuuint64_t id;       /* unique in the process */
    CUgraph graph;       /* these mean something while the capture is under way; NULL: it could not be used */
    CUstream stream;     /* of its newest call */
    CUgraphNode *newest; /* what work on that stream came after, behind the call: of ours, its kernel */
    size_t newest_count;
    CUgraphNode record; /* of the event last_call, behind the newest call; NULL: none */
    CUgraphNode kernel; /* the newest of ours; NULL: none, or not known */
    atomic_bool gone;   /* the graph is: the entry may be freed */
};

/* Where a stream is now. */
CUresult oh_order_look(const struct oh_comm *comm, CUstream stream, struct oh_place *place_p);

/* Puts the burst's stream behind the last launch, in the world (eager, or one graph) that the stream is in now. */
CUresult oh_order_before(struct oh_burst *burst);

/* After each kernel of the burst. In a capture it may make a row of it and the one before (gpu/row.h). Cannot fail. */
void oh_order_launched(const struct oh_burst *burst);

/* Notes the launches of the burst as the last ones. */
CUresult oh_order_after(struct oh_burst *burst);

/* Frees the list of captures: no graph may be left. */
void oh_order_free(struct oh_comm *comm);

#endif
