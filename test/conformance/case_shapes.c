/* SPDX-License-Identifier: MIT */
/* case_shapes.c - counts, alignment, where the algorithm changes, and arguments that are no good */
#include <string.h>

#include "test/conformance/cases.h"

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)

static const ncclDataType_t shape_types[] = {ncclFloat32, ncclBfloat16, ncclInt8, ncclFloat64, ncclFloat16, ncclUint32};

static struct cf_spec spec_of(enum onehop_collective kind, ncclDataType_t type, size_t count)
{
    enum cf_family family = cf_types[type].mantissa > 0 ? CF_WIDE : CF_EXACT;
    return (struct cf_spec){.kind = kind, .type = type, .op = CF_SUM, .family = family, .count = count};
}

/* The kinds beside allreduce, in turn. */
static enum onehop_collective other_kind(size_t turn)
{
    static const enum onehop_collective kinds[] = {ONEHOP_ALLGATHER, ONEHOP_REDUCESCATTER, ONEHOP_BROADCAST};
    return kinds[turn % 3];
}

static void add_both_places(struct cf_batch *batch, struct cf_spec spec)
{
    cf_batch_add(batch, &spec);
    spec.in_place = true;
    cf_batch_add(batch, &spec);
}

static void add_counts(struct cf_batch *batch, enum onehop_collective kind, ncclDataType_t type, bool full)
{
    static const size_t primes[] = {2, 3, 5, 7, 11, 13, 17, 31, 61, 127, 257, 1021, 4093, 16381, 65521};
    size_t most = full ? (size_t)1 << 20 : (size_t)1 << 14;
    for (size_t count = 0; count <= CF_MAX_RANKS + 1; count++) { /* none, and fewer than ranks */
        struct cf_spec spec = spec_of(kind, type, count);
        spec.root = (int)count;
        add_both_places(batch, spec);
    }
    for (size_t i = 0; i < sizeof primes / sizeof *primes; i++) {
        if (primes[i] <= most) {
            cf_batch_add(
                batch, &(struct cf_spec){.kind = kind, .type = type, .count = primes[i], .root = 1, .in_place = i % 2});
        }
    }
    for (size_t power = 16; power <= most; power *= full ? 2 : 4) {
        for (size_t count = power - 1; count <= power + 1; count++) {
            cf_batch_add(batch,
                         &(struct cf_spec){.kind = kind, .type = type, .count = count, .in_place = count == power});
        }
    }
}

void cf_case_counts(struct cf_worker *worker)
{
    size_t types = worker->full ? sizeof shape_types / sizeof *shape_types : 3;
    for (size_t t = 0; t < types; t++) {
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        add_counts(batch, ONEHOP_ALLREDUCE, shape_types[t], worker->full);
        add_counts(batch, other_kind(t), shape_types[t], worker->full);
        cf_batch_run(batch, CF_SINGLE);
    }
}

/* Nothing to do is right whatever the buffers are; what is checked before the count is still checked. */
void cf_case_count_zero(struct cf_worker *worker)
{
    for (int m = 0; m < worker->members; m++) {
        ncclComm_t comm = worker->world.comm[m];
        CUstream stream = worker->member[m].stream[0];
        CF_IS(worker, ncclSuccess, AllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, stream));
        CF_IS(worker, ncclSuccess, AllReduce(NULL, NULL, 0, ncclInt8, ncclProd, comm, stream));
        CF_IS(worker, ncclInvalidArgument, AllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, NULL, stream));
        CF_IS(worker, ncclInvalidArgument, AllReduce(NULL, NULL, 0, ncclNumTypes, ncclSum, comm, stream));
        CF_IS(worker, ncclInvalidArgument, AllReduce(NULL, NULL, 0, ncclFloat32, (ncclRedOp_t)-1, comm, stream));
        CF_IS(worker, ncclSuccess, AllGather(NULL, NULL, 0, ncclBfloat16, comm, stream));
        CF_IS(worker, ncclInvalidArgument, AllGather(NULL, NULL, 0, ncclNumTypes, comm, stream));
        CF_IS(worker, ncclSuccess, ReduceScatter(NULL, NULL, 0, ncclInt64, ncclMax, comm, stream));
        CF_IS(worker, ncclInvalidArgument, ReduceScatter(NULL, NULL, 0, ncclInt64, (ncclRedOp_t)-1, comm, stream));
        CF_IS(worker, ncclSuccess, Broadcast(NULL, NULL, 0, ncclFloat32, 1, comm, stream));
        CF_IS(worker, ncclInvalidArgument, Broadcast(NULL, NULL, 0, ncclFloat32, worker->nranks, comm, stream));
        CF_IS(worker, ncclSuccess, Bcast(NULL, 0, ncclFloat32, 0, comm, stream));
        CF_IS(worker, ncclInvalidArgument, Bcast(NULL, 0, ncclFloat32, -1, comm, stream));
    }
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int kind = 0; kind < ONEHOP_COLLECTIVE_COUNT; kind++) {
        cf_batch_add(batch, &(struct cf_spec){.kind = (enum onehop_collective)kind, .type = ncclFloat32});
    }
    cf_batch_run(batch, CF_GROUPED);
}

/* Calls of which the larger buffer has about so many bytes. */
static void add_around(struct cf_batch *batch, enum onehop_collective kind, ncclDataType_t type, size_t bytes)
{
    struct cf_spec spec = spec_of(kind, type, 1);
    size_t count = bytes / cf_types[type].size / cf_whole_count(&spec, batch->worker->nranks);
    for (size_t c = count - 1; c <= count + 1; c++) {
        spec.count = c;
        spec.root = (int)(c % CF_MAX_RANKS);
        spec.in_place = c % 2;
        cf_batch_add(batch, &spec);
    }
}

static void run_around(struct cf_worker *worker, enum onehop_collective kind, ncclDataType_t type, size_t bytes)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    add_around(batch, kind, type, bytes);
    cf_batch_run(batch, CF_SINGLE);
}

/* Powers of two, at which onehop's table for some number of ranks has an end. */
void cf_case_table_ends(struct cf_worker *worker)
{
    size_t most = worker->full ? 16 * MIB : 512 * KIB;
    for (size_t bytes = KIB; bytes <= most; bytes *= 2) {
        run_around(worker, ONEHOP_ALLREDUCE, ncclFloat32, bytes);
        run_around(worker, ONEHOP_ALLREDUCE, ncclBfloat16, bytes);
        struct cf_batch *batch = cf_batch_new(worker, &worker->world);
        for (size_t turn = 0; turn < 3; turn++) {
            add_around(batch, other_kind(turn), turn % 2 ? ncclFloat32 : ncclBfloat16, bytes);
        }
        cf_batch_run(batch, CF_SINGLE);
    }
}

/* One call of `count` elements. Was it served? The answer must be the same on all ranks. */
static bool probe(struct cf_worker *worker, enum onehop_collective kind, ncclDataType_t type, size_t count)
{
    uint64_t served_before = worker->result->served, all = (uint64_t)worker->members;
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    struct cf_spec spec = spec_of(kind, type, count);
    cf_batch_add(batch, &spec);
    cf_batch_run(batch, CF_SINGLE);
    uint64_t served = worker->result->served - served_before;
    cf_check(worker, served == 0 || served == all, "%llu of %llu ranks were served", (unsigned long long)served,
             (unsigned long long)all);
    cf_check(worker, cf_agree(worker, served), "count %zu was served on some ranks only", count);
    return served > 0;
}

/* The largest message served, found by halving, and one element over. */
void cf_case_largest_served(struct cf_worker *worker)
{
    for (int k = 0; k < ONEHOP_COLLECTIVE_COUNT; k++) {
        const enum onehop_collective kind = (enum onehop_collective)k;
        const ncclDataType_t type = k % 2 ? ncclBfloat16 : ncclFloat32;
        const size_t parts = cf_whole_count(&(struct cf_spec){.kind = kind, .count = 1}, worker->nranks);
        size_t served = 0, over = 64 * MIB / cf_types[type].size / parts;
        for (size_t step = over / 2; step > 0 && worker->full; step /= 2) {
            served += probe(worker, kind, type, served + step) ? step : 0;
        }
        if (!worker->full) { /* coarse: powers of two only */
            for (size_t count = 1024; count < over / 16 && probe(worker, kind, type, count); count *= 4) {
                served = count;
            }
        }
        if (served > 0) {
            run_around(worker, kind, type, served * parts * cf_types[type].size);
        }
        cf_check(worker, served > 0 || !worker->expect_served, "no %s was served", cf_kind_names[kind]);
    }
}

static void add_shifts(struct cf_batch *batch, enum onehop_collective kind, ncclDataType_t type, size_t count)
{
    unsigned size = (unsigned)cf_types[type].size;
    for (unsigned send = 0; send < 16; send += size) {
        for (unsigned recv = 0; recv < 16; recv += size) {
            struct cf_spec spec = spec_of(kind, type, count + (send + recv) / size % 3);
            spec.root = (int)(send / size);
            spec.send_shift = send;
            spec.recv_shift = recv;
            cf_batch_add(batch, &spec);
        }
        struct cf_spec spec = spec_of(kind, type, count);
        spec.in_place = true;
        spec.send_shift = send;
        cf_batch_add(batch, &spec);
    }
}

void cf_case_alignment(struct cf_worker *worker)
{
    static const ncclDataType_t types[] = {ncclBfloat16, ncclFloat32, ncclInt8, ncclFloat64, ncclFloat16, ncclInt32};
    static const size_t counts[] = {29, 1024, 70000};
    size_t type_count = worker->full ? 6 : 4, count_count = worker->full ? 3 : 2;
    for (size_t t = 0; t < type_count; t++) {
        for (size_t c = 0; c < count_count; c++) {
            struct cf_batch *batch = cf_batch_new(worker, &worker->world);
            add_shifts(batch, ONEHOP_ALLREDUCE, types[t], cf_types[types[t]].size == 1 && c == 2 ? 9000 : counts[c]);
            add_shifts(batch, other_kind(t + c), types[t], counts[c < 2 ? c : 0]);
            cf_batch_run(batch, CF_SINGLE);
        }
    }
}

/* --- arguments --------------------------------------------------------------------------------------------------- */

struct bad_call {
    int type, op;
};

static void check_user_ops(struct cf_worker *worker, int m, const void *send, void *recv)
{
    ncclComm_t comm = worker->world.comm[m];
    CUstream stream = worker->member[m].stream[0];
    ncclRedOp_t op, gone;
    float one = 1;
    CF_NCCL(worker, RedOpCreatePreMulSum(&op, &one, ncclFloat32, ncclScalarHostImmediate, comm));
    CF_NCCL(worker, RedOpCreatePreMulSum(&gone, &one, ncclFloat32, ncclScalarHostImmediate, comm));
    cf_check(worker, (int)op >= ncclNumOps && (int)gone >= ncclNumOps && op != gone, "user ops %d and %d", (int)op,
             (int)gone);
    CF_IS(worker, ncclSuccess, RedOpDestroy(gone, comm));
    CF_IS(worker, ncclInvalidArgument, AllReduce(send, recv, 4, ncclFloat32, gone, comm, stream));
    CF_IS(worker, ncclInvalidArgument, AllReduce(send, recv, 4, ncclFloat16, op, comm, stream));
    CF_IS(worker, ncclInvalidArgument, AllReduce(send, recv, 4, ncclInt32, op, comm, stream));
    CF_IS(worker, ncclSuccess, AllReduce(send, recv, 0, ncclFloat16, op, comm, stream)); /* the count comes first */
    CF_IS(worker, ncclInvalidArgument, ReduceScatter(send, recv, 4, ncclFloat32, gone, comm, stream));
    CF_IS(worker, ncclInvalidArgument, ReduceScatter(send, recv, 4, ncclFloat16, op, comm, stream));
    CF_IS(worker, ncclSuccess, RedOpDestroy(op, comm));
    CF_IS(worker, ncclInvalidArgument, RedOpDestroy(op, comm));
    CF_IS(worker, ncclInvalidArgument, RedOpDestroy(ncclSum, comm));
    CF_IS(worker, ncclInvalidArgument, RedOpDestroy((ncclRedOp_t)-1, comm));
}

static void check_arguments(struct cf_worker *worker, int m, const void *send, void *recv)
{
    static const struct bad_call bad[] = {{-1, ncclSum},          {ncclNumTypes, ncclSum},    {127, ncclSum},
                                          {ncclFloat32, -1},      {ncclFloat32, ncclNumOps},  {ncclInt8, 0x7fffffff},
                                          {ncclFloat32, 0x12345}, {ncclNumTypes, ncclNumOps}, {-5, -5}};
    ncclComm_t comm = worker->world.comm[m];
    CUstream stream = worker->member[m].stream[0];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ncclResult_t result =
            nccl.AllReduce(send, recv, 4, (ncclDataType_t)bad[i].type, (ncclRedOp_t)bad[i].op, comm, stream);
        cf_check(worker, result == ncclInvalidArgument, "type %d, op %d gave %d", bad[i].type, bad[i].op, (int)result);
        result = nccl.ReduceScatter(send, recv, 4, (ncclDataType_t)bad[i].type, (ncclRedOp_t)bad[i].op, comm, stream);
        cf_check(worker, result == ncclInvalidArgument, "type %d, op %d gave %d", bad[i].type, bad[i].op, (int)result);
    }
    static const int bad_types[] = {-1, ncclNumTypes, 127, -5}, bad_roots[] = {-1, CF_MAX_RANKS, 0x7fffffff};
    for (size_t i = 0; i < sizeof bad_types / sizeof *bad_types; i++) {
        const ncclDataType_t type = (ncclDataType_t)bad_types[i];
        CF_IS(worker, ncclInvalidArgument, AllGather(send, recv, 4, type, comm, stream));
        CF_IS(worker, ncclInvalidArgument, Broadcast(send, recv, 4, type, 0, comm, stream));
    }
    for (size_t i = 0; i < sizeof bad_roots / sizeof *bad_roots; i++) {
        CF_IS(worker, ncclInvalidArgument, Broadcast(send, recv, 4, ncclInt8, bad_roots[i], comm, stream));
        CF_IS(worker, ncclInvalidArgument, Bcast(recv, 4, ncclInt8, bad_roots[i], comm, stream));
    }
    CF_IS(worker, ncclInvalidArgument, AllGather(send, recv, 4, ncclFloat32, NULL, stream));
    CF_IS(worker, ncclInvalidArgument, ReduceScatter(send, recv, 4, ncclFloat32, ncclSum, NULL, stream));
    CF_IS(worker, ncclInvalidArgument, Broadcast(send, recv, 4, ncclFloat32, 0, NULL, stream));
    CF_IS(worker, ncclInvalidArgument, AllReduce(send, recv, 4, ncclFloat32, ncclSum, NULL, stream));
    check_user_ops(worker, m, send, recv);
}

/* What is rejected of functions that end a communicator, or make another of it, leaves the communicator as it was. */
static void check_endings(struct cf_worker *worker, int m)
{
    ncclComm_t comm = worker->world.comm[m], child = NULL;
    int rank = worker->world.rank[m];
    CF_IS(worker, ncclSuccess, CommDestroy(NULL));
    CF_IS(worker, ncclSuccess, CommAbort(NULL));
    if (worker->simulated) { /* as NCCL's source has it; nobody has asked GPUs */
        CF_IS(worker, ncclInvalidArgument, CommRevoke(comm, -1));
        CF_IS(worker, ncclInvalidArgument, CommShrink(comm, NULL, 1, &child, NULL, NCCL_SHRINK_ABORT));
        CF_IS(worker, ncclInvalidArgument, CommShrink(comm, &rank, 1, &child, NULL, NCCL_SHRINK_ABORT));
        CF_IS(worker, ncclInvalidArgument, CommShrink(comm, &rank, 0, &child, NULL, NCCL_SHRINK_ABORT));
        cf_check(worker, child == NULL, "a child of a call that was rejected");
    }
}

/* Each is refused with NCCL's code, writes nothing, and leaves the communicator as good as it was. */
void cf_case_arguments(struct cf_worker *worker)
{
    struct cf_batch *batch = cf_batch_new(worker, &worker->world);
    for (int kind = 0; kind < ONEHOP_COLLECTIVE_COUNT; kind++) {
        struct cf_spec spec = spec_of((enum onehop_collective)kind, ncclFloat32, 64);
        cf_batch_add(batch, &spec);
    }
    cf_batch_load(batch, 0);
    for (int m = 0; cf_use(worker, m); m++) {
        check_arguments(worker, m, cf_batch_send(batch, 0, m), cf_batch_recv(batch, 0, m));
        check_endings(worker, m);
    }
    CF_IS(worker, ncclInvalidUsage, GroupEnd());
    cf_batch_judge(batch, 0, false);
    cf_batch_issue(batch, CF_SINGLE, 0);
    cf_batch_finish(batch, 0);
}

/* A user's op belongs to its communicator. */
void cf_case_foreign_op(struct cf_worker *worker)
{
    struct cf_set other;
    float two = 2;
    cf_set_create(worker, CF_INIT_RANK, &other);
    for (int m = 0; m < worker->members; m++) {
        ncclRedOp_t op;
        CF_NCCL(worker, RedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, other.comm[m]));
        CF_IS(worker, ncclInvalidArgument,
              AllReduce(&two, &two, 1, ncclFloat32, op, worker->world.comm[m], worker->member[m].stream[0]));
        CF_IS(worker, ncclSuccess, RedOpDestroy(op, other.comm[m]));
    }
    cf_set_end(worker, &other);
}
