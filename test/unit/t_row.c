/* SPDX-License-Identifier: MIT */
/*
 * t_row.c - which of two captured kernels lets the other in early, and which runs ahead
 *
 * Kernels are captured as the plugin launches them, two or three of one rank, and joined as order.c does it; looked at
 * is what has become of their nodes. Nothing is run.
 */
#include "gpu/row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/tap.h"
#include "test/unit/topologies.h"

#define RANKS 4
#define BUFFER (16u << 20)
#define KERNELS 3

static const struct oh_driver *driver;
static const struct oh_driver *joining; /* the driver, or one that fails */
static const struct oh_kernel_set *set;
static CUstream stream;
static char *memory[4];   /* of cuMemAlloc */
static char *host_memory; /* of the GPU's, too */
static ncclDataType_t type = ncclFloat32;

/* A kernel; of a list where there are two calls. */
struct kernel {
    enum onehop_algorithm algorithm;
    const char *send;
    char *recv;
    uint64_t bytes;
    const char *other_send; /* the second call; NULL: none */
    char *other_recv;
    const char *scalar;
    bool average;
    uint32_t blocks;
    uint32_t split;
    uint32_t call; /* number of the call that it is a part of; 0: of a call of its own */
};

struct seen {
    uint32_t early, leads, ahead, blocks;
};

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("Bail out! %s: %s\n", what, oh_driver_error_name(driver, result));
        exit(1);
    }
}
#define CU(call_) must(driver->call_, #call_)

static CUgraphNode launch(const struct kernel *kernel)
{
    static uint32_t calls = 1000;
    const struct oh_plan plan = {kernel->algorithm, kernel->blocks ? kernel->blocks : 8, 512};
    const struct oh_op op = {kernel->scalar    ? OH_OP_SCALED_SUM
                             : kernel->average ? OH_OP_AVG
                                               : OH_OP_SUM,
                             0, kernel->scalar};
    const struct oh_launch launch = {driver, set, &plan, &op, type, stream, false};
    const CUgraphNode *nodes;
    const void *edges;
    size_t count;
    CUstreamCaptureStatus status;
    struct oh_kernel_args args = {.sendbuff = kernel->send,
                                  .recvbuff = kernel->recv,
                                  .count = kernel->bytes / oh_type_size(type),
                                  .nranks = RANKS,
                                  .call = kernel->call ? kernel->call : ++calls,
                                  .split = kernel->split};
    if (kernel->other_send) {
        struct oh_kernel_list_args list = {.base = args, .calls = 2, .words = 2 * (uint32_t)(kernel->bytes / 16)};
        list.item[0] = (struct oh_list_item){kernel->send, kernel->recv, kernel->bytes / oh_type_size(type), 0};
        list.item[1] = (struct oh_list_item){kernel->other_send, kernel->other_recv, kernel->bytes / oh_type_size(type),
                                             kernel->bytes / 16};
        must(oh_kernel_launch_list(&launch, &list), "launching a list");
    } else {
        must(oh_kernel_launch(&launch, &args), "launching");
    }
    CU(stream_get_capture_info_v3(stream, &status, NULL, NULL, &nodes, &edges, &count));
    return nodes[0];
}

/* Captures the kernels, joins each with the one before, all being of `of_set` for all that is known, and looks at what
 * has become of them. */
static void join_as(const struct oh_kernel_set *of_set, const struct kernel *kernels, int count, struct seen *seen)
{
    CUgraphNode node[KERNELS];
    CUgraph graph;
    CU(stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < count; i++) {
        node[i] = launch(&kernels[i]);
        if (i > 0) {
            CUresult result = oh_row_join(joining, of_set, node[i - 1], node[i]);
            must(joining == driver ? result : CUDA_SUCCESS, "joining");
        }
    }
    for (int i = 0; i < count; i++) {
        CUDA_KERNEL_NODE_PARAMS params;
        CU(graph_kernel_node_get_params(node[i], &params));
        const struct oh_kernel_args *args = params.kernelParams[0];
        seen[i] = (struct seen){args->early, args->leads, args->ahead, params.gridDimX};
    }
    CU(stream_end_capture(stream, &graph));
    CU(graph_destroy(graph));
}

static void join(const struct kernel *kernels, int count, struct seen *seen)
{
    join_as(set, kernels, count, seen);
}

static struct kernel one(const char *send, char *recv, uint64_t bytes)
{
    return (struct kernel){.algorithm = ONEHOP_ONESHOT, .send = send, .recv = recv, .bytes = bytes};
}

static struct kernel two(const char *send, char *recv, uint64_t bytes)
{
    return (struct kernel){.algorithm = ONEHOP_TWOSHOT, .send = send, .recv = recv, .bytes = bytes};
}

static struct kernel list(struct kernel kernel, const char *other_send, char *other_recv)
{
    kernel.other_send = other_send;
    kernel.other_recv = other_recv;
    return kernel;
}

static struct kernel scaled(struct kernel kernel, const char *scalar)
{
    kernel.scalar = scalar;
    return kernel;
}

static struct kernel part_of(struct kernel kernel, uint32_t call)
{
    kernel.call = call;
    return kernel;
}

/* Other ops than sums have kernels for lists only. */
static struct kernel averaged(struct kernel kernel)
{
    kernel.average = true;
    return kernel;
}

static struct kernel in_blocks(struct kernel kernel, uint32_t blocks)
{
    kernel.blocks = blocks;
    return kernel;
}

/* Of two kernels: the first lets the second in early, and that runs ahead. */
static void expect(struct kernel first, struct kernel second, bool early, bool ahead, const char *what)
{
    const struct kernel kernels[] = {first, second};
    struct seen seen[2];
    join(kernels, 2, seen);
    tap_ok(seen[0].early == early && seen[0].leads == ahead && seen[0].ahead == 0 && seen[1].early == 0 &&
               seen[1].leads == 0 && seen[1].ahead == ahead,
           "%s (early %u, leads %u, ahead %u)", what, seen[0].early, seen[0].leads, seen[1].ahead);
}

static void test_pairs(void)
{
    const uint64_t n = 4096;
    char *const a = memory[0], *const b = memory[1], *const c = memory[2], *const d = memory[3];
    const struct kernel first = one(a, b, n);
    expect(first, one(c, d, n), true, true, "other buffers: ahead");
    expect(first, first, true, true, "the same buffers, out of place: ahead");
    expect(one(a, a, n), one(a, a, n), true, false, "the same buffer, in place: early only");
    expect(one(a, a, n), one(b, b, n), true, true, "in place in two buffers: ahead");
    expect(first, one(b, c, n), true, false, "what the first has written");
    expect(first, one(b + n - 4, c, n), true, false, "... its last element");
    expect(first, one(b + n, c, n), true, true, "... what is right behind it: ahead");
    expect(one(a, b + n, n), one(b, c, n + 4), true, false, "... its first element");
    expect(first, one(c, a, n), true, true, "writing what the first reads: ahead");
    expect(first, one(c, b, n), true, true, "writing what the first writes: ahead");
    expect(first, scaled(one(c, d, n), b + 8), true, false, "a scalar that the first has written");
    expect(first, scaled(one(c, d, n), a), true, true, "another scalar: ahead");
    expect(one(a, host_memory, n), one(c, d, n), true, false, "the first writes where there may be two addresses");
    expect(list(one(a, b, n), c, d), one(d, a, n), true, false, "what the second call of a list has written");
    expect(first, list(one(c, a, n), b, d), true, false, "... read by the second of a list");
    expect(list(one(a, b, n), a, b + n), list(one(c, d, n), c, d + n), true, true, "lists in other buffers: ahead");
    expect(first, one(c, d, 16), true, false, "a barrier runs not ahead");
    expect(one(c, d, 4), first, true, false, "... nor anything of it");
    expect(first, list(one(c, d, 16), c + 64, d + 64), true, false, "... nor with others in a list");
    expect(first, one(c, d, 20), true, true, "more than a word: ahead");
}

/* They have no element in common, whatever is known of the memory. */
static void test_parts(void)
{
    const uint64_t n = 4096;
    char *const a = host_memory, *const b = host_memory + (BUFFER / 2);
    const struct kernel first = part_of(one(a, b, n), 7), second = one(a + n, b + n, n);
    expect(first, part_of(second, 7), true, true, "two parts of a call in host memory: ahead");
    expect(first, part_of(second, 8), true, false, "... of two calls: early only");
    expect(part_of(one(a, a, n), 7), part_of(one(a + n, a + n, n), 7), true, true, "... two parts in place: ahead");
    expect(part_of(averaged(first), 7), part_of(averaged(second), 7), true, true, "... which go as lists of one");
}

/* Two parts in one kernel have two epochs, and a row counts kernels. */
static void test_two_parts(void)
{
    const struct kernel first = one(memory[0], memory[1], 4096);
    struct kernel both = one(memory[2], memory[3], 4096);
    both.split = 128;
    expect(both, first, true, false, "behind two parts in one kernel: early only");
    expect(first, both, true, false, "... nor do they run ahead");
}

/* Two kernels of a row have together no more threads than one may have. */
static void test_grids(void)
{
    const struct kernel first = one(memory[0], memory[1], 4096), reads_it = one(memory[1], memory[2], 4096);
    const struct kernel wide = in_blocks(first, 40), narrow = in_blocks(first, 25);
    struct seen seen[KERNELS];
    expect(wide, in_blocks(reads_it, 25), false, false, "too many threads together, and not ahead");
    join((struct kernel[]){wide, in_blocks(reads_it, 25)}, 2, seen);
    tap_ok(seen[0].blocks == 40 && seen[1].blocks == 25, "... grids stay");
    expect(wide, narrow, false, false,
           "too many threads together: alone, though it reads nothing that the first writes");
    join((struct kernel[]){wide, narrow, narrow}, 3, seen);
    tap_ok(seen[0].blocks == 40 && seen[1].blocks == 25 && seen[1].leads && seen[2].ahead == 1,
           "... grids stay, and the next row begins behind");
    join((struct kernel[]){narrow, narrow}, 2, seen);
    tap_ok(seen[0].blocks == 25 && seen[1].blocks == 25, "few enough together: grids stay");
}

static int changes; /* of nodes until one fails */

static CUresult fail_to_change(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
    return changes-- > 0 ? driver->graph_kernel_node_set_params(node, params) : CUDA_ERROR_INVALID_VALUE;
}

/* Whichever change of a node fails: the second runs ahead of a first that lets it in and leads, or not at all. */
static void test_failures(void)
{
    const struct kernel narrow = in_blocks(one(memory[0], memory[1], 4096), 25);
    struct oh_driver failing = *driver;
    failing.graph_kernel_node_set_params = fail_to_change;
    joining = &failing;
    for (int good = 0; good < 3; good++) {
        struct seen seen[2];
        changes = good;
        join((struct kernel[]){narrow, narrow}, 2, seen);
        tap_ok(seen[0].early == (good >= 1) && seen[0].leads == (good >= 1) && seen[1].ahead == (good == 2),
               "%d changes of nodes succeed (early %u, ahead %u)", good, seen[0].early, seen[1].ahead);
    }
    joining = driver;
}

static void test_twoshot(void)
{
    const uint64_t small = (uint64_t)RANKS * OH_ROW_WORDS(OH_TWOSHOT_BYTES, RANKS) * OH_WORD_BYTES;
    const struct kernel first = one(memory[0], memory[1], 4096);
    const struct kernel second = two(memory[2], memory[3], small), large = two(memory[2], memory[3], small + 4);
    expect(first, second, true, true, "two-shot behind one-shot: ahead");
    expect(second, first, true, true, "one-shot behind two-shot: ahead");
    expect(second, second, true, true, "two-shot behind two-shot: ahead");
    expect(first, large, true, false, "two-shot in the large slots: early only");
    expect(large, first, true, false, "nothing runs ahead of it");
}

static void test_three(void)
{
    const struct kernel same = one(memory[0], memory[1], 4096), reads_it = one(memory[1], memory[2], 4096);
    struct seen seen[KERNELS];
    join((struct kernel[]){same, same, same}, 3, seen);
    tap_ok(seen[0].leads == 1 && seen[1].leads == 0 && seen[2].leads == 0 && seen[0].ahead == 0 && seen[1].ahead == 1 &&
               seen[2].ahead == 2 && seen[1].early == 1 && seen[2].early == 0,
           "a row of three: one leads, places 1 and 2");
    join((struct kernel[]){same, reads_it, same}, 3, seen);
    tap_ok(seen[0].early == 1 && seen[0].leads == 0 && seen[1].ahead == 0 && seen[1].leads == 1 && seen[2].ahead == 1,
           "a row that begins with the second");
}

/* Nodes that are none of ours stay as they are. */
static void test_stranger(void)
{
    static const struct oh_kernel_set empty;
    const struct kernel kernel = one(memory[0], memory[1], 4096);
    struct seen seen[2];
    join_as(&empty, (struct kernel[]){kernel, kernel}, 2, seen);
    tap_ok(seen[0].early == 0 && seen[0].leads == 0 && seen[1].ahead == 0, "kernels of no set stay as they are");
}

/* How many bytes a kernel writes and reads is known of every type. */
static void test_types(void)
{
    static const ncclDataType_t types[] = {ncclInt8,    ncclFloat16, ncclBfloat16,     ncclInt32,       ncclFloat32,
                                           ncclFloat64, ncclUint64,  OH_NCCL_FP8_E4M3, OH_NCCL_FP8_E5M2};
    char *const a = memory[0], *const b = memory[1], *const c = memory[2];
    const uint64_t n = 4096;
    bool right = true;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct seen last[2], behind[2];
        type = types[i];
        join((struct kernel[]){one(a, b, n), one(b + n - 8, c, n)}, 2, last);
        join((struct kernel[]){one(a, b, n), one(b + n, c, n)}, 2, behind);
        right &= last[0].early && !last[1].ahead && behind[1].ahead == 1;
    }
    type = ncclFloat32;
    tap_ok(right, "types of 1 to 8 bytes: what the first has written ends where it ends");
}

static void open_device(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    CU(device_get(&device, 0));
    CU(primary_ctx_retain(&context, device));
    CU(ctx_set_current(context));
    CU(stream_create(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        CU(mem_alloc(&address, BUFFER));
        memory[i] = (char *)(uintptr_t)address;
    }
    host_memory = aligned_alloc(4096, BUFFER);
    CU(mem_host_register(host_memory, BUFFER, CU_MEMHOSTREGISTER_DEVICEMAP));
    if (oh_kernel_set_get(driver, device, RANKS, &set) != ncclSuccess) {
        printf("Bail out! no kernels\n");
        exit(1);
    }
}

int main(void)
{
    use_topologies();
    if (oh_driver_get(&driver) != ncclSuccess) {
        tap_skip_all("no driver");
    }
    joining = driver;
    open_device();
    test_pairs();
    test_parts();
    test_grids();
    test_failures();
    test_two_parts();
    test_twoshot();
    test_three();
    test_stranger();
    test_types();
    return tap_done();
}
