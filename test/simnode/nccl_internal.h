/* SPDX-License-Identifier: MIT */
/*
 * nccl_internal.h - inside the simulated libnccl.so.2
 *
 * The ranks of a communicator, be they processes or threads, meet in one shared-memory segment, whose random name is
 * the unique id. Two channels of it carry exchanges in which every rank shows a piece of data to all others: one for
 * calls made by host threads (init, split), one for collectives, which run as host functions on the user's streams
 * and so are ordered, captured and replayed as kernels would be.
 *
 * struct ncclComm is the handle, plain malloc and free, so that a pointer value can come again. What running
 * operations need is in struct simnccl_core, counted by reference, which may outlive the handle (captured graphs).
 *
 * As in NCCL, ncclX is a weak symbol and pncclX a strong alias of the same body, and some functions are called
 * through their public, interposable names.
 */
#ifndef TEST_SIMNODE_NCCL_INTERNAL_H_
#define TEST_SIMNODE_NCCL_INTERNAL_H_

#include <cuda.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "test/simnode/fault.h"
#include "test/simnode/memory.h"

/* Not declared by cuda.h under its own name any more; the simulated driver exports what drivers of CUDA 12 export. */
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *number);

#define SIMNCCL_MAX_RANKS 16
#define SIMNCCL_MAX_USER_OPS 16
#define SIMNCCL_MAX_SHRINKS 16 /* of a communicator, to different ranks */
#define SIMNCCL_NAME_BYTES 64
#define SIMNCCL_CHUNK_BYTES (256u << 10)
#define SIMNCCL_MAIL_BYTES (64u << 10)

/* The functions that are counted, operations among them. */
#define SIMNCCL_FUNCTIONS(X)                                                                                           \
    X(AllReduce)                                                                                                       \
    X(AllReduceConfig)                                                                                                 \
    X(Reduce)                                                                                                          \
    X(ReduceScatter)                                                                                                   \
    X(AllGather)                                                                                                       \
    X(Gather)                                                                                                          \
    X(AlltoAll)                                                                                                        \
    X(Broadcast)                                                                                                       \
    X(Scatter)                                                                                                         \
    X(Send)                                                                                                            \
    X(Recv)                                                                                                            \
    X(CommInitRank)                                                                                                    \
    X(CommDestroy)                                                                                                     \
    X(GroupEnd)

enum simnccl_function {
#define SIMNCCL_ENUMERATOR(name_) SIMNCCL_##name_,
    SIMNCCL_FUNCTIONS(SIMNCCL_ENUMERATOR)
#undef SIMNCCL_ENUMERATOR
    SIMNCCL_FUNCTION_COUNT
};

/* Return from the function that they stand in where a call, of NCCL or of the driver, has failed. */
#define SIMNCCL_TRY(call_)                                                                                             \
    do {                                                                                                               \
        ncclResult_t result_ = (call_);                                                                                \
        if (result_ != ncclSuccess) {                                                                                  \
            return result_;                                                                                            \
        }                                                                                                              \
    } while (0)
#define SIMNCCL_TRY_CU(call_) SIMNCCL_TRY((call_) == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError)

/* Heads a definition of both names: SIMNCCL_API(ncclResult_t, CommCount, (const ncclComm_t comm, int *count)). */
#define SIMNCCL_EXPORT __attribute__((visibility("default")))
#define SIMNCCL_API(return_, name_, parameters_)                                                                       \
    SIMNCCL_EXPORT return_ pnccl##name_ parameters_ __attribute__((alias("nccl" #name_)));                             \
    SIMNCCL_EXPORT __attribute__((weak)) return_ nccl##name_ parameters_

enum simnccl_channel_id {
    SIMNCCL_HOST,
    SIMNCCL_STREAM,
    SIMNCCL_CHANNELS
};

/* One rank's side of a channel, in shared memory. Two pieces in turn: a piece may be overwritten two steps later. */
struct simnccl_slot {
    _Atomic uint32_t step; /* exchanges that this rank has entered */
    uint32_t what[2];      /* what the rank thinks is going on, to catch ranks that disagree */
    _Alignas(64) unsigned char data[2][SIMNCCL_CHUNK_BYTES];
};

/* Send from one rank to another, in shared memory. */
struct simnccl_mailbox {
    _Atomic uint32_t full;
    uint32_t bytes;
    unsigned char data[SIMNCCL_MAIL_BYTES];
};

struct simnccl_segment {
    _Atomic uint32_t joined;
    _Atomic uint32_t connected;
    _Atomic uint32_t doorbell; /* futex; moves whenever anything else here does */
    struct simnccl_slot slot[SIMNCCL_CHANNELS][SIMNCCL_MAX_RANKS];
    struct simnccl_mailbox mail[SIMNCCL_MAX_RANKS][SIMNCCL_MAX_RANKS]; /* [from][to] */
};

struct simnccl_user_op {
    bool used;
    ncclDataType_t type;
    bool on_device;
    const void *device_scalar;
    uint64_t host_scalar;
};

struct simnccl_core {
    atomic_int references;
    char name[SIMNCCL_NAME_BYTES]; /* of the segment; the order of communicators in a group */
    int rank;
    int nranks;
    int device;
    int capability;                  /* of the device, major * 10 + minor */
    CUcontext context;               /* primary, held by the handle */
    struct simnccl_segment *segment; /* NULL until joined */
    uint32_t step[SIMNCCL_CHANNELS]; /* this rank's exchanges so far, the same on all ranks */
    uint32_t splits;
    struct {
        uint32_t excluded, count;
    } shrink[SIMNCCL_MAX_SHRINKS];
    bool connected;
    atomic_int pending; /* operations launched outside capture and not finished */
    atomic_int graphs;  /* captured operations that graphs hold */
    atomic_bool aborted;
    atomic_bool revoked;
    atomic_bool suspended;
    atomic_int result;       /* ncclInProgress during init; later the asynchronous error */
    pthread_mutex_t running; /* held by the operation that runs */
    /* The chain that keeps operations on several streams in order. */
    CUevent last_event;
    cuuint64_t last_capture; /* id of the capture that last_captured_* belong to, 0: none */
    CUstream last_captured_stream;
    CUevent last_captured_event;
    struct simnccl_user_op user_op[SIMNCCL_MAX_USER_OPS];
};

struct ncclComm {
    struct simnccl_core *core;
    bool blocking;
    void *net_context;
    uint64_t hash; /* the same on all ranks; what network plugins are told */
    int net;       /* number of the plugin in use; 0: none */
    bool profiled; /* the profiler plugin was told of it */
    void *profiler_context;
};

/* One collective or point-to-point call. */
struct simnccl_operation {
    enum simnccl_function function;
    struct simnccl_core *core;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or root */
    CUstream stream;
    bool background;             /* a group with it is launched by a thread of its own */
    struct simnccl_user_op user; /* as it was when the call was made, where op is a user's */
};

static inline bool simnccl_is_point_to_point(const struct simnccl_operation *operation)
{
    return operation->function == SIMNCCL_Send || operation->function == SIMNCCL_Recv;
}

/* Making one communicator; runs in a thread of its own where it must not block the others. */
struct simnccl_job {
    ncclResult_t (*run)(struct simnccl_job *job);
    ncclComm_t comm;             /* NULL: split, shrink */
    ncclComm_t *comm_p;          /* set at the end (split, shrink) */
    struct simnccl_core *parent; /* of a split, shrink, grow */
    int color;
    int key;
    uint32_t excluded; /* shrink: ranks, by bit */
    ncclUniqueId id;   /* grow: zeros where it is not known */
    bool blocking;     /* the communicator is to be */
    bool background;   /* nobody waits for the job */
    ncclResult_t result;
};

/* nccl_report.c: counts a call of a function that tests ask for. */
void simnccl_count(enum simnccl_function function);

/* nccl_core.c: life of a core. `name` is the segment's. */
struct simnccl_core *simnccl_core_create(const char *name, int nranks, int rank);
void simnccl_core_retain(struct simnccl_core *core);
void simnccl_core_release(struct simnccl_core *core);

/* Maps the segment, which rank 0 creates, and returns when all ranks have. */
ncclResult_t simnccl_core_join(struct simnccl_core *core);

/*
 * SIMNODE_NCCL_LAZY=1: returns when all ranks have come this far, as NCCL connects them in the first call that it
 * serves. For one rank a thread.
 */
ncclResult_t simnccl_core_connect(struct simnccl_core *core);

/* Sleeps until the doorbell has moved from `seen` or some milliseconds have gone by; false: the rank was aborted. */
bool simnccl_core_wait(struct simnccl_core *core, uint32_t seen);

/* Tells every waiting rank to look again. */
void simnccl_core_ring(struct simnccl_core *core);

/*
 * Shows `bytes` of `mine` to all ranks and returns when all have shown theirs. `what` must be the same on all ranks.
 * The pieces, by simnccl_core_piece, stay until the next exchange on the channel.
 */
ncclResult_t simnccl_core_exchange(struct simnccl_core *core, enum simnccl_channel_id channel, uint32_t what,
                                   const void *mine, size_t bytes);
/* The same, and returns at once: no piece is there to be read but that of this rank. */
ncclResult_t simnccl_core_show(struct simnccl_core *core, enum simnccl_channel_id channel, uint32_t what,
                               const void *mine, size_t bytes);
const void *simnccl_core_piece(const struct simnccl_core *core, enum simnccl_channel_id channel, int rank);

/* nccl_group.c: a group around a single call; every call that enqueues or makes a communicator runs within one. */
void simnccl_group_enter(void);
ncclResult_t simnccl_group_leave(void);

/* Whether this thread is in a group, or in a call, which is a group of its own. */
bool simnccl_group_is_open(void);

/* Remembers that a call of this group failed, and gives the result back. */
ncclResult_t simnccl_group_fail(ncclResult_t result);

/* Adds a copy to the group. A job that fails outside a group of the caller's frees its communicator. */
ncclResult_t simnccl_group_add_operation(const struct simnccl_operation *operation);
void simnccl_group_add_job(const struct simnccl_job *job);

/* nccl_comm.c: ranks learn at different times that something is done that they do not wait for. */
void simnccl_be_late(void);

/* nccl_redop.c: the user op behind a handle, NULL: it is none of this communicator's. */
struct simnccl_user_op *simnccl_user_op_find(struct ncclComm *comm, int handle);

/* nccl_collectives.c: puts operations of one core on a stream; several only if they are sends and receives. */
ncclResult_t simnccl_launch(const struct simnccl_operation *operations, size_t number);

/*
 * All operations of a group on one core: the first waits for the earlier work of all their streams (before), or all
 * these streams wait for the last. Those between are in order anyway.
 */
ncclResult_t simnccl_join(const struct simnccl_operation *operations, size_t number, bool before);

/* nccl_plugin.c: what the library says that it is: SIMNODE_NCCL_VERSION. */
int simnccl_version(void);

/* nccl_plugin.c: chooses a network for the communicator, loading plugins the first time. */
ncclResult_t simnccl_net_init(ncclComm_t comm);

/* nccl_plugin.c: the communicator ends; the last one of a plugin closes it. */
void simnccl_net_finish(ncclComm_t comm);

/* Tell the profiler plugin, if there is one, of a communicator before its ranks meet, and of its end. */
void simnccl_profiler_init(ncclComm_t comm);
void simnccl_profiler_finish(ncclComm_t comm);
uint64_t simnccl_hash(const void *data, size_t bytes);

#endif
