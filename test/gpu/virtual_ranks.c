/* SPDX-License-Identifier: MIT */
/*
 * virtual_ranks.c - the kernels of n ranks on fewer GPUs than ranks, in one process, without NCCL and without src/comm
 *
 *   virtual_ranks [-n RANKS,...] [-g GPUS] [-p PROGRAMS] [-c CALLS] [-l SECONDS] [-s SEED]
 *
 * A rank is a staging memory, a stream and a thread. Ranks are dealt out over the first GPUS GPUs (default: one), with
 * grids so small that two of each rank are resident together; otherwise a kernel could wait for one that has no room.
 * A program is a list of calls, the same on all ranks but for where the buffers lie: first every collective and
 * algorithm with every type and op, in several sizes, then PROGRAMS lists of CALLS random ones. Some go as a call list,
 * which shares their elements out. Each rank launches its list on its own, without waiting for the others, with pauses
 * of its own on host and GPU. All results are compared with the reference of test/common (number.h); all other bytes of
 * the buffers must be as they were.
 *
 * A program that does not end in SECONDS is told to leave by the abort flag, and has failed. Speaks TAP.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/shared/staging.h"
#include "gpu/kernels.h"
#include "test/common/batch.h"
#include "test/common/options.h"
#include "test/tap.h"

#define WINDOW 48               /* launches of a rank that wait on its stream at most: a launch queue must not fill */
#define MOST_BYTES (3u << 20)   /* of the larger buffer */
#define ARENA_BYTES (96u << 20) /* a program ends where the arena is full */
#define SCRATCH_BYTES (8u << 20)
#define AROUND_BYTES 256 /* at most, of a call in the arena beside its buffers */

static struct {
    struct cf_ranks ranks;
    int gpus, programs, calls, limit_s;
    uint64_t seed;
} options = {.ranks = {{2, 3, 4, 5, 6, 7, 8}, 7}, .gpus = 1, .programs = 5, .calls = 1500, .limit_s = 30};

/* The sources of kernels. */
static const struct source {
    enum onehop_collective collective;
    enum onehop_algorithm algorithm;
} sources[OH_KERNEL_IMAGES] = {{ONEHOP_ALLREDUCE, ONEHOP_ONESHOT},
                               {ONEHOP_ALLREDUCE, ONEHOP_TWOSHOT},
                               {ONEHOP_ALLGATHER, ONEHOP_ONESHOT},
                               {ONEHOP_REDUCESCATTER, ONEHOP_ONESHOT},
                               {ONEHOP_BROADCAST, ONEHOP_ONESHOT}};

/* What a call is beside its spec. */
struct call {
    struct oh_plan plan;
    unsigned items; /* of a call list; 0: it is none */
    char note[64];
};

struct node;

struct rank {
    struct node *node;
    struct cf_worker *worker;
    struct cf_set set; /* all ranks; there is no communicator */
    struct cf_source common, own;
    const struct oh_kernel_set *kernels;
    CUdeviceptr staging, scratch;
    CUevent event[2]; /* at the end of every other half window */
    struct cf_batch *batch;
    size_t room; /* of the arena, for all calls of the program; counted alike on all ranks */
    struct call *call;
    atomic_int launched; /* calls, for the report of a hang */
};

struct node {
    int nranks, sms;
    struct rank rank[OH_MAX_RANKS];
    uint32_t *abort_flag;
    CUdeviceptr abort_flag_device;
    _Atomic double begun; /* when a program began; 0: none is running */
    atomic_bool lost;     /* a program hung: nothing more can be learned */
};

static void bail_out(const char *what)
{
    printf("Bail out! %s\n", what);
    fflush(stdout);
    _exit(1);
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

/* Grids of all ranks of a GPU are resident together even where a block fills an SM. */
static uint32_t most_blocks(const struct node *node)
{
    int per_gpu = (node->nranks + options.gpus - 1) / options.gpus, most = node->sms * 3 / 4 / per_gpu / 2;
    return most < 1 ? 1 : most > OH_MAX_BLOCKS ? OH_MAX_BLOCKS : (uint32_t)most;
}

static struct oh_plan choose_plan(struct rank *rank, const struct source *source)
{
    static const uint32_t blocks[] = {1, 2, 3, 5, 8, 12, 16, 24, 32}, threads[] = {32, 64, 96, 128, 256, 512, 1024};
    const uint32_t nranks = (uint32_t)rank->node->nranks;
    const uint32_t largest =
        source->collective == ONEHOP_BROADCAST ? OH_BROADCAST_BLOCK_THREADS(nranks) : OH_BLOCK_THREADS(nranks);
    struct oh_plan plan = {.collective = source->collective, .algorithm = source->algorithm};
    uint32_t most = most_blocks(rank->node);
    plan.blocks = blocks[cf_draw(&rank->common, 9)];
    plan.threads = threads[cf_draw(&rank->common, 7)];
    plan.threads = plan.threads > largest ? largest : plan.threads;
    plan.blocks = plan.blocks > most ? most : plan.blocks;
    return plan;
}

static void begin_program(struct rank *rank)
{
    rank->room = 0;
    rank->batch = cf_batch_new(rank->worker, &rank->set);
    rank->batch->counted = true;
    rank->batch->served = true; /* by these kernels */
}

/* Bytes that a kernel, and a call here, can have: of a part, where there is one for each rank. */
static uint64_t most_bytes(const struct source *source, uint32_t nranks, unsigned items)
{
    const uint64_t kernel = (oh_plan_kernel_words(source->algorithm, nranks) - items) * OH_WORD_BYTES;
    const uint64_t here = MOST_BYTES / oh_collective_parts(source->collective, nranks);
    return kernel < here ? kernel : here;
}

/* items: as in struct call. Returns false when the call does not fit any more. */
static bool add_call(struct rank *rank, const struct source *source, unsigned items, struct cf_spec spec)
{
    struct cf_batch *batch = rank->batch;
    struct call *call = &rank->call[batch->items];
    size_t size = cf_types[spec.type].size;
    uint64_t most = most_bytes(source, (uint32_t)rank->node->nranks, items);
    spec.kind = source->collective;
    spec.count = spec.count * size > most ? (size_t)most / size : spec.count;
    spec.root = (int)cf_draw(&rank->common, (uint64_t)rank->node->nranks);
    /* the arena has its own shifts */
    rank->room += 2 * cf_whole_count(&spec, rank->node->nranks) * size + AROUND_BYTES;
    if (batch->items == options.calls || rank->room > ARENA_BYTES) {
        return false;
    }
    call->plan = choose_plan(rank, source);
    call->items = items > spec.count ? (unsigned)spec.count : items;
    snprintf(call->note, sizeof call->note, "%s, %ux%u, list of %u", oh_algorithm_name((int)source->algorithm),
             call->plan.blocks, call->plan.threads, call->items);
    spec.note = call->note;
    spec.in_place = cf_draw(&rank->common, 3) == 0;
    if (cf_draw(&rank->own, 2)) { /* both the fast way and the other in one call */
        spec.send_shift = (unsigned)(cf_draw(&rank->own, 16 / size) * size);
        spec.recv_shift = (unsigned)(cf_draw(&rank->own, 2) * cf_draw(&rank->own, 16 / size) * size);
    }
    cf_batch_add(batch, &spec);
    return true;
}

static enum cf_family random_family(struct rank *rank, ncclDataType_t type)
{
    return cf_types[type].mantissa == 0 ? (cf_draw(&rank->common, 2) ? CF_EXACT : CF_SENTINEL)
                                        : (enum cf_family)cf_draw(&rank->common, CF_FAMILIES);
}

static size_t random_count(struct cf_source *common, size_t size)
{
    uint64_t kind = cf_draw(common, 100);
    if (kind == 0) {
        return MOST_BYTES / size - cf_draw(common, 5000);
    }
    if (kind < 5) {
        return 1 + cf_draw(common, (256 << 10) / size);
    }
    return 1 + cf_draw(common, kind < 20 ? 9 : 6000);
}

static void random_program(struct rank *rank)
{
    begin_program(rank);
    for (bool room = true; room;) {
        const struct source *source = &sources[cf_draw(&rank->common, OH_KERNEL_IMAGES)];
        const bool reduces = oh_collective_reduces(source->collective);
        const unsigned items = cf_draw(&rank->common, 4) ? 0 : 1 + (unsigned)cf_draw(&rank->common, OH_LIST_CALLS);
        struct cf_spec spec = {.type = (ncclDataType_t)cf_draw(&rank->common, ncclNumTypes),
                               .op = (enum cf_op)(reduces ? cf_draw(&rank->common, CF_OPS) : CF_SUM)};
        if (cf_types[spec.type].fp8 && !rank->worker->fp8) {
            continue;
        }
        spec.family = random_family(rank, spec.type);
        spec.count = random_count(&rank->common, cf_types[spec.type].size);
        if (cf_draw(&rank->common, 2)) { /* whole words have a faster way */
            size_t per_word = OH_WORD_BYTES / cf_types[spec.type].size;
            spec.count = (spec.count + per_word - 1) / per_word * per_word;
        }
        room = add_call(rank, source, items, spec);
    }
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* As it is between kernels (kernels/abi.h), with the epoch that the next one follows. */
static void reset_staging(struct rank *rank, uint32_t epoch)
{
    const size_t words_bytes = OH_STAGING_BYTES(rank->worker->nranks) - OH_WORDS_OFFSET;
    CUstream stream = rank->worker->member[0].stream[0];
    CUresult result = oh_driver.memset_d32_async(rank->staging, 0, OH_WORDS_OFFSET / 4, stream);
    if (result == CUDA_SUCCESS) {
        result = oh_driver.memset_d32_async(rank->staging + OH_WORDS_OFFSET, OH_SENTINEL, words_bytes / 4, stream);
    }
    for (size_t b = 0; b < OH_MAX_BLOCKS && result == CUDA_SUCCESS; b++) {
        result =
            oh_driver.memset_d32_async(rank->staging + OH_EPOCH_OFFSET + b * sizeof(struct oh_epoch), epoch, 1, stream);
    }
    cf_check(rank->worker, result == CUDA_SUCCESS, "clearing the staging memory gave %d", (int)result);
}

/* Each call of the list has as many elements, the last has what is left. */
static CUresult launch_list(const struct oh_launch *launch, const struct oh_kernel_args *args, unsigned items)
{
    const bool reduces = oh_collective_reduces(launch->plan->collective);
    const uint64_t size = reduces ? cf_types[launch->type].size : 1, each = args->count / items;
    struct oh_kernel_list_args list = {.base = *args, .calls = items};
    for (unsigned k = 0; k < items; k++) {
        const uint64_t first = k * each, count = k + 1 == items ? args->count - first : each;
        list.item[k] = (struct oh_list_item){.sendbuff = (const char *)args->sendbuff + first * size,
                                             .recvbuff = (char *)args->recvbuff + first * size,
                                             .count = count,
                                             .stride = args->stride,
                                             .root = args->root,
                                             .first_word = list.words};
        list.words += (uint32_t)oh_message_words(count, size);
    }
    return oh_kernel_launch_list(launch, &list);
}

static CUresult launch_call(struct rank *rank, int c)
{
    static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
    struct node *node = rank->node;
    const struct cf_batch *batch = rank->batch;
    const struct cf_item *item = &batch->item[c];
    const size_t size = cf_types[item->spec.type].size, bytes = item->spec.count * size;
    int index = rank->worker->index;
    struct oh_op op;
    struct oh_kernel_args args = {
        .sendbuff = cf_batch_send(batch, c, 0),
        .recvbuff = cf_batch_recv(batch, c, 0),
        .count = oh_collective_reduces(item->spec.kind) ? item->spec.count : bytes,
        .stride = oh_collective_has_parts(item->spec.kind) ? bytes : 0,
        .root = (uint32_t)item->spec.root,
        .abort_flag = (const uint32_t *)(uintptr_t)node->abort_flag_device,
        .rank = (uint32_t)index,
        .nranks = (uint32_t)node->nranks,
        .trigger = (uint32_t)cf_draw(&rank->own, 3),
    };
    for (int j = 0; j < node->nranks; j++) {
        args.staging[j] = (char *)(uintptr_t)node->rank[(index + j) % node->nranks].staging;
    }
    if (item->spec.op == CF_PREMUL_DEVICE) {
        oh_op_scaled(item->spec.type, (const void *)(uintptr_t)(batch->arena[0] + item->scalar), true, &op);
    } else if (item->spec.op == CF_PREMUL_HOST) {
        oh_op_scaled(item->spec.type, batch->before[0] + item->scalar, false, &op);
    } else {
        oh_op_builtin(ops[item->spec.op], item->spec.type, &op);
    }
    const struct oh_launch launch = {
        rank->kernels, &rank->call[c].plan, &op, item->spec.type, rank->worker->member[0].stream[0], false};
    const unsigned items = rank->call[c].items;
    return items > 0 ? launch_list(&launch, &args, items) : oh_kernel_launch(&launch, &args);
}

/* A pause of this rank's own, on the host or on its stream. */
static void pause_now_and_then(struct rank *rank)
{
    uint64_t kind = cf_draw(&rank->own, 64);
    if (kind == 0) {
        usleep((useconds_t)cf_draw(&rank->own, 300));
    } else if (kind % 16 == 1) {
        CF_CU(rank->worker,
              MemsetD8Async(rank->scratch, 0, cf_draw(&rank->own, SCRATCH_BYTES), rank->worker->member[0].stream[0]));
    }
}

static void launch_all(struct rank *rank)
{
    CUstream stream = rank->worker->member[0].stream[0];
    for (int c = 0; c < rank->batch->items; c++) {
        pause_now_and_then(rank);
        CUresult result = launch_call(rank, c);
        cf_check(rank->worker, result == CUDA_SUCCESS, "launching call %d gave %d", c, (int)result);
        atomic_store(&rank->launched, c + 1);
        if (c % (WINDOW / 2) == 0) {
            CUevent event = rank->event[c / (WINDOW / 2) % 2];
            if (c >= WINDOW) {
                CF_CU(rank->worker, EventSynchronize(event)); /* half a window ago and more */
            }
            CF_CU(rank->worker, EventRecord(event, stream));
        }
    }
    CF_CU(rank->worker, StreamSynchronize(stream));
}

/* A thread of its own: after the time limit it sets the abort flag. */
static void *watch(void *user)
{
    struct node *node = user;
    for (;; usleep(1000)) {
        double begun = atomic_load(&node->begun), took = begun > 0 ? cf_now() - begun : 0;
        if (took > options.limit_s && !atomic_load(&node->lost)) {
            for (int r = 0; r < node->nranks; r++) {
                tap_note("n=%d: not finished after %d seconds: rank %d has launched %d of %d calls", node->nranks,
                         options.limit_s, r, atomic_load(&node->rank[r].launched), node->rank[r].batch->items);
            }
            atomic_store(&node->lost, true);
            __atomic_store_n(node->abort_flag, 1, __ATOMIC_RELEASE);
        }
        if (took > 3 * options.limit_s) {
            bail_out("the kernels do not leave for the abort flag");
        }
    }
    return NULL;
}

/* Judges the results of one rank. If the results of another rank differ, all ranks look for the wrong one. */
static void judge(struct rank *rank)
{
    struct cf_worker *worker = rank->worker;
    worker->hashes_compared = true;
    cf_batch_judge(rank->batch, 0, true);
    if (!cf_agree(worker, worker->result->hash)) {
        worker->hashes_compared = false;
        cf_batch_judge(rank->batch, 0, true);
        cf_fail(worker, "the results of the ranks differ");
    }
}

/* Is all well on all ranks so far? */
static bool is_good(struct rank *rank)
{
    bool good = rank->worker->result->failures == 0;
    return cf_agree(rank->worker, good) && good && !atomic_load(&rank->node->lost);
}

/* Runs a program and frees it; false: it did not end well. */
static bool run_program(struct rank *rank, uint32_t epoch)
{
    atomic_store(&rank->launched, 0);
    cf_batch_load(rank->batch, 0);
    reset_staging(rank, epoch);
    cf_sync(rank->worker);
    cf_barrier(rank->worker); /* nobody writes into staging that is being cleared */
    atomic_store(&rank->node->begun, cf_now());
    launch_all(rank);
    cf_barrier(rank->worker);
    atomic_store(&rank->node->begun, 0);
    if (!atomic_load(&rank->node->lost)) {
        judge(rank);
    }
    cf_batch_free(rank->batch);
    return is_good(rank);
}

/*
 * Every kernel that there is, in several sizes; in several programs if need be. Those that move bytes are the same for
 * all types, and others for a list. Returns the number of kernels.
 */
static int run_systematically(struct rank *rank, bool *good_p)
{
    static const size_t counts[] = {1, 7, 64, 1024, 4099, 30016, 200003};
    int kernels = 0;
    *good_p = true;
    begin_program(rank);
    for (int i = 0; i < OH_KERNEL_IMAGES * (int)ncclNumTypes * CF_OPS && *good_p; i++) {
        const struct source *source = &sources[i % OH_KERNEL_IMAGES];
        struct cf_spec spec = {.type = (ncclDataType_t)(i / OH_KERNEL_IMAGES % (int)ncclNumTypes),
                               .op = (enum cf_op)(i / OH_KERNEL_IMAGES / (int)ncclNumTypes)};
        const bool moves = !oh_collective_reduces(source->collective);
        const unsigned items = moves && spec.type == ncclUint8 ? 3 : 0;
        if ((cf_types[spec.type].fp8 && !rank->worker->fp8) ||
            (moves && (spec.op != CF_SUM || spec.type > ncclUint8))) {
            continue;
        }
        kernels++;
        for (size_t c = 0; c < sizeof counts / sizeof *counts && *good_p; c++) {
            spec.count = counts[c];
            spec.family = random_family(rank, spec.type);
            if (!add_call(rank, source, items, spec)) {
                *good_p = run_program(rank, 0);
                begin_program(rank);
                add_call(rank, source, items, spec);
            }
        }
    }
    *good_p = *good_p && run_program(rank, 0);
    return kernels;
}

/* --- ranks -------------------------------------------------------------------------------------------------------- */

static void open_rank(struct rank *rank)
{
    struct cf_worker *worker = rank->worker;
    CUdevice device = worker->member[0].device;
    cf_use(worker, 0);
    cf_set_fill(worker, -1, &rank->set);
    rank->common = cf_common_source(worker, (uint64_t)worker->nranks);
    rank->own = cf_own_source(worker, (uint64_t)worker->nranks);
    CF_CU(worker, DeviceGetAttribute(&rank->node->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CF_CU(worker, EventCreate(&rank->event[0], CU_EVENT_DISABLE_TIMING));
    CF_CU(worker, EventCreate(&rank->event[1], CU_EVENT_DISABLE_TIMING));
    CF_CU(worker, MemAlloc(&rank->staging, OH_STAGING_BYTES(worker->nranks)));
    CF_CU(worker, MemAlloc(&rank->scratch, SCRATCH_BYTES));
    rank->call = cf_need(worker, calloc((size_t)options.calls + 1, sizeof *rank->call));
    if (oh_kernel_set_get(device, (uint32_t)worker->nranks, &rank->kernels) != CUDA_SUCCESS) {
        bail_out("the kernels cannot be loaded");
    }
}

static void close_rank(struct rank *rank)
{
    CF_CU(rank->worker, MemFree(rank->scratch));
    CF_CU(rank->worker, MemFree(rank->staging));
    CF_CU(rank->worker, EventDestroy(rank->event[0]));
    CF_CU(rank->worker, EventDestroy(rank->event[1]));
    free(rank->call);
}

static void run_rank(struct cf_worker *worker)
{
    /* Epochs at which the wrap, and nothing of the kind, lie within the next program. */
    static const uint32_t epochs[] = {0, UINT32_MAX - 40, 12345};
    struct node *node = worker->user;
    struct rank *rank = &node->rank[worker->index];
    int calls = 0, programs = 0;
    bool good, tells = worker->index == 0;
    *rank = (struct rank){.node = node, .worker = worker};
    cf_barrier(worker);
    open_rank(rank);
    cf_barrier(worker);
    int kernels = run_systematically(rank, &good);
    if (tells) {
        tap_ok(good, "n=%d on %d GPU(s): every kernel, %d of them", worker->nranks, options.gpus, kernels);
    }
    for (; programs < options.programs && good; programs++) {
        random_program(rank);
        calls += rank->batch->items;
        good = run_program(rank, epochs[programs % (int)(sizeof epochs / sizeof *epochs)]);
    }
    if (tells) {
        tap_ok(good, "n=%d on %d GPU(s): %d calls in %d random programs", worker->nranks, options.gpus, calls,
               programs);
    }
    if (worker->result->failures > 0) {
        tap_note("n=%d rank %d: %s", worker->nranks, worker->index, worker->result->failure);
    }
    cf_barrier(worker);
    if (atomic_load(&node->lost)) { /* what the abort left behind is not worth a look */
        bail_out("a program was lost");
    }
    close_rank(rank);
}

/* The abort flag, for all GPUs; and each GPU reaches the others' memory. */
static void open_gpus(struct node *node)
{
    static _Alignas(4096) uint32_t page[1024]; /* the flag at its head */
    CUcontext context[OH_MAX_RANKS] = {NULL};
    CUresult result = CUDA_SUCCESS;
    for (int g = 0; g < options.gpus && result == CUDA_SUCCESS; g++) {
        result = cu.DevicePrimaryCtxRetain(&context[g], g);
    }
    for (int g = 0; g < options.gpus * options.gpus && result == CUDA_SUCCESS; g++) {
        CUcontext mine = context[g / options.gpus], theirs = context[g % options.gpus];
        result = cu.CtxSetCurrent(mine);
        if (mine != theirs && result == CUDA_SUCCESS) {
            result = oh_driver.ctx_enable_peer_access(theirs, 0);
            result = result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : result;
        }
    }
    node->abort_flag = page;
    if (result != CUDA_SUCCESS ||
        oh_driver.mem_host_register(page, sizeof page, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) !=
            CUDA_SUCCESS ||
        oh_driver.mem_host_get_device_pointer(&node->abort_flag_device, page, 0) != CUDA_SUCCESS) {
        bail_out("no context, peer access, or memory for the abort flag");
    }
}

/* --- the command line --------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: virtual_ranks [-n RANKS,...] [-g GPUS] [-p PROGRAMS] [-c CALLS] [-l SECONDS] [-s SEED]\n";
    static struct node node;
    const struct cf_option table[] = {
        CF_TAKES("n", cf_take_ranks, &options.ranks),
        CF_INT("g", &options.gpus, 1, OH_MAX_RANKS),
        CF_INT("p", &options.programs, 0, INT32_MAX),
        CF_INT("c", &options.calls, 1, INT32_MAX - 1),
        CF_INT("l", &options.limit_s, 1, INT32_MAX),
        CF_NUMBER("s", &options.seed),
        CF_NO_MORE,
    };
    pthread_t watcher;
    int gpus = 0;
    options.seed = (uint64_t)time(NULL);
    if (cf_options_read(argc, argv, usage, table) < argc) {
        cf_options_refuse(usage);
    }
    /* Streams that share a hardware queue would wait for one another. Read by the driver when it starts. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (oh_driver_open() != ncclSuccess || cf_api_open_cuda() != NULL || cu.DeviceGetCount(&gpus) != CUDA_SUCCESS ||
        gpus < options.gpus) {
        tap_skip_all("not as many GPUs");
    }
    printf("# seed %llu\n", (unsigned long long)options.seed);
    open_gpus(&node);
    if (pthread_create(&watcher, NULL, watch, &node) != 0) {
        bail_out("no thread");
    }
    for (int i = 0; i < options.ranks.count; i++) {
        static struct cf_board board;
        memset(&board, 0, sizeof board);
        node.nranks = options.ranks.list[i];
        board.seed = options.seed;
        board.layout =
            (struct cf_layout){.nranks = node.nranks, .local = node.nranks, .threads = true, .gpus = options.gpus};
        if (cf_run_workers(&board, 0, run_rank, &node) != 0) {
            bail_out("no thread");
        }
    }
    return tap_done();
}
