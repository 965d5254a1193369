/* SPDX-License-Identifier: MIT */
/*
 * capture.h - captured calls of a communicator
 *
 * Does: Keeps, for each capture, the nodes after which its next call comes, and the record node.
 * Threads: the one that uses the communicator, in the communicator's context.
 * Owns: the entries.
 */
#ifndef OH_COMM_LAUNCH_CAPTURE_H_
#define OH_COMM_LAUNCH_CAPTURE_H_

#include "comm/comm_internal.h"

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
    CUgraphNode kernel;    /* onehop's newest; NULL: none, or unknown */
    atomic_bool destroyed; /* the graph is: the entry may be freed */
};

/* The entry of a capture under way; NULL: it has none yet, or cannot be used. */
struct oh_capture *oh_capture_find(const struct oh_comm *comm, cuuint64_t id);

/* Orders the next work of the stream after the communicator's calls in its capture, whose entry becomes *capture_p. */
CUresult oh_capture_before(struct oh_comm *comm, const struct oh_stream_state *stream_state,
                           struct oh_capture **capture_p);

/* The stream's newest work becomes the frontier, and the record node moves behind it. */
CUresult oh_capture_after(struct oh_capture *capture, CUstream stream);

/*
 * After each kernel of the submission. In a capture, if the kernel depends on a single node: a kernel of the
 * communicator gets an early trigger; after a kernel of the program this one is launched early (gpu/edge.h). Fails
 * only if the order of the two is lost; any other error leaves the capture as it was.
 */
CUresult oh_capture_link(const struct oh_submission *submission);

/* Frees the entries whose graphs are destroyed, or all. */
void oh_captures_free(struct oh_comm *comm, bool all);

#endif
