/* SPDX-License-Identifier: MIT */
/*
 * virtual_ranks.c - the kernels of n ranks on fewer GPUs than ranks, in one process, without NCCL and without src/comm
 *
 *   virtual_ranks [-n RANKS,...] [-g GPUS] [-p PROGRAMS] [-c CALLS] [-l SECONDS] [-s SEED]
 *
 * A rank is a staging memory, a stream and a thread. Ranks are dealt out over the first GPUS GPUs (default: one), with
 * grids so small that two of each rank are resident together; otherwise a kernel could wait for one that has no room.
 * A program is a list of calls, the same on all ranks but for where the buffers lie: first every algorithm with every
 * type and op, in several sizes, then PROGRAMS lists of CALLS random ones. Each rank launches its list on
 * its own, without waiting for the others, with pauses of its own on host and GPU. Of two ranks, three kernels of four
 * that can send early do (kernels/protocol.cuh, "Pipelines"). All results are compared with the reference of
 * test/conformance (number.h); all other bytes of the buffers must be as they were.
 *
 * A program that does not end in SECONDS is told to leave by the abort flag, and has failed. Speaks TAP.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/core/staging.h"
#include "gpu/kernels.h"
#include "test/common/number.h"
#include "test/tap.h"

#define GUARD 48
#define ALIGN 16
#define PERIOD 1021             /* inputs repeat */
#define WINDOW 48               /* launches of a rank that wait on its stream at most: a launch queue must not fill */
#define MOST_BYTES (3u << 20)   /* of a message */
#define ARENA_BYTES (96u << 20) /* a program ends where the arena is full */
#define SCRATCH_BYTES (8u << 20)

/* --- the part that knows how kernels are found and launched ------------------------------------------------------- */

/* All kernels for nranks, in the current context, which is one of `device`. */
static bool load_kernels(CUdevice device, uint32_t nranks, const struct oh_kernel_set **set_p)
{
    return oh_kernel_set_get(device, nranks, set_p) == CUDA_SUCCESS;
}

/* scalar: of PreMulSum, in host memory or (CF_PREMUL_DEVICE) device memory. */
static CUresult launch_kernel(const struct oh_kernel_set *set, const struct oh_plan *plan, ncclDataType_t type,
                              enum cf_op op, const void *scalar, const struct oh_kernel_args *args, CUstream stream)
{
    static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
    struct oh_op meaning;
    if (op >= CF_PREMUL_HOST) {
        oh_op_scaled(type, scalar, op == CF_PREMUL_DEVICE, &meaning);
    } else {
        oh_op_builtin(ops[op], type, &meaning);
    }
    const struct oh_launch launch = {set, plan, &meaning, type, stream, false};
    return oh_kernel_launch(&launch, args);
}

/* ------------------------------------------------------------------------------------------------------------------ */

struct options {
    uint32_t ranks[OH_MAX_RANKS];
    int rank_count, gpus, programs, calls, limit_s;
    uint64_t seed;
};

struct gpu {
    CUdevice device;
    CUcontext context;
    int sms;
    bool fp8;
};

/* The same on all ranks. */
struct call {
    struct oh_plan plan;
    struct cf_data data;
    size_t count;
};

/* Where one rank has the buffers of a call. */
struct place {
    size_t send, recv, scalar;
};

struct rank {
    struct node *node;
    uint32_t index;
    struct gpu *gpu;
    CUstream stream;
    CUevent event[2]; /* at the end of every other half window */
    CUdeviceptr staging, arena, scratch;
    const struct oh_kernel_set *kernels;
    struct place *place;
    size_t bytes; /* of the arena in use */
    unsigned char *before, *after;
    atomic_int launched; /* calls, for the report of a hang */
    CUresult error;
    pthread_t thread;
};

struct node {
    const struct options *options;
    struct gpu gpu[OH_MAX_RANKS];
    uint32_t nranks;
    struct rank rank[OH_MAX_RANKS];
    uint32_t *abort_flag;
    CUdeviceptr abort_flag_device;
    struct call *call;
    int calls;
    uint64_t random;
    atomic_int running;
    bool lost; /* a program hung: nothing more can be learned */
};

static uint64_t draw(struct node *node, uint64_t below)
{
    node->random = cf_mix(node->random + 1);
    return node->random % below;
}

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("Bail out! %s: %s\n", what, oh_driver_error_name(result));
        fflush(stdout);
        _exit(1);
    }
}
#define CU(call_) must(oh_driver.call_, #call_)

static void *memory(size_t bytes)
{
    void *got = calloc(1, bytes);
    if (!got) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    return got;
}

static void use(const struct rank *rank)
{
    CU(ctx_set_current(rank->gpu->context));
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

/* Grids of all ranks of a GPU are resident together even where a block fills an SM. */
static uint32_t most_blocks(const struct node *node)
{
    uint32_t per_gpu = (node->nranks + (uint32_t)node->options->gpus - 1) / (uint32_t)node->options->gpus;
    uint32_t most = (uint32_t)node->gpu[0].sms * 3 / 4 / per_gpu / 2;
    return most < 1 ? 1 : most > OH_MAX_BLOCKS ? OH_MAX_BLOCKS : most;
}

static void choose_shape(struct node *node, struct oh_plan *plan)
{
    static const uint32_t blocks[] = {1, 2, 3, 5, 8, 12, 16, 24, 32}, threads[] = {32, 64, 96, 128, 256, 512};
    plan->blocks = blocks[draw(node, 9)];
    plan->threads = threads[draw(node, 6)];
    uint32_t most = most_blocks(node);
    plan->blocks = plan->blocks > most ? most : plan->blocks;
}

static bool may_run(const struct node *node, ncclDataType_t type)
{
    return !cf_types[type].fp8 || node->gpu[0].fp8;
}

/* Returns false when it does not fit any more. */
static bool add_call(struct node *node, struct call call)
{
    size_t size = call.data.type->size;
    uint64_t most = oh_plan_kernel_words(call.plan.algorithm, node->nranks) * OH_WORD_BYTES;
    most = most < MOST_BYTES ? most : MOST_BYTES;
    call.count = call.count * size > most ? (size_t)most / size : call.count;
    call.data.nranks = (int)node->nranks;
    call.data.key = cf_mix(node->random ^ (uint64_t)node->calls);
    for (uint32_t r = 0; r < node->nranks; r++) {
        struct rank *rank = &node->rank[r];
        if (rank->bytes + 2 * (call.count * size + GUARD + 2 * ALIGN) + 64 > ARENA_BYTES) {
            return false;
        }
    }
    if (node->calls == node->options->calls) {
        return false;
    }
    bool in_place = draw(node, 3) == 0;
    for (uint32_t r = 0; r < node->nranks; r++) {
        struct rank *rank = &node->rank[r];
        struct place *place = &rank->place[node->calls];
        size_t slots = ALIGN / size, start = (rank->bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
        bool aligned = draw(node, 2) == 0; /* both the fast way and the other in one call */
        place->scalar = start;
        place->send = start + ALIGN + (aligned ? 0 : draw(node, slots) * size);
        place->recv = place->send;
        if (!in_place) {
            size_t behind = (place->send + call.count * size + GUARD + ALIGN - 1) / ALIGN * ALIGN;
            place->recv = behind + (draw(node, 2) ? 0 : draw(node, slots) * size);
        }
        rank->bytes = place->recv + call.count * size + GUARD;
    }
    node->call[node->calls++] = call;
    return true;
}

static void begin_program(struct node *node)
{
    node->calls = 0;
    for (uint32_t r = 0; r < node->nranks; r++) {
        node->rank[r].bytes = 0;
    }
}

static enum cf_family family_for(struct node *node, const struct cf_type *type)
{
    return type->mantissa == 0 ? (draw(node, 2) ? CF_EXACT : CF_SENTINEL) : (enum cf_family)draw(node, CF_FAMILIES);
}

static size_t random_count(struct node *node, size_t size)
{
    uint64_t kind = draw(node, 100);
    if (kind == 0) {
        return MOST_BYTES / size - draw(node, 5000);
    }
    if (kind < 5) {
        return 1 + draw(node, (256 << 10) / size);
    }
    return 1 + draw(node, kind < 20 ? 9 : 6000);
}

static void random_program(struct node *node)
{
    begin_program(node);
    for (bool room = true; room;) {
        struct call call = {.plan.algorithm = (enum onehop_algorithm)draw(node, ONEHOP_ALGORITHM_COUNT)};
        ncclDataType_t type = (ncclDataType_t)draw(node, ncclNumTypes);
        enum cf_op op = (enum cf_op)draw(node, CF_OPS);
        if (!may_run(node, type)) {
            continue;
        }
        choose_shape(node, &call.plan);
        call.data = (struct cf_data){.type = &cf_types[type], .op = op, .family = family_for(node, &cf_types[type])};
        call.count = random_count(node, cf_types[type].size);
        if (draw(node, 2)) { /* whole words have a faster way */
            size_t per_word = OH_WORD_BYTES / cf_types[type].size;
            call.count = (call.count + per_word - 1) / per_word * per_word;
        }
        room = add_call(node, call);
    }
}

/* Runs a program; false: it did not end well. */
static bool run_program(struct node *node, uint32_t epoch);

/* Every kernel that there is, in several sizes; in several programs if need be. Returns the number of kernels. */
static int systematic_programs(struct node *node, bool *good_p)
{
    static const size_t counts[] = {1, 7, 64, 1024, 4099, 30016, 200003};
    int kernels = 0;
    begin_program(node);
    for (int i = 0; i < (int)ONEHOP_ALGORITHM_COUNT * (int)ncclNumTypes * CF_OPS && *good_p; i++) {
        int algorithm = i % ONEHOP_ALGORITHM_COUNT, type = i / ONEHOP_ALGORITHM_COUNT % (int)ncclNumTypes;
        enum cf_op op = (enum cf_op)(i / ONEHOP_ALGORITHM_COUNT / (int)ncclNumTypes);
        if (!may_run(node, (ncclDataType_t)type)) {
            continue;
        }
        kernels++;
        for (size_t c = 0; c < sizeof counts / sizeof *counts && *good_p; c++) {
            struct call call = {.plan.algorithm = (enum onehop_algorithm)algorithm, .count = counts[c]};
            choose_shape(node, &call.plan);
            call.data =
                (struct cf_data){.type = &cf_types[type], .op = op, .family = family_for(node, &cf_types[type])};
            if (!add_call(node, call)) {
                *good_p &= run_program(node, 0);
                begin_program(node);
                add_call(node, call);
            }
        }
    }
    *good_p = *good_p && (node->calls == 0 || run_program(node, 0));
    return kernels;
}

/* --- running -------------------------------------------------------------------------------------------------------
 */

static void fill_arena(struct node *node, struct rank *rank)
{
    for (size_t i = 0; i < rank->bytes; i++) {
        rank->before[i] = (unsigned char)(i * 37 + rank->index * 11 + (i >> 8));
    }
    for (int c = 0; c < node->calls; c++) {
        const struct call *call = &node->call[c];
        size_t size = call->data.type->size, bytes = call->count * size, period = PERIOD * size;
        unsigned char *send = rank->before + rank->place[c].send;
        for (size_t e = 0; e < call->count && e < PERIOD; e++) {
            cf_store(call->data.type, send + e * size, cf_input(&call->data, (int)rank->index, e));
        }
        for (size_t done = period; done < bytes; done += period) {
            memcpy(send + done, send, bytes - done < period ? bytes - done : period);
        }
        cf_store(call->data.type, rank->before + rank->place[c].scalar, cf_scalar(&call->data, (int)rank->index));
    }
    use(rank);
    CU(memcpy_htod_async(rank->arena, rank->before, rank->bytes, rank->stream));
}

/* As it is between kernels (kernels/abi.h), with the epoch that the next one follows. */
static void reset_staging(struct rank *rank, uint32_t epoch)
{
    use(rank);
    CU(memset_d32_async(rank->staging, 0, OH_STAGING_BYTES / 4, rank->stream));
    CU(memset_d32_async(rank->staging + OH_WORDS_OFFSET, OH_SENTINEL, (OH_ESCAPE_OFFSET - OH_WORDS_OFFSET) / 4,
                        rank->stream));
    CU(memset_2d_d32_async(rank->staging + OH_EPOCH_OFFSET, sizeof(struct oh_epoch), epoch, 1, OH_MAX_BLOCKS,
                           rank->stream));
}

/* A number of this rank's own for a call. */
static uint64_t own_draw(const struct rank *rank, int c)
{
    return cf_mix(rank->node->random + (uint64_t)c * OH_MAX_RANKS + rank->index);
}

static CUresult launch_call(struct rank *rank, int c)
{
    struct node *node = rank->node;
    const struct call *call = &node->call[c];
    const struct place *place = &rank->place[c];
    struct oh_kernel_args args = {
        .sendbuff = (const void *)(uintptr_t)(rank->arena + place->send),
        .recvbuff = (void *)(uintptr_t)(rank->arena + place->recv),
        .count = call->count,
        .abort_flag = (const uint32_t *)(uintptr_t)node->abort_flag_device,
        .rank = rank->index,
        .nranks = node->nranks,
        .early_trigger = own_draw(rank, c) >> 10 & 1,
    };
    for (uint32_t j = 0; j < node->nranks; j++) {
        args.staging[j] = (char *)(uintptr_t)node->rank[(rank->index + j) % node->nranks].staging;
    }
    const void *scalar = call->data.op == CF_PREMUL_DEVICE ? (const void *)(uintptr_t)(rank->arena + place->scalar)
                                                           : rank->before + place->scalar;
    return launch_kernel(rank->kernels, &call->plan, call->data.type->nccl, call->data.op, scalar, &args, rank->stream);
}

/* A pause of this rank's own, on the host or on its stream. */
static CUresult pause_now_and_then(struct rank *rank, uint64_t random)
{
    if (random % 64 == 0) {
        usleep((useconds_t)(random >> 32) % 300);
    } else if (random % 16 == 1) {
        return oh_driver.memset_d8_async(rank->scratch, 0, (random >> 32) % SCRATCH_BYTES, rank->stream);
    }
    return CUDA_SUCCESS;
}

static CUresult launch_all(struct rank *rank)
{
    struct node *node = rank->node;
    CUresult result = oh_driver.ctx_set_current(rank->gpu->context);
    for (int c = 0; c < node->calls && result == CUDA_SUCCESS; c++) {
        result = pause_now_and_then(rank, own_draw(rank, c));
        if (result == CUDA_SUCCESS) {
            result = launch_call(rank, c);
        }
        atomic_store(&rank->launched, c + 1);
        if (c % (WINDOW / 2) == 0 && result == CUDA_SUCCESS) {
            CUevent event = rank->event[c / (WINDOW / 2) % 2];
            result = c >= WINDOW ? oh_driver.event_synchronize(event) : CUDA_SUCCESS; /* half a window ago and more */
            if (result == CUDA_SUCCESS) {
                result = oh_driver.event_record(event, rank->stream);
            }
        }
    }
    return result == CUDA_SUCCESS ? oh_driver.stream_synchronize(rank->stream) : result;
}

static void *run_rank(void *user)
{
    struct rank *rank = user;
    rank->error = launch_all(rank);
    atomic_fetch_sub(&rank->node->running, 1);
    return NULL;
}

/* Waits for all ranks; after the time limit sets the abort flag. */
static bool wait_for_ranks(struct node *node)
{
    bool late = false, good = true;
    long polls = 0, most = node->options->limit_s * 1000L;
    while (atomic_load(&node->running) > 0) {
        usleep(1000);
        if (++polls > most && !late) {
            late = true;
            for (uint32_t r = 0; r < node->nranks; r++) {
                tap_note("rank %u has launched %d of %d calls", r, atomic_load(&node->rank[r].launched), node->calls);
            }
            __atomic_store_n(node->abort_flag, 1, __ATOMIC_RELEASE);
        }
        if (polls > 3 * most) {
            printf("Bail out! n=%u: the kernels do not leave for the abort flag\n", node->nranks);
            fflush(stdout);
            _exit(1);
        }
    }
    for (uint32_t r = 0; r < node->nranks; r++) {
        pthread_join(node->rank[r].thread, NULL);
        must(node->rank[r].error, "launching");
        good &= node->rank[r].error == CUDA_SUCCESS;
    }
    return good && !late;
}

static bool judge_element(const struct call *call, size_t e, const unsigned char *got, char *why, size_t bytes)
{
    static const int world[OH_MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    const struct cf_type *type = call->data.type;
    const unsigned char *at = got + e * type->size;
    if (e >= PERIOD && memcmp(at, at - PERIOD * type->size, type->size) == 0) {
        return true;
    }
    return cf_judge(&call->data, world, e % PERIOD, cf_load(type, at), true, why, bytes);
}

static void explain(const struct node *node, int c, uint32_t rank, size_t e, const char *why)
{
    const struct call *call = &node->call[c];
    const struct place *place = &node->rank[rank].place[c];
    tap_note("n=%u call %d %s %s %s %s count %zu grid %ux%u send %%16=%zu receive %%16=%zu%s rank %u element %zu: %s",
             node->nranks, c, oh_algorithm_name((int)call->plan.algorithm), call->data.type->name,
             cf_op_names[call->data.op], cf_family_names[call->data.family], call->count, call->plan.blocks,
             call->plan.threads, place->send % 16, place->recv % 16, place->send == place->recv ? " in place" : "",
             rank, e, why);
}

/* Rank 0 against the reference, the others against rank 0. */
static bool judge_call(const struct node *node, int c)
{
    const struct call *call = &node->call[c];
    size_t size = call->data.type->size;
    const unsigned char *first = node->rank[0].after + node->rank[0].place[c].recv;
    char why[400];
    for (size_t e = 0; e < call->count; e++) {
        if (!judge_element(call, e, first, why, sizeof why)) {
            explain(node, c, 0, e, why);
            return false;
        }
    }
    for (uint32_t r = 1; r < node->nranks; r++) {
        const unsigned char *other = node->rank[r].after + node->rank[r].place[c].recv;
        if (memcmp(first, other, call->count * size) != 0) {
            size_t e = 0;
            while (memcmp(first + e * size, other + e * size, size) == 0) {
                e++;
            }
            snprintf(why, sizeof why, "%#llx, rank 0 has %#llx",
                     (unsigned long long)cf_load(call->data.type, other + e * size),
                     (unsigned long long)cf_load(call->data.type, first + e * size));
            explain(node, c, r, e, why);
            return false;
        }
    }
    return true;
}

static bool judge_program(struct node *node)
{
    int bad = 0;
    for (uint32_t r = 0; r < node->nranks; r++) {
        struct rank *rank = &node->rank[r];
        use(rank);
        CU(memcpy_dtoh_async(rank->after, rank->arena, rank->bytes, rank->stream));
        CU(stream_synchronize(rank->stream));
    }
    for (int c = 0; c < node->calls && bad < 5; c++) {
        bad += !judge_call(node, c);
    }
    for (uint32_t r = 0; r < node->nranks && bad == 0; r++) {
        struct rank *rank = &node->rank[r];
        for (int c = 0; c < node->calls; c++) { /* now all but the results must be as before */
            size_t bytes = node->call[c].count * node->call[c].data.type->size;
            memcpy(rank->before + rank->place[c].recv, rank->after + rank->place[c].recv, bytes);
        }
        if (memcmp(rank->before, rank->after, rank->bytes) != 0) {
            tap_note("n=%u rank %u: a byte that is no result was written", node->nranks, r);
            bad++;
        }
    }
    return bad == 0;
}

static bool run_program(struct node *node, uint32_t epoch)
{
    for (uint32_t r = 0; r < node->nranks; r++) {
        fill_arena(node, &node->rank[r]);
        reset_staging(&node->rank[r], epoch);
        atomic_store(&node->rank[r].launched, 0);
    }
    for (uint32_t r = 0; r < node->nranks; r++) { /* nobody writes into staging that is being cleared */
        use(&node->rank[r]);
        CU(stream_synchronize(node->rank[r].stream));
    }
    atomic_store(&node->running, (int)node->nranks);
    for (uint32_t r = 0; r < node->nranks; r++) {
        if (pthread_create(&node->rank[r].thread, NULL, run_rank, &node->rank[r]) != 0) {
            printf("Bail out! no thread\n");
            exit(1);
        }
    }
    if (!wait_for_ranks(node)) {
        tap_note("n=%u: not finished after %d seconds", node->nranks, node->options->limit_s);
        node->lost = true;
        return false;
    }
    return judge_program(node);
}

/* --- GPUs and ranks ------------------------------------------------------------------------------------------------
 */

static void open_gpu(struct node *node, int index)
{
    struct gpu *gpu = &node->gpu[index];
    int major;
    CU(device_get(&gpu->device, index));
    CU(primary_ctx_retain(&gpu->context, gpu->device));
    CU(device_get_attribute(&gpu->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device));
    CU(device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu->device));
    gpu->fp8 = major >= 9;
}

static void open_gpus(struct node *node)
{
    int gpus = node->options->gpus;
    for (int g = 0; g < gpus; g++) {
        open_gpu(node, g);
    }
    for (int g = 0; g < gpus; g++) {
        CU(ctx_set_current(node->gpu[g].context));
        for (int p = 0; p < gpus; p++) {
            if (p != g) {
                CUresult result = oh_driver.ctx_enable_peer_access(node->gpu[p].context, 0);
                must(result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : result, "peer access");
            }
        }
    }
    CU(ctx_set_current(node->gpu[0].context));
    static _Alignas(4096) uint32_t page[1024]; /* the abort flag at its head */
    node->abort_flag = page;
    CU(mem_host_register(page, sizeof page, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    CU(mem_host_get_device_pointer(&node->abort_flag_device, node->abort_flag, 0));
}

static void open_rank(struct node *node, uint32_t r)
{
    struct rank *rank = &node->rank[r];
    *rank = (struct rank){.node = node, .index = r, .gpu = &node->gpu[r % (uint32_t)node->options->gpus]};
    use(rank);
    CU(stream_create(&rank->stream, CU_STREAM_NON_BLOCKING));
    CU(event_create(&rank->event[0], CU_EVENT_DISABLE_TIMING));
    CU(event_create(&rank->event[1], CU_EVENT_DISABLE_TIMING));
    CU(mem_alloc(&rank->staging, OH_STAGING_BYTES));
    CU(mem_alloc(&rank->arena, ARENA_BYTES));
    CU(mem_alloc(&rank->scratch, SCRATCH_BYTES));
    rank->before = memory(ARENA_BYTES);
    rank->after = memory(ARENA_BYTES);
    rank->place = memory((size_t)node->options->calls * sizeof *rank->place);
    if (!load_kernels(rank->gpu->device, node->nranks, &rank->kernels)) {
        printf("Bail out! the kernels for %u ranks cannot be loaded\n", node->nranks);
        exit(1);
    }
}

static void close_rank(struct node *node, uint32_t r)
{
    struct rank *rank = &node->rank[r];
    use(rank);
    CU(mem_free(rank->scratch));
    CU(mem_free(rank->arena));
    CU(mem_free(rank->staging));
    CU(event_destroy(rank->event[0]));
    CU(event_destroy(rank->event[1]));
    CU(stream_destroy(rank->stream));
    free(rank->before);
    free(rank->after);
    free(rank->place);
}

/* Epochs at which the wrap, and nothing of the kind, lie within the next program. */
static const uint32_t epochs[] = {0, UINT32_MAX - 40, 12345};

static void test_ranks(struct node *node, uint32_t nranks)
{
    bool good = true;
    node->nranks = nranks;
    for (uint32_t r = 0; r < nranks; r++) {
        open_rank(node, r);
    }
    int kernels = systematic_programs(node, &good);
    tap_ok(good, "n=%u on %d GPU(s): every kernel, %d of them", nranks, node->options->gpus, kernels);
    int calls = 0, programs = 0;
    for (; programs < node->options->programs && good; programs++) {
        random_program(node);
        calls += node->calls;
        good = run_program(node, epochs[programs % (int)(sizeof epochs / sizeof *epochs)]);
    }
    tap_ok(good, "n=%u on %d GPU(s): %d calls in %d random programs", nranks, node->options->gpus, calls, programs);
    if (node->lost) { /* what the abort left behind is not worth a look */
        printf("Bail out! seed %llu\n", (unsigned long long)node->options->seed);
        exit(1);
    }
    for (uint32_t r = 0; r < nranks; r++) {
        close_rank(node, r);
    }
}

static void parse_ranks(struct options *options, const char *text)
{
    options->rank_count = 0;
    for (char *end = (char *)text; *end && options->rank_count < OH_MAX_RANKS;) {
        options->ranks[options->rank_count++] = (uint32_t)strtoul(end, &end, 10);
        end += *end != '\0';
    }
}

static bool parse(int argc, char **argv, struct options *options)
{
    bool good = true;
    for (int option; (option = getopt(argc, argv, "n:g:p:c:l:s:")) != -1;) {
        switch (option) {
        case 'n':
            parse_ranks(options, optarg);
            break;
        case 'g':
            options->gpus = atoi(optarg);
            break;
        case 'p':
            options->programs = atoi(optarg);
            break;
        case 'c':
            options->calls = atoi(optarg);
            break;
        case 'l':
            options->limit_s = atoi(optarg);
            break;
        case 's':
            options->seed = strtoull(optarg, NULL, 0);
            break;
        default:
            good = false;
        }
    }
    for (int i = 0; i < options->rank_count; i++) {
        good &= options->ranks[i] >= 2 && options->ranks[i] <= OH_MAX_RANKS;
    }
    return good && options->gpus >= 1 && options->gpus <= OH_MAX_RANKS && options->calls >= 1 && options->limit_s >= 1;
}

int main(int argc, char **argv)
{
    struct options options = {.ranks = {2, 3, 4, 5, 6, 7, 8},
                              .rank_count = 7,
                              .gpus = 1,
                              .programs = 5,
                              .calls = 1500,
                              .limit_s = 30,
                              .seed = (uint64_t)time(NULL)};
    static struct node node;
    int gpus = 0;
    if (!parse(argc, argv, &options)) {
        fprintf(stderr,
                "usage: virtual_ranks [-n RANKS,...] [-g GPUS] [-p PROGRAMS] [-c CALLS] [-l SECONDS] [-s SEED]\n");
        return 2;
    }
    /* Streams that share a hardware queue would wait for one another. Read by the driver when it starts. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (oh_driver_open() != ncclSuccess || oh_driver.device_get_count(&gpus) != CUDA_SUCCESS || gpus < options.gpus) {
        tap_skip_all("not as many GPUs");
    }
    printf("# seed %llu\n", (unsigned long long)options.seed);
    node.options = &options;
    node.random = cf_mix(options.seed);
    node.call = memory((size_t)options.calls * sizeof *node.call);
    open_gpus(&node);
    for (int i = 0; i < options.rank_count; i++) {
        test_ranks(&node, options.ranks[i]);
    }
    free(node.call);
    return tap_done();
}
