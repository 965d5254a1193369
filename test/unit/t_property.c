/* SPDX-License-Identifier: MIT */
/*
 * t_property.c - rule 1: whether and how a call is served is the same on all ranks, wherever their buffers lie
 *
 * For random tables and random (kind, count, type, op, root), each rank takes the way of a call: oh_call_decide, then
 * oh_call_launch with a driver of our own that only writes down what is launched. All that may differ between ranks
 * does: rank, staging, pointers, alignment, in place or not, stream, captured or not, and what the communicator last
 * did. What is decided and launched must not. The same end to end: the cases "property" of test/conformance.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/launch/launch.h"
#include "comm/watch/watch.h"
#include "test/unit/default_table.h"
#include "test/unit/unit.h"

#define TABLES 150
#define CALLS 200
#define USER_OPS 20

/* What a rank made of a call. */
struct decision {
    bool served;
    struct oh_plan plan;
    unsigned launches, blocks, threads;
    CUfunction function;
};

static uint64_t seed;
static struct decision now; /* of the rank whose turn it is */
static bool capturing;      /* its stream is */

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 16) % below;
}

/* --- the part that knows how a call is made ----------------------------------------------------------------------- */

/* Kernels that can be told apart, the same on all ranks. */
static void put_kernels(struct oh_comm *comm)
{
    static struct oh_kernel_set set;
    for (uintptr_t i = 0; i < OH_KERNEL_IMAGES; i++) {
        for (uintptr_t f = 0; f < OH_KERNEL_FUNCTIONS; f++) {
            set.function[i][f] = (CUfunction)(0x1000 + i * 64 + f);
        }
    }
    comm->serve.kernels = &set;
}

/* --- a driver that writes down launches --------------------------------------------------------------------------- */

static CUcontext current;

static unsigned long long id_of(CUcontext context)
{
    return (unsigned long long)(uintptr_t)context + 1;
}

/* X(function, parameters, what it does). */
#define MOCKED(X)                                                                                                      \
    X(ctx_get_id, (CUcontext context, unsigned long long *id), *id = id_of(context ? context : current))               \
    X(ctx_push, (CUcontext context), current = context)                                                                \
    X(stream_get_id, (CUstream stream, unsigned long long *id), *id = (uintptr_t)stream)                               \
    X(stream_wait_event, (CUstream stream, CUevent event, unsigned flags), ((void)stream, (void)event, (void)flags))   \
    X(event_record, (CUevent event, CUstream stream), ((void)event, (void)stream))                                     \
    X(user_object_create, (CUuserObject * object, void *data, CUhostFn destroy, unsigned count, unsigned flags),       \
      ((void)data, (void)destroy, (void)count, (void)flags, *object = NULL))                                           \
    X(graph_retain_user_object, (CUgraph graph, CUuserObject object, unsigned count, unsigned flags),                  \
      ((void)graph, (void)object, (void)count, (void)flags))
#define DEFINE(function_, parameters_, action_)                                                                        \
    static CUresult CUDAAPI function_ parameters_                                                                      \
    {                                                                                                                  \
        action_;                                                                                                       \
        return CUDA_SUCCESS;                                                                                           \
    }
MOCKED(DEFINE)
#undef DEFINE

static CUresult CUDAAPI ctx_pop(CUcontext *context)
{
    *context = current;
    current = NULL;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                     const CUgraphNode **nodes, size_t *count)
{
    (void)stream, (void)nodes, (void)count;
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    *id = 1 + draw(3);
    *graph = NULL;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI launch(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)parameters, (void)extra;
    now.launches++;
    now.blocks = config->gridDimX;
    now.threads = config->blockDimX;
    now.function = function;
    return CUDA_SUCCESS;
}

static void make_driver(void)
{
#define SET(function_, ...) oh_driver.function_ = function_;
    MOCKED(SET)
#undef SET
    oh_driver.ctx_pop = ctx_pop;
    oh_driver.stream_get_capture_info = capture_info;
    oh_driver.launch_kernel_ex = launch;
}

/* --- ranks and calls ---------------------------------------------------------------------------------------------- */

static void *any_pointer(void)
{
    return (void *)(uintptr_t)(0x10000 + draw(UINT64_C(1) << 40));
}

static void make_table(struct oh_plan_table *table_p, uint32_t nranks)
{
    static const uint64_t caps[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, 1000, 1 << 20, 64 << 20};
    int forced = draw(3) == 0 ? (int)draw(ONEHOP_ALGORITHM_COUNT) : -1;
    default_table(nranks, caps[draw(sizeof caps / sizeof *caps)], forced, table_p);
}

/* Behind the communicator each number is 1: rows that a look-up by a kind without kernels would take for its own. */
#define BEHIND (16 * sizeof(struct oh_plan_rows))

/* All that is not agreed between ranks is random. */
static struct oh_comm *make_rank(const struct oh_plan_table *table, uint32_t rank)
{
    static struct oh_progress progress[OH_MAX_RANKS];
    struct oh_comm *comm = unit_need(calloc(1, sizeof *comm + BEHIND));
    for (size_t i = 0; i < BEHIND / sizeof(uint32_t); i++) {
        ((uint32_t *)(comm + 1))[i] = 1;
    }
    comm->serve.progress = &progress[rank];
    comm->id.rank = rank;
    comm->id.nranks = table->nranks;
    comm->serve.table = *table;
    atomic_store(&comm->state, OH_COMM_SERVED);
    comm->staging.context.handle = draw(2) ? any_pointer() : NULL;
    comm->staging.context.id = id_of(comm->staging.context.handle);
    comm->serve.args.rank = rank;
    for (uint32_t j = 0; j < table->nranks; j++) {
        comm->serve.args.staging[j] = any_pointer();
    }
    comm->order.launched = draw(2);
    comm->order.last_stream = draw(4);
    /* Ops of the program's own: the same handles and types on all ranks, a scalar of its own on each. */
    for (int h = 0; h < USER_OPS; h++) {
        static const uint64_t scalars[] = {3, 5, 7, 11};
        oh_comm_op_add(comm, (ncclRedOp_t)(ncclNumOps + h), (ncclDataType_t)(h % ncclNumTypes), &scalars[draw(4)],
                       draw(2));
    }
    put_kernels(comm);
    return comm;
}

static size_t any_count(const struct oh_plan_table *table, size_t size)
{
    size_t end = (size_t)oh_plan_table_end(table) / (size ? size : 1);
    switch (draw(6)) {
    case 0:
        return draw(10);
    case 1:
        return end - 2 + draw(5);
    case 2:
        return SIZE_MAX / (1 + draw(16)) + draw(4);
    default: /* of any magnitude */
        return (size_t)(seed >> (8 + draw(55)));
    }
}

/* What all ranks make of the call is in `call`; the rest is random. */
static struct decision take(struct oh_comm *comm, struct oh_call call)
{
    static const CUstream plain[] = {NULL, (CUstream)1, (CUstream)2}; /* the default streams */
    call.comm = comm;
    call.sendbuff = any_pointer();
    call.recvbuff = any_pointer();
    call.stream = draw(2) ? plain[draw(3)] : (CUstream)any_pointer();
    if (draw(2)) {
        call.recvbuff = (void *)call.sendbuff;
    }
    capturing = draw(2);
    memset(&now, 0, sizeof now);
    now.served = oh_call_decide(&call) == OH_FALLBACK_NONE;
    if (now.served) {
        now.plan = call.plan;
        oh_call_launch(&call);
    }
    return now;
}

static bool is_equal(const struct decision *a, const struct decision *b)
{
    return a->served == b->served && a->plan.collective == b->plan.collective &&
           a->plan.algorithm == b->plan.algorithm && a->plan.blocks == b->plan.blocks &&
           a->plan.threads == b->plan.threads && a->launches == b->launches && a->blocks == b->blocks &&
           a->threads == b->threads && a->function == b->function;
}

struct totals {
    unsigned calls, served, differ;
    bool foreign; /* a call without kernels was served */
};

static void one_call(struct oh_comm **comm, uint32_t nranks, struct totals *totals)
{
    static const ncclDataType_t common[] = {ncclFloat32, ncclFloat16, ncclBfloat16};
    ncclDataType_t type = draw(2) ? common[draw(3)] : (ncclDataType_t)((int)draw(ncclNumTypes + 2) - 1);
    ncclRedOp_t op = (ncclRedOp_t)(draw(3) == 0 ? (int)draw(40) - 1 : (int)ncclSum); /* user ops and worse among them */
    const struct oh_call call = {.kind = (enum oh_call_kind)(draw(2) ? OH_CALL_ALLREDUCE : draw(OH_CALL_OP_DESTROY)),
                                 .count = any_count(&comm[0]->serve.table, oh_type_size(type)),
                                 .type = type,
                                 .redop = op,
                                 .root = (int)draw(nranks + 2) - 1,
                                 .has_config = draw(20) == 0};
    struct decision first = take(comm[0], call);
    totals->calls++;
    totals->served += first.served;
    totals->foreign |= first.served && (call.has_config || !oh_kind_has_kernels(call.kind));
    for (uint32_t r = 1; r < nranks; r++) {
        struct decision other = take(comm[r], call);
        if (!is_equal(&first, &other) && totals->differ++ == 0) {
            tap_note("n=%u kind %d count %zu type %d op %d root %d: rank 0 %s %d %ux%u, rank %u %s %d %ux%u", nranks,
                     (int)call.kind, call.count, (int)type, (int)op, call.root, first.served ? "serves" : "falls back",
                     (int)first.plan.algorithm, first.blocks, first.threads, r, other.served ? "serves" : "falls back",
                     (int)other.plan.algorithm, other.blocks, other.threads);
        }
    }
}

static void test_ranks(uint32_t nranks)
{
    struct totals totals = {0};
    for (int t = 0; t < TABLES; t++) {
        struct oh_comm *comm[OH_MAX_RANKS] = {NULL};
        struct oh_plan_table table;
        make_table(&table, nranks);
        for (uint32_t r = 0; r < nranks; r++) {
            comm[r] = make_rank(&table, r);
        }
        for (int c = 0; c < CALLS; c++) {
            one_call(comm, nranks, &totals);
        }
        for (uint32_t r = 0; r < nranks; r++) {
            oh_comm_ops_forget(comm[r]);
            free(comm[r]);
        }
    }
    tap_ok(totals.differ == 0 && !totals.foreign && totals.served > totals.calls / 20 && totals.served < totals.calls,
           "n=%u: %u calls, %u of them served, %u differ between ranks", nranks, totals.calls, totals.served,
           totals.differ);
}

int main(int argc, char **argv)
{
    seed = unit_seed(argc, argv);
    make_driver();
    for (uint32_t n = 2; n <= OH_MAX_RANKS; n++) {
        test_ranks(n);
    }
    return tap_done();
}
