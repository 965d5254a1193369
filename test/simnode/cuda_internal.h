/* SPDX-License-Identifier: MIT */
/*
 * cuda_internal.h - inside the simulated libcuda.so.1
 *
 * One lock (simcuda.lock) guards all state of the process. It is never held while work runs: kernels, copies, host
 * functions and destructors of user objects. A stream is a thread with a queue of operations, which is bounded for
 * launches. The one means of ordering is the marker: something that is done once some streams have come to some place
 * in their queues. Events, the waits of host threads, the rules of the legacy stream and the edges of graphs are all
 * made of markers.
 *
 * Functions declared below want the lock held by the caller unless they say otherwise.
 */
#ifndef TEST_SIMNODE_CUDA_INTERNAL_H_
#define TEST_SIMNODE_CUDA_INTERNAL_H_

/* What cuda.h declares is what the library exports; the rest of it is compiled with -fvisibility=hidden. */
#pragma GCC visibility push(default)
#include <cuda.h>

/* Exported under these names too, whichever of them the cuda.h at hand declares. */
#undef cuEventElapsedTime
#undef cuStreamGetCaptureInfo
#undef cuStreamUpdateCaptureDependencies
#undef cuGraphAddDependencies
#undef cuGraphRemoveDependencies
CUresult CUDAAPI cuProfilerStart(void); /* cudaProfiler.h is in a package of its own */
CUresult CUDAAPI cuEventElapsedTime(float *milliseconds_p, CUevent start, CUevent end);
CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds_p, CUevent start, CUevent end);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status_p, cuuint64_t *id_p,
                                           CUgraph *graph_p, const CUgraphNode **dependencies_p, size_t *count_p);
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status_p, cuuint64_t *id_p,
                                           CUgraph *graph_p, const CUgraphNode **dependencies_p,
                                           const CUgraphEdgeData **edges_p, size_t *count_p);
CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count,
                                                   unsigned flags);
CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
#pragma GCC visibility pop

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "test/simnode/fault.h"
#include "test/simnode/kernels.h"
#include "test/simnode/memory.h"
#include "test/simnode/topology.h"

#define SIMCUDA_MAX_CAPTURED 16 /* streams in one capture */
#define SIMCUDA_QUEUE 1024      /* kernels, copies and sets that a stream takes before the next waits; SIMNODE_QUEUE */
#define SIMCUDA_MAX_THREADS 1024
#define SIMCUDA_SM_THREADS 2048

/* Objects with a handle. Listed, so that a handle can be checked and the living counted. */
enum simcuda_kind {
    SIMCUDA_STREAM,
    SIMCUDA_DEFAULT_STREAM, /* legacy and per-thread streams, made when first used */
    SIMCUDA_EVENT,
    SIMCUDA_GRAPH,
    SIMCUDA_EXEC,
    SIMCUDA_USER,
    SIMCUDA_LIBRARY,
    SIMCUDA_CAPTURE,
    SIMCUDA_DEVICE_MEMORY,
    SIMCUDA_HOST_MEMORY,
    SIMCUDA_IPC_MEMORY,
    SIMCUDA_KINDS
};

/* First member of every object. */
struct simcuda_object {
    struct simcuda_object *next;
    enum simcuda_kind kind;
};

/* The primary context of a device; the only context that it has. */
struct CUctx_st {
    int device; /* ordinal */
    unsigned long id;
    unsigned uses; /* 0: does not exist */
    bool peer[SIMNODE_MAX_GPUS];
    atomic_bool trapped; /* a kernel has: every call on the context fails, and nothing more runs */
    size_t live_bytes;
    uint64_t queued; /* operations ever queued, and started, on all streams; with one connection only */
    uint64_t started;
};

/* Done when `left` is 0. Counted by reference. */
struct simcuda_marker {
    pthread_cond_t reached;
    unsigned references;
    unsigned left; /* streams that are not there yet */
    uint64_t time; /* ns, when it was done */
};

enum simcuda_op_kind {
    SIMCUDA_OP_NONE, /* in graphs */
    SIMCUDA_OP_KERNEL,
    SIMCUDA_OP_COPY,
    SIMCUDA_OP_SET,
    SIMCUDA_OP_HOST,
    SIMCUDA_OP_RECORD,       /* comes to a marker */
    SIMCUDA_OP_WAIT,         /* waits until a marker is done */
    SIMCUDA_OP_RETIRE,       /* drops a reference to the image of a graph */
    SIMCUDA_OP_EVENT_RECORD, /* these two in graphs: external nodes */
    SIMCUDA_OP_EVENT_WAIT
};

/* One thing for a stream, or a node of a graph, to do. */
struct simcuda_op {
    struct simcuda_op *next;
    enum simcuda_op_kind kind;
    uint64_t ticket; /* its place among all of the context */
    union {
        struct {
            simnode_kernel_fn run;
            CUkernel kernel;
            unsigned blocks;
            unsigned threads;                /* of a block, that a GPU would run */
            bool programmatic;               /* programmatic stream serialization is asked for */
            struct oh_kernel_list_args args; /* or only its base: as the kernel takes it */
        } kernel;
        struct {
            void *to;
            const void *from;
            size_t bytes;
            bool pageable; /* the caller may use `from` again at once: a queued copy reads another copy, and frees it */
        } copy;
        struct {
            void *to;
            uint32_t value;
            unsigned width; /* bytes of one element: 1 or 4 */
            size_t pitch;   /* from one element to the next */
            size_t count;
            bool empties; /* simcuda_memory_empty does it */
        } set;
        struct {
            CUhostFn run;
            void *data;
        } host;
        struct simcuda_marker *marker; /* RECORD, WAIT: a reference */
        CUevent event;
        struct simcuda_image *image;
    };
};

/* An edge into a node of a graph. */
struct simcuda_edge {
    CUgraphNode from;
    CUgraphEdgeData data;
};

struct CUgraphNode_st {
    CUgraph graph;
    CUcontext ctx;
    struct simcuda_op op;
    CUgraph child;       /* with SIMCUDA_OP_NONE: a copy that the node owns */
    void *parameters[1]; /* as the caller of cuGraphKernelNodeGetParams sees them */
    size_t dependencies;
    struct simcuda_edge *dependency;
    size_t step;  /* while an image is made: its last step, plus 1 */
    bool visited; /* while something is searched */
};

/* Once for each reference. */
struct simcuda_users {
    size_t count;
    CUuserObject *user;
};

struct CUgraph_st {
    struct simcuda_object object;
    bool capturing;
    size_t nodes;
    CUgraphNode *node; /* in the order in which they were made */
    struct simcuda_users users;
};

/* What the next operation of a captured stream comes after, and what an event recorded there stands for. */
struct simcuda_frontier {
    size_t count;
    CUgraphNode *node;
};

struct CUstream_st {
    struct simcuda_object object;
    CUcontext ctx;
    unsigned flags;
    unsigned references;
    bool legacy;
    bool started;
    bool closing;
    bool borrowed;   /* a caller's thread does an operation, not the stream's own */
    pthread_t owner; /* of a per-thread stream */
    pthread_cond_t wake;
    struct simcuda_op *head;
    struct simcuda_op **tail;
    unsigned long pending; /* operations not finished */
    unsigned long bounded; /* those of them that the queue's bound is about */
    uint32_t random;
    unsigned long long id;           /* never used again, as handles are */
    struct simcuda_capture *capture; /* NULL: none */
    int lane;                        /* which stream of the capture */
};

struct CUevent_st {
    struct simcuda_object object;
    CUcontext ctx;
    unsigned flags;
    struct simcuda_marker *marker; /* NULL: never recorded */
    cuuint64_t capture;            /* last recorded in this capture; 0: outside */
    struct simcuda_frontier after; /* what it stands for there */
};

struct CUlib_st {
    struct simcuda_object object;
    CUkernel kernels;
};

struct CUkern_st {
    CUkernel next;
    const struct simnode_kernel *code;
};

/* Memory that streams may touch. */
struct simcuda_memory {
    struct simcuda_object object;
    CUcontext ctx; /* on whose device; for IPC memory: in which it was opened; NULL: host memory, open to all */
    char *base;
    size_t bytes;
    int fd; /* device memory */
    uint64_t nonce;
    CUcontext owner; /* in which the program has registered host memory of its own, which goes with it */
    unsigned opened; /* IPC: how often */
};

struct simcuda_state {
    pthread_mutex_t lock;
    pthread_cond_t progress; /* a queue has room, or its next operation may start */
    _Atomic pid_t owner;     /* the process that called cuInit; 0: nobody has */
    const struct simnode_topology *topology;
    size_t memory; /* bytes of each GPU; SIMNODE_MEMORY_MIB */
    uint32_t seed; /* SIMNODE_SEED, _DELAY_US, _BLOCK_THREADS; fixed by cuInit */
    uint32_t delay_us;
    uint32_t copy_2d_us; /* SIMNODE_COPY_2D_US: that a copy with a pitch takes */
    uint32_t queue;      /* kernels, copies and sets that a stream takes */
    bool one_connection; /* CUDA_DEVICE_MAX_CONNECTIONS=1 */
    bool block_threads;
    int devices;
    int gpu_of[SIMNODE_MAX_GPUS]; /* by device ordinal */
    struct CUctx_st context[SIMNODE_MAX_GPUS];
    struct simcuda_object *objects[SIMCUDA_KINDS];
    _Atomic unsigned long kernels_launched;
    unsigned long contexts_created;
    cuuint64_t captures; /* ids given */
};

extern struct simcuda_state simcuda;

/* Return from the function that they stand in: with the error of a call, or with an error under a condition. */
#define SIMCUDA_TRY(call_)                                                                                             \
    do {                                                                                                               \
        CUresult result_ = (call_);                                                                                    \
        if (result_ != CUDA_SUCCESS) {                                                                                 \
            return result_;                                                                                            \
        }                                                                                                              \
    } while (0)
#define SIMCUDA_FAIL_IF(condition_, error_) SIMCUDA_TRY((condition_) ? (error_) : CUDA_SUCCESS)

/* Heads every exported function. */
#define SIMCUDA_ENTER() SIMCUDA_TRY(simcuda_enter(__func__, __builtin_return_address(0)))

/* The function holds the lock until it returns. */
#define SIMCUDA_HOLD() __attribute__((cleanup(simcuda_unlock), unused)) pthread_mutex_t *const lock_ = simcuda_lock()

/* Heads exported functions that need the lock. */
#define SIMCUDA_LOCK()                                                                                                 \
    SIMCUDA_ENTER();                                                                                                   \
    SIMCUDA_HOLD()

/* cuda_device.c */

/* Trace, faults, and whether the API may be called here and now. */
CUresult simcuda_enter(const char *function, const void *caller);

/* For SIMCUDA_HOLD. */
pthread_mutex_t *simcuda_lock(void);
void simcuda_unlock(pthread_mutex_t *const *lock);

/* The result of a wait: a failure where a kernel has trapped meanwhile. */
CUresult simcuda_after_wait(void);

/* The current context, if what a capture forbids may be done in it now. */
CUresult simcuda_usable(CUcontext *ctx_p);

/* The thread runs a host function or a destructor, in which the API must not be called. */
void simcuda_callback(void (*run)(void *), void *data);

/* The calling thread's current context; NULL when there is none or it has been released. */
CUcontext simcuda_current(void);

/* Index of a context's GPU in the topology. */
int simcuda_gpu(const struct CUctx_st *ctx);

/* cuda_object.c */

/* Lists, removes, finds. simcuda_has takes any pointer and looks at nothing behind it. */
void simcuda_add(enum simcuda_kind kind, struct simcuda_object *object);
void simcuda_remove(struct simcuda_object *object);
bool simcuda_has(enum simcuda_kind kind, const void *handle);

/* cuda_memory.c */

/* True when [address, address + bytes) is memory that the context's device can reach. */
bool simcuda_reaches(CUcontext ctx, const void *address, size_t bytes);

/* Frees what the context has, or has registered. */
void simcuda_memory_reset(CUcontext ctx);

/* Sets all words of a staging memory to what empty ones hold, or all before them to 0. */
void simcuda_memory_empty(void *address, size_t bytes);

/* cuda_stream.c */

/* The stream behind a handle, the special ones included, made if need be. */
CUresult simcuda_stream_find(CUstream handle, CUstream *stream_p);

/* A stream without a handle; started by its first operation. */
CUstream simcuda_stream_new(CUcontext ctx, unsigned flags);
void simcuda_stream_retain(CUstream stream);
void simcuda_stream_release(CUstream stream);

/* The caller's reference goes; work that is queued still runs. */
void simcuda_stream_close(CUstream stream);

/* May work go on the stream, if it is a legacy stream? Otherwise a capture in the way is invalidated. */
CUresult simcuda_stream_check_legacy(CUstream stream);

/* Queues or captures a copy of *op; on success takes over the references in it. */
CUresult simcuda_submit(CUstream stream, const struct simcuda_op *op);

/* Queues only: no capture, no legacy rules. simcuda_stream_order applies the legacy rules alone. */
void simcuda_push(CUstream stream, const struct simcuda_op *op);
void simcuda_stream_order(CUstream stream);

/* A marker for `streams` streams, with one reference; the push of an op, RECORD or WAIT, that holds another. */
struct simcuda_marker *simcuda_marker_new(unsigned streams);
void simcuda_marker_release(struct simcuda_marker *marker);
void simcuda_push_marker(CUstream stream, enum simcuda_op_kind kind, struct simcuda_marker *marker);

/* Waits, giving up the lock meanwhile, until a stream, or all streams of a context, have done what they have now. */
void simcuda_stream_wait(CUstream stream);
void simcuda_context_wait(CUcontext ctx);

/* Ends the context's streams and events. Nothing is queued on them. */
void simcuda_streams_reset(CUcontext ctx);

/* cuda_capture.c */

/* May this thread make a call that is unsafe while some stream captures? Otherwise invalidates that capture. */
CUresult simcuda_capture_check(void);

/* May the legacy stream of this context be used? With `invalidate`, a capture in the way is invalidated. */
CUresult simcuda_capture_check_legacy(CUcontext ctx, bool invalidate);

/* The operations on a capturing stream: any work, event record, event wait (which may make the stream capture). */
CUresult simcuda_capture_work(CUstream stream, const struct simcuda_op *op);
CUresult simcuda_capture_record(CUstream stream, CUevent event);
CUresult simcuda_capture_wait(CUstream stream, CUevent event);
void simcuda_capture_invalidate(CUstream stream);

/* cuda_graph.c */

/* A graph without nodes. */
CUgraph simcuda_graph_new(void);

/* Frees a graph that is not captured any more. Returns user objects to hand to simcuda_users_destroy. */
CUuserObject simcuda_graph_free(CUgraph graph);

/* A node at the end of the graph, and an edge into a node. False: there is such an edge. */
CUgraphNode simcuda_node_new(CUgraph graph, const struct simcuda_op *op, CUcontext ctx);
bool simcuda_node_depend(CUgraphNode node, CUgraphNode from, bool programmatic);

/* Is the handle a node of that graph? */
bool simcuda_graph_has(const struct CUgraph_st *graph, CUgraphNode node);

/* Marks a node and all that it comes after; clears the marks of a graph. */
void simcuda_node_visit(CUgraphNode node);
void simcuda_graph_unvisit(CUgraph graph);

/* Calls destructors, giving up the lock meanwhile. */
void simcuda_users_destroy(CUuserObject doomed);

/* References to user objects: as many more, or none any more. What is to be destroyed joins the list. */
void simcuda_users_copy(struct simcuda_users *to, const struct simcuda_users *from);
void simcuda_users_drop(struct simcuda_users *users, CUuserObject *doomed);

/* What empty nodes and the ends of graphs do. */
extern const struct simcuda_op simcuda_nothing;

/* cuda_exec.c */

/* Drops a reference to what an executable graph runs. Returns user objects to hand to simcuda_users_destroy. */
CUuserObject simcuda_image_release(struct simcuda_image *image);

/* cuda_module.c: runs a kernel of the context on the calling thread. The lock is not held. */
void simcuda_kernel_run(CUcontext ctx, const struct simcuda_op *op, uint32_t *random);

#endif
