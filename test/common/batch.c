/* SPDX-License-Identifier: MIT */
/*
 * batch.c - many calls at once, in one arena for each member
 *
 * Before: pattern everywhere but in the inputs, in the results too (poison). After: each result is judged, and all
 * other bytes must be what they were. Inputs repeat after CF_PERIOD elements, so that large messages cost little to
 * check.
 */
#include <stdlib.h>
#include <string.h>

#include "test/common/batch.h"

#define ALIGN 16
#define GUARD 48 /* at least so many bytes around each buffer */
#define EXPECTED_BYTES (64u << 10)
/* NCCL's kernel for one rank; see computed. */
#define ALONE_FLAWED_SINCE 21901
#define ALONE_MENDED_SINCE 22907
#define ALONE_BLOCKS 32
#define ALONE_BLOCK_BYTES 16384

const char *const cf_kind_names[ONEHOP_COLLECTIVE_COUNT] = {"allreduce", "all-gather", "reduce-scatter", "broadcast"};

static bool reduces(const struct cf_spec *spec)
{
    return spec->kind == ONEHOP_ALLREDUCE || spec->kind == ONEHOP_REDUCESCATTER;
}

size_t cf_whole_count(const struct cf_spec *spec, int nranks)
{
    const bool has_parts = spec->kind == ONEHOP_ALLGATHER || spec->kind == ONEHOP_REDUCESCATTER;
    return spec->count * (has_parts ? (size_t)nranks : 1);
}

/* Elements of a buffer on so many ranks. */
static size_t send_count(const struct cf_spec *spec, int nranks)
{
    return spec->kind == ONEHOP_REDUCESCATTER ? cf_whole_count(spec, nranks) : spec->count;
}

static size_t recv_count(const struct cf_spec *spec, int nranks)
{
    return spec->kind == ONEHOP_ALLGATHER ? cf_whole_count(spec, nranks) : spec->count;
}

static bool is_alone(const struct cf_set *set, int m)
{
    return set->nranks[m] == 1;
}

/* Does NCCL multiply by a factor? So it does for an average of floats. */
static bool has_factor(ncclDataType_t type, enum cf_op op)
{
    return op == CF_PREMUL_HOST || op == CF_PREMUL_DEVICE || (op == CF_AVG && cf_types[type].mantissa > 0);
}

/*
 * fp8 is reduced from compute capability 9.0 on. Where there is one rank, NCCL's kernel that multiplies by a factor
 * lacks it on every GPU (2.24 to 2.30).
 */
bool cf_refused(const struct cf_worker *worker, const struct cf_set *set, const struct cf_spec *spec)
{
    bool alone = false;
    for (int m = 0; m < worker->members; m++) {
        alone |= is_alone(set, m);
    }
    return reduces(spec) && cf_types[spec->type].fp8 && (!worker->fp8 || (alone && has_factor(spec->type, spec->op)));
}

/*
 * How many elements of a call's result on member m's communicator NCCL computes: all, but where there is one rank. The
 * kernel for one rank deals a message out to blocks in whole packs of 16 bytes. From 2.19.1 to 2.29.3
 * (src/device/onerank.cu) it rounds a block's share down before it rounds it up to packs: where the first gives whole
 * packs, the rest of the division is nobody's.
 */
static size_t computed(const struct cf_worker *worker, const struct cf_set *set, int m, const struct cf_spec *spec)
{
    int version = worker->nccl_version;
    size_t size = cf_types[spec->type].size, pack = ALIGN / size;
    size_t blocks = (spec->count * size + ALONE_BLOCK_BYTES - 1) / ALONE_BLOCK_BYTES;
    if (!is_alone(set, m) || !has_factor(spec->type, spec->op) || spec->count == 0 || version < ALONE_FLAWED_SINCE ||
        version >= ALONE_MENDED_SINCE) {
        return recv_count(spec, set->nranks[m]);
    }
    blocks = blocks < ALONE_BLOCKS ? blocks : ALONE_BLOCKS;
    size_t share = (spec->count / blocks + pack - 1) / pack * pack;
    return share * blocks < spec->count ? share * blocks : spec->count;
}

struct cf_batch *cf_batch_new(struct cf_worker *worker, const struct cf_set *set)
{
    struct cf_batch *batch = cf_need(worker, calloc(1, sizeof *batch));
    batch->worker = worker;
    batch->set = set;
    batch->bytes = GUARD;
    return batch;
}

static size_t place(struct cf_batch *batch, size_t bytes, unsigned shift)
{
    size_t at = (batch->bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN + shift;
    batch->bytes = at + bytes;
    return at;
}

static int most_ranks(const struct cf_batch *batch)
{
    int most = 0;
    for (int m = 0; m < batch->worker->members; m++) {
        most = batch->set->nranks[m] > most ? batch->set->nranks[m] : most;
    }
    return most;
}

void cf_batch_add(struct cf_batch *batch, const struct cf_spec *spec)
{
    const size_t size = cf_types[spec->type].size;
    const int nranks = most_ranks(batch);
    if (batch->items == batch->room) {
        batch->room = 2 * batch->room + 16;
        batch->item = cf_need(batch->worker, realloc(batch->item, (size_t)batch->room * sizeof *batch->item));
    }
    struct cf_item *item = &batch->item[batch->items++];
    item->spec = *spec;
    item->scalar = place(batch, 8, 0);
    item->send = place(batch, (spec->in_place ? cf_whole_count(spec, nranks) : send_count(spec, nranks)) * size,
                       spec->send_shift);
    item->recv = spec->in_place ? item->send : place(batch, recv_count(spec, nranks) * size, spec->recv_shift);
}

/* Where a member's own part is in the whole buffer of a call in place. */
static size_t own_part(const struct cf_batch *batch, int i, int m)
{
    const struct cf_spec *spec = &batch->item[i].spec;
    return spec->in_place ? (size_t)batch->set->rank[m] * spec->count * cf_types[spec->type].size : 0;
}

static size_t send_at(const struct cf_batch *batch, int i, int m)
{
    const struct cf_item *item = &batch->item[i];
    return item->send + (item->spec.kind == ONEHOP_ALLGATHER ? own_part(batch, i, m) : 0);
}

static size_t recv_at(const struct cf_batch *batch, int i, int m)
{
    const struct cf_item *item = &batch->item[i];
    return item->recv + (item->spec.kind == ONEHOP_REDUCESCATTER ? own_part(batch, i, m) : 0);
}

static int root_of(const struct cf_batch *batch, int i, int m)
{
    return batch->item[i].spec.root % batch->set->nranks[m];
}

static struct cf_data data_of(const struct cf_batch *batch, int i, int m)
{
    const struct cf_spec *spec = &batch->item[i].spec;
    uint64_t key = spec->key != 0 ? spec->key : cf_mix(batch->serial * 65536 + (uint64_t)i);
    return (struct cf_data){.type = &cf_types[spec->type],
                            .op = spec->op,
                            .family = spec->family,
                            .key = key ^ cf_mix(batch->worker->board->seed),
                            .nranks = batch->set->nranks[m]};
}

static void fill_item(struct cf_batch *batch, int i, int m)
{
    struct cf_data data = data_of(batch, i, m);
    const struct cf_item *item = &batch->item[i];
    int world = batch->worker->member[m].world_rank;
    size_t size = data.type->size, count = send_count(&item->spec, data.nranks), bytes = count * size;
    size_t period = CF_PERIOD * size;
    unsigned char *send = batch->before[m] + send_at(batch, i, m);
    for (size_t e = 0; e < count && e < CF_PERIOD; e++) {
        cf_store(data.type, send + e * size, cf_input(&data, world, e));
    }
    for (size_t done = period; done < bytes; done += period) {
        memcpy(send + done, send, bytes - done < period ? bytes - done : period);
    }
    cf_store(data.type, batch->before[m] + item->scalar, cf_scalar(&data, world));
}

static void fill_pattern(unsigned char *memory, size_t bytes, uint64_t key)
{
    unsigned char pattern[1024];
    for (size_t i = 0; i < sizeof pattern; i += 8) {
        uint64_t word = cf_mix(key + i);
        memcpy(pattern + i, &word, 8);
    }
    for (size_t done = 0; done < bytes; done += sizeof pattern) {
        memcpy(memory + done, pattern, bytes - done < sizeof pattern ? bytes - done : sizeof pattern);
    }
}

void cf_batch_open(struct cf_batch *batch)
{
    struct cf_worker *worker = batch->worker;
    batch->bytes += GUARD;
    batch->opened = true;
    for (int m = 0; cf_use(worker, m); m++) {
        if (batch->set->nranks[m] > 0) {
            batch->before[m] = cf_need(worker, malloc(batch->bytes));
            batch->after[m] = cf_need(worker, malloc(batch->bytes));
            CF_CU(worker, MemAlloc(&batch->arena[m], batch->bytes));
        }
    }
    cf_barrier(worker); /* to allocate memory may wait for a kernel, which may wait for a rank that is still here */
    cf_jitter(worker);
}

void cf_batch_mark(struct cf_batch *batch)
{
    cf_set_served(batch->worker, batch->set, &batch->served_before, &batch->back_before);
}

void cf_batch_load(struct cf_batch *batch, int stream)
{
    struct cf_worker *worker = batch->worker;
    batch->serial = ++worker->serial;
    if (!batch->opened) {
        cf_batch_open(batch);
    }
    for (int m = 0; cf_use(worker, m); m++) {
        if (batch->set->nranks[m] == 0) {
            continue;
        }
        fill_pattern(batch->before[m], batch->bytes, worker->board->seed + batch->serial * 8 + (uint64_t)m);
        for (int i = 0; i < batch->items; i++) {
            fill_item(batch, i, m);
        }
        CF_CU(worker,
              MemcpyHtoDAsync(batch->arena[m], batch->before[m], batch->bytes, worker->member[m].stream[stream]));
    }
    cf_batch_mark(batch);
}

void *cf_batch_send(const struct cf_batch *batch, int i, int m)
{
    return (void *)(uintptr_t)(batch->arena[m] + send_at(batch, i, m));
}

void *cf_batch_recv(const struct cf_batch *batch, int i, int m)
{
    return (void *)(uintptr_t)(batch->arena[m] + recv_at(batch, i, m));
}

static ncclRedOp_t plain_op(enum cf_op op)
{
    static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
    return ops[op];
}

/* An op of the program's own, of a member. */
static ncclRedOp_t make_op(struct cf_batch *batch, int i, int m)
{
    const struct cf_item *item = &batch->item[i];
    bool on_host = item->spec.op == CF_PREMUL_HOST;
    ncclRedOp_t op;
    uint64_t scalar;
    memcpy(&scalar, batch->before[m] + item->scalar, sizeof scalar);
    void *where = on_host ? (void *)&scalar : (void *)(uintptr_t)(batch->arena[m] + item->scalar);
    CF_NCCL(batch->worker,
            RedOpCreatePreMulSum(&op, where, item->spec.type, on_host ? ncclScalarHostImmediate : ncclScalarDevice,
                                 batch->set->comm[m]));
    scalar = 0; /* host immediate: it was read */
    return op;
}

/* Who is not the root of a broadcast may give any pointer to send from. In place, ncclBcast is the same call. */
static ncclResult_t broadcast(struct cf_batch *batch, int i, int m, CUstream stream)
{
    const struct cf_spec *spec = &batch->item[i].spec;
    const int root = root_of(batch, i, m);
    void *recv = cf_batch_recv(batch, i, m);
    const bool is_ignored = batch->set->rank[m] != root && i % 2 != 0;
    if (spec->in_place && i % 2 != 0) {
        return nccl.Bcast(recv, spec->count, spec->type, root, batch->set->comm[m], stream);
    }
    return nccl.Broadcast(is_ignored ? NULL : cf_batch_send(batch, i, m), recv, spec->count, spec->type, root,
                          batch->set->comm[m], stream);
}

static ncclResult_t call_with_op(struct cf_batch *batch, int i, int m, ncclRedOp_t op, CUstream stream)
{
    const struct cf_spec *spec = &batch->item[i].spec;
    ncclComm_t comm = batch->set->comm[m];
    const void *send = cf_batch_send(batch, i, m);
    void *recv = cf_batch_recv(batch, i, m);
    switch (spec->kind) {
    case ONEHOP_ALLGATHER:
        return nccl.AllGather(send, recv, spec->count, spec->type, comm, stream);
    case ONEHOP_REDUCESCATTER:
        return nccl.ReduceScatter(send, recv, spec->count, spec->type, op, comm, stream);
    case ONEHOP_BROADCAST:
        return broadcast(batch, i, m, stream);
    default:
        return nccl.AllReduce(send, recv, spec->count, spec->type, op, comm, stream);
    }
}

/* NCCL lets a user's op be destroyed as soon as the call that takes it has returned, within a group too. */
ncclResult_t cf_batch_call(struct cf_batch *batch, int i, int m, CUstream stream)
{
    const struct cf_spec *spec = &batch->item[i].spec;
    if (spec->op < CF_PREMUL_HOST) {
        return call_with_op(batch, i, m, plain_op(spec->op), stream);
    }
    if (batch->op[m] == 0) {
        batch->op[m] = make_op(batch, i, m);
    }
    ncclResult_t result = call_with_op(batch, i, m, batch->op[m], stream);
    if (!batch->keeps_op) {
        CF_NCCL(batch->worker, RedOpDestroy(batch->op[m], batch->set->comm[m]));
        batch->op[m] = 0;
    }
    return result;
}

static void call_members(struct cf_batch *batch, int i, int stream)
{
    struct cf_worker *worker = batch->worker;
    const struct cf_spec *spec = &batch->item[i].spec;
    for (int m = 0; cf_use(worker, m); m++) {
        ncclResult_t result =
            batch->set->comm[m] != NULL ? cf_batch_call(batch, i, m, worker->member[m].stream[stream]) : ncclSuccess;
        if (!cf_started(worker, result)) {
            cf_die(worker, "%s(count %zu, %s, %s) gave %d", cf_kind_names[spec->kind], spec->count,
                   cf_types[spec->type].name, cf_op_names[spec->op], (int)result);
        }
    }
}

void cf_batch_issue_one(struct cf_batch *batch, int i, bool grouped, int stream)
{
    cf_calls_begin(batch->worker, grouped);
    call_members(batch, i, stream);
    cf_calls_end(batch->worker, grouped, batch->set);
}

void cf_batch_issue(struct cf_batch *batch, enum cf_style style, int stream)
{
    if (style != CF_SINGLE) {
        cf_calls_begin(batch->worker, true);
    }
    for (int i = 0; i < batch->items; i++) {
        if (style == CF_GROUPED) {
            call_members(batch, i, stream);
        } else {
            cf_batch_issue_one(batch, i, style == CF_NESTED, stream);
        }
    }
    if (style != CF_SINGLE) {
        cf_calls_end(batch->worker, true, batch->set);
    }
}

const unsigned char *cf_batch_result(const struct cf_batch *batch, int item, int member)
{
    return batch->after[member] + recv_at(batch, item, member);
}

/* --- judging ----------------------------------------------------------------------------------------------------- */

/* Of an item's result on a member: how it is judged, and what is wrong. */
struct verdict {
    struct cf_data data;
    const struct cf_spec *spec;
    const int *world;
    int root;
    bool in_order;
    size_t elements, first, unwritten; /* wrong ones; those of them that are as before */
    char why[CF_TEXT];                 /* of the first */
};

static bool judge_element(const struct verdict *verdict, int part, size_t index, uint64_t got, char why_p[CF_TEXT])
{
    const struct cf_spec *spec = verdict->spec;
    if (reduces(spec)) {
        return cf_judge(&verdict->data, verdict->world, index, got, verdict->in_order, why_p, CF_TEXT);
    }
    const int from = spec->kind == ONEHOP_BROADCAST ? verdict->root : part;
    return cf_judge_moved(&verdict->data, verdict->world[from], index, got, why_p, CF_TEXT);
}

/* A part of the result, whose first element has the inputs number `index`. Mostly all periods are equal and the first
 * is right. */
static void judge_part(struct verdict *verdict, int part, const unsigned char *got, const unsigned char *poison,
                       size_t count, size_t index)
{
    const struct cf_type *type = verdict->data.type;
    const size_t size = type->size;
    char later[CF_TEXT] = "";
    bool repeats = count > CF_PERIOD && memcmp(got, got + CF_PERIOD * size, (count - CF_PERIOD) * size) == 0;
    for (size_t e = 0; e < (repeats ? CF_PERIOD : count); e++) {
        const unsigned char *at = got + e * size;
        /* What was right one period before is right here. */
        if (e >= CF_PERIOD && verdict->elements == 0 && memcmp(at, at - CF_PERIOD * size, size) == 0) {
            continue;
        }
        if (!judge_element(verdict, part, (index + e) % CF_PERIOD, cf_load(type, at),
                           verdict->elements ? later : verdict->why)) {
            verdict->first = verdict->elements++ ? verdict->first : (size_t)part * count + e;
            verdict->unwritten += memcmp(at, poison + e * size, size) == 0;
        }
    }
}

static void judge_item(struct cf_batch *batch, int i, int m)
{
    struct cf_worker *worker = batch->worker;
    const struct cf_spec *spec = &batch->item[i].spec;
    struct verdict verdict = {.data = data_of(batch, i, m),
                              .spec = spec,
                              .world = batch->set->world[m],
                              .root = root_of(batch, i, m),
                              /* NCCL multiplies by 1/n */
                              .in_order = batch->served || (worker->simulated && spec->op != CF_AVG)};
    const int nranks = batch->set->nranks[m], parts = spec->kind == ONEHOP_ALLGATHER ? nranks : 1;
    const size_t count = computed(worker, batch->set, m, spec) / (size_t)parts;
    const size_t index = spec->kind == ONEHOP_REDUCESCATTER ? (size_t)batch->set->rank[m] * spec->count : 0;
    for (int part = 0; part < parts; part++) {
        const size_t at = recv_at(batch, i, m) + (size_t)part * count * verdict.data.type->size;
        judge_part(&verdict, part, batch->after[m] + at, batch->before[m] + at, count, index);
    }
    if (verdict.elements > 0) {
        cf_fail(worker,
                "%s %s %s %s count %zu root %d %s shifts %u,%u item %d %s%s rank %d of %d: %zu wrong, %zu of them as "
                "before, the first element %zu: %s",
                cf_kind_names[spec->kind], verdict.data.type->name, cf_op_names[spec->op],
                cf_family_names[spec->family], spec->count, verdict.root, spec->in_place ? "in place" : "out of place",
                spec->send_shift, spec->recv_shift, i, spec->note != NULL ? spec->note : "",
                batch->served ? " served" : "", batch->set->rank[m], nranks, verdict.elements, verdict.unwritten,
                verdict.first, verdict.why);
    }
}

static uint64_t hash_bytes(uint64_t hash, const unsigned char *data, size_t bytes)
{
    uint64_t word = bytes;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, data + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}

/* Ranks in one thread are compared here; the launcher compares workers. */
static void note_hash(struct cf_batch *batch, const uint64_t *hash)
{
    struct cf_worker *worker = batch->worker;
    if (!batch->set->whole) {
        return;
    }
    for (int m = 1; m < worker->members; m++) {
        cf_check(worker, hash[m] == hash[0], "results of ranks 0 and %d differ", worker->member[m].world_rank);
    }
    worker->result->hash = cf_mix(worker->result->hash ^ hash[0]);
}

/*
 * Are a member's results to be looked at one by one? Where all ranks must have equal results, and whoever compares the
 * hashes finds out, one of them is enough: another one for each batch.
 */
static bool is_judge(const struct cf_batch *batch, const struct cf_spec *spec, int m)
{
    uint64_t ranks = (uint64_t)batch->worker->nranks;
    return spec->kind == ONEHOP_REDUCESCATTER || !batch->set->whole || !batch->worker->hashes_compared ||
           batch->serial % ranks == (uint64_t)batch->worker->member[m].world_rank;
}

static void judge_arena(struct cf_batch *batch, int m, bool launched, uint64_t *hash_p)
{
    unsigned char *before = batch->before[m], *after = batch->after[m];
    *hash_p = 0xcbf29ce484222325u;
    for (int i = 0; i < batch->items && launched; i++) {
        const struct cf_spec *spec = &batch->item[i].spec;
        /* What is not computed must be as it was. */
        size_t count = computed(batch->worker, batch->set, m, spec), bytes = count * cf_types[spec->type].size;
        size_t at = recv_at(batch, i, m);
        if (is_judge(batch, spec, m)) {
            judge_item(batch, i, m);
        }
        batch->worker->result->checks += count;
        *hash_p = spec->kind == ONEHOP_REDUCESCATTER ? *hash_p : hash_bytes(*hash_p, after + at, bytes);
        memcpy(before + at, after + at, bytes);
    }
    batch->worker->result->checks++;
    if (memcmp(before, after, batch->bytes) != 0) {
        size_t at = 0;
        while (before[at] == after[at]) {
            at++;
        }
        int i = batch->items - 1;
        while (i > 0 && batch->item[i].send > at + GUARD) {
            i--;
        }
        cf_fail(batch->worker, "byte %zu of the arena was changed (rank %d, %s; item %d: send at %zu, receive at %zu)",
                at, batch->set->rank[m], launched ? "not a result" : "nothing was to be launched", i,
                batch->item[i].send, batch->item[i].recv);
    }
}

/* What onehop serves for sure: messages that are not large, of any type and op. */
static bool should_serve(const struct cf_spec *spec, int nranks)
{
    size_t bytes = cf_whole_count(spec, nranks) * cf_types[spec->type].size;
    return bytes > 0 && bytes <= EXPECTED_BYTES;
}

void cf_batch_count(struct cf_batch *batch)
{
    struct cf_worker *worker = batch->worker;
    uint64_t served, back, all = 0, expected = 0, members = (uint64_t)worker->members;
    cf_set_served(worker, batch->set, &served, &back);
    served -= batch->served_before;
    worker->result->served += served;
    worker->result->fallbacks += back - batch->back_before;
    for (int i = 0; i < batch->items; i++) {
        all += batch->item[i].spec.count > 0 ? members : 0;
        for (int m = 0; m < worker->members; m++) {
            const int nranks = batch->set->nranks[m];
            expected += nranks > 1 && should_serve(&batch->item[i].spec, nranks);
        }
    }
    batch->served_before += served;
    batch->back_before = back;
    batch->served |= batch->set->whole && all > 0 && served == all;
    if (worker->expect_served && batch->set->expected && !batch->replayed && served < expected) {
        cf_fail(worker, "onehop served %llu calls of a batch in which it should serve %llu", (unsigned long long)served,
                (unsigned long long)expected);
    }
}

void cf_batch_judge(struct cf_batch *batch, int stream, bool launched)
{
    struct cf_worker *worker = batch->worker;
    uint64_t hash[CF_MAX_RANKS] = {0};
    for (int m = 0; cf_use(worker, m); m++) {
        if (batch->set->nranks[m] > 0) {
            CF_CU(worker,
                  MemcpyDtoHAsync(batch->after[m], batch->arena[m], batch->bytes, worker->member[m].stream[stream]));
            CF_CU(worker, StreamSynchronize(worker->member[m].stream[stream]));
        }
    }
    if (launched && !batch->counted) {
        cf_batch_count(batch);
    }
    for (int m = 0; m < worker->members; m++) {
        if (batch->set->nranks[m] > 0) {
            judge_arena(batch, m, launched, &hash[m]);
        }
    }
    if (launched) {
        note_hash(batch, hash);
    }
}

void cf_batch_free(struct cf_batch *batch)
{
    struct cf_worker *worker = batch->worker;
    for (int m = 0; cf_use(worker, m); m++) {
        if (batch->before[m] != NULL) {
            CF_CU(worker, MemFree(batch->arena[m]));
        }
        if (batch->op[m] != 0) {
            CF_NCCL(worker, RedOpDestroy(batch->op[m], batch->set->comm[m]));
        }
        free(batch->before[m]);
        free(batch->after[m]);
    }
    free(batch->item);
    free(batch);
}

void cf_batch_finish(struct cf_batch *batch, int stream)
{
    cf_batch_judge(batch, stream, true);
    cf_batch_free(batch);
}

void cf_batch_try(struct cf_batch *batch, enum cf_style style, int stream)
{
    cf_batch_load(batch, stream);
    cf_batch_issue(batch, style, stream);
    cf_batch_judge(batch, stream, true);
}

void cf_batch_run(struct cf_batch *batch, enum cf_style style)
{
    cf_batch_try(batch, style, 0);
    cf_batch_free(batch);
}

void cf_batch_expect_refusal(struct cf_batch *batch)
{
    struct cf_worker *worker = batch->worker;
    cf_batch_load(batch, 0);
    for (int i = 0; i < batch->items; i++) {
        const struct cf_spec *spec = &batch->item[i].spec;
        for (int m = 0; m < worker->members; m++) {
            ncclResult_t result = batch->set->comm[m] != NULL ? cf_batch_call(batch, i, m, worker->member[m].stream[0])
                                                              : ncclInvalidArgument;
            cf_check(worker, result == ncclInvalidArgument, "%s, %s, %s, of %d ranks: expected a refusal, it gave %d",
                     cf_kind_names[spec->kind], cf_types[spec->type].name, cf_op_names[spec->op], batch->set->nranks[m],
                     (int)result);
        }
    }
    cf_batch_judge(batch, 0, false);
    cf_batch_free(batch);
}
