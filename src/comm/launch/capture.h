/* SPDX-License-Identifier: MIT */
/*
 * capture.h - captured calls of a communicator
 *
 * Inside of src/comm. Functions are called in the communicator's context, by the thread that uses the communicator.
 */
#ifndef OH_COMM_LAUNCH_CAPTURE_H_
#define OH_COMM_LAUNCH_CAPTURE_H_

#include "comm/comm_internal.h"

/* A capture with calls of this communicator, ours or NCCL's. It lives until the graph, and all made from it, are gone.
 */
struct oh_capture {
    struct oh_capture *next; /* the list belongs to the thread that uses the communicator */
    struct oh_comm *comm;
    cuuint64_t id;         /* unique in the process */
    CUgraph graph;         /* these mean something while the capture is under way; NULL: it could not be used */
    CUstream stream;       /* of its newest call */
    CUgraphNode *frontier; /* what work on that stream came after, behind the call: of ours, its kernel */
    size_t frontier_count;
    CUgraphNode record;    /* of OH_EVENT_LAUNCH, behind the newest call; NULL: none */
    CUgraphNode kernel;    /* the newest of ours; NULL: none, or not known */
    atomic_bool destroyed; /* the graph is: the entry may be freed */
};

/* The entry of a capture under way; NULL: it has none yet, or cannot be used. */
struct oh_capture *oh_capture_find(const struct oh_comm *comm, cuuint64_t id);

/* Orders the next work of the stream after the communicator's calls in its capture, whose entry becomes *capture_p. */
CUresult oh_capture_before(struct oh_comm *comm, const struct oh_stream_state *stream_state,
                           struct oh_capture **capture_p);

/* Notes the stream's newest work as the capture's, and moves the record node behind it. */
CUresult oh_capture_after(struct oh_capture *capture, CUstream stream);

/*
 * After each kernel of the submission. In a capture, if the kernel comes after one node alone: a kernel of the
 * communicator gets an early trigger, unless it has one (`linked`); a kernel of the program lets this one be launched
 * early (gpu/pipeline.h). Fails only if the order of the two is lost; what else goes wrong leaves the capture as it
 * was.
 */
CUresult oh_capture_link(const struct oh_submission *submission, bool linked);

/* Frees the list of captures: no graph may be left. */
void oh_captures_free(struct oh_comm *comm);

#endif
