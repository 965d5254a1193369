/* SPDX-License-Identifier: MIT */
/*
 * t_edge.c - which captured kernels get an early trigger, and which are launched while the program's kernel runs
 *
 * Kernels are captured as the plugin launches them, and linked as capture.c does it; the test reads what has become of
 * their nodes and edges. Nothing is run.
 */
#include "gpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/tap.h"

#define RANKS 4
#define BUFFER (1u << 20)
#define KERNELS 3

static struct oh_driver real;    /* the driver */
static struct oh_driver linking; /* the driver, or one of which something fails or differs */
static const struct oh_kernel_set *set;
static CUstream stream;
static char *memory;
static struct oh_plan_room room = {.sms = 132, .sm_threads = {1024, 1024, 1024, 1024}, .max_blocks = UINT32_MAX};

/* Of a list of two calls where `list`. */
struct kernel {
    enum onehop_algorithm algorithm;
    bool list;
    uint32_t blocks;
    uint32_t threads; /* 0: 512 */
    enum onehop_collective collective;
};

struct seen {
    enum oh_trigger trigger;
    uint32_t blocks;
    bool intact; /* all other arguments are as they were launched */
};

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        printf("Bail out! %s: %s\n", what, oh_driver_error_name(result));
        exit(1);
    }
}
#define CU(call_) must(oh_driver.call_, #call_)

static struct oh_kernel_list_args arguments(const struct kernel *kernel)
{
    struct oh_kernel_list_args list;
    memset(&list, 0, sizeof list);
    list.base = (struct oh_kernel_args){.sendbuff = memory,
                                        .recvbuff = memory + BUFFER / 2,
                                        .count = 64,
                                        .nranks = RANKS,
                                        .call_number = 7,
                                        .report_count = 64};
    if (kernel->list) {
        list.calls = 2;
        list.words = 32;
        list.item[0] = (struct oh_list_item){.sendbuff = memory, .recvbuff = memory + BUFFER / 2, .count = 64};
        list.item[1] =
            (struct oh_list_item){.sendbuff = memory + 4096, .recvbuff = memory, .count = 64, .first_word = 16};
    }
    return list;
}

/* The node that the next work on the stream comes after. */
static CUgraphNode newest(void)
{
    CUstreamCaptureStatus status;
    const CUgraphNode *nodes;
    const void *edges;
    size_t count;
    CU(stream_get_capture_info_v3(stream, &status, NULL, NULL, &nodes, &edges, &count));
    return nodes[0];
}

static CUgraphNode launch(const struct kernel *kernel)
{
    const struct oh_plan plan = {kernel->collective, kernel->algorithm, kernel->blocks,
                                 kernel->threads > 0 ? kernel->threads : 512};
    const struct oh_op op = {.kind = OH_OP_SUM};
    const struct oh_launch launch = {set, &plan, &op, ncclFloat32, stream, false};
    struct oh_kernel_list_args args = arguments(kernel);
    must(kernel->list ? oh_kernel_launch_list(&launch, &args) : oh_kernel_launch(&launch, &args.base), "launching");
    return newest();
}

/* Captures the kernels, links each with the one before, and reads the nodes. Returns the last result of linking. */
static CUresult link_as(const struct oh_kernel_set *of_set, const struct kernel *kernels, int count, struct seen *seen)
{
    CUgraphNode node[KERNELS];
    CUgraph graph;
    CUresult result = CUDA_SUCCESS;
    CU(stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < count; i++) {
        node[i] = launch(&kernels[i]);
        if (i > 0) {
            oh_driver = linking;
            result = oh_edge_trigger(of_set, &room, node[i - 1], node[i]);
            oh_driver = real;
        }
    }
    for (int i = 0; i < count; i++) {
        CUDA_KERNEL_NODE_PARAMS params;
        CU(graph_kernel_node_get_params(node[i], &params));
        struct oh_kernel_list_args launched = arguments(&kernels[i]);
        const struct oh_kernel_args *args = params.kernelParams[0];
        launched.base.trigger = args->trigger;
        launched.base.scalar = args->scalar; /* the op's, put in by the launch */
        launched.base.operand = args->operand;
        seen[i].trigger = (enum oh_trigger)args->trigger;
        seen[i].blocks = params.gridDimX;
        seen[i].intact = memcmp(args, &launched, kernels[i].list ? sizeof launched : sizeof launched.base) == 0;
    }
    CU(stream_end_capture(stream, &graph));
    CU(graph_destroy(graph));
    return result;
}

static void expect(struct kernel first, struct kernel second, bool early, const char *what)
{
    const struct kernel kernels[] = {first, second};
    struct seen seen[2] = {0};
    CUresult result = link_as(set, kernels, 2, seen);
    const enum oh_trigger trigger = early ? OH_TRIGGER_EARLY : OH_TRIGGER_LATE;
    tap_ok(result == CUDA_SUCCESS && seen[0].trigger == trigger && seen[1].trigger == OH_TRIGGER_NONE &&
               seen[0].intact && seen[1].intact && seen[0].blocks == first.blocks && seen[1].blocks == second.blocks,
           "%s: %s", what, early ? "early" : "not early");
}

static const struct kernel one = {ONEHOP_ONESHOT, .blocks = 8}, two = {ONEHOP_TWOSHOT, .blocks = 8},
                           list = {ONEHOP_ONESHOT, .list = true, .blocks = 8};

static void test_kinds(void)
{
    expect(one, one, true, "two kernels");
    expect(one, two, true, "one-shot before two-shot");
    expect(two, one, true, "two-shot before one-shot");
    expect(list, one, true, "a list before a call");
    expect(one, list, true, "a call before a list");
}

/* Two kernels that wait at the same time: `most` blocks together, and one more. */
static void expect_most(uint32_t most, const char *where)
{
    const struct kernel first = {ONEHOP_ONESHOT, .blocks = most / 2},
                        second = {ONEHOP_TWOSHOT, .blocks = most - most / 2},
                        larger = {ONEHOP_TWOSHOT, .blocks = most - most / 2 + 1};
    expect(first, second, true, where);
    expect(first, larger, false, where);
}

/* Two unlike kernels in both orders: as many blocks together as the second allows by itself, and one more. */
static void expect_least(struct kernel first, struct kernel second, uint32_t most, const char *what)
{
    second.blocks = most - first.blocks;
    expect(first, second, true, what);
    expect(second, first, true, what);
    second.blocks++;
    expect(first, second, false, what);
    expect(second, first, false, what);
}

static void test_unlike(void)
{
    const struct oh_plan_room whole = room;
    const struct kernel small = {ONEHOP_ONESHOT, .blocks = 40, .threads = 256};
    room.sm_threads[ONEHOP_ALLREDUCE] = 768;
    expect_least(small, two, 66, "blocks of 256 threads and larger ones");
    room = whole;
    room.sm_threads[ONEHOP_BROADCAST] = 512;
    expect_least(small, (struct kernel){ONEHOP_ONESHOT, .collective = ONEHOP_BROADCAST}, 66,
                 "an allreduce and a collective with fewer blocks");
    room = whole;
}

static void test_grids(void)
{
    const struct oh_plan_room whole = room;
    expect_most(128, "a whole GPU");
    room.sms = 100;
    expect_most(100, "fewer multiprocessors");
    room.sm_threads[ONEHOP_ALLREDUCE] = 768;
    expect_most(50, "one block on each of them");
    room = whole;
    room.sm_threads[ONEHOP_BROADCAST] = 512;
    expect_most(128, "fewer blocks of another collective");
    room = whole;
    room.max_blocks = 16;
    expect(one, two, true, "as many blocks together as the program allows");
    room.max_blocks = 15;
    expect(one, two, false, "more blocks");
    room.max_blocks = UINT32_MAX;
}

static void test_three(void)
{
    struct seen seen[KERNELS] = {0};
    link_as(set, (struct kernel[]){one, list, two}, 3, seen);
    tap_ok(seen[0].trigger == OH_TRIGGER_EARLY && seen[1].trigger == OH_TRIGGER_EARLY &&
               seen[2].trigger == OH_TRIGGER_NONE,
           "of three, all but the last");
}

static CUresult fail_to_change(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
    (void)node, (void)params;
    return CUDA_ERROR_INVALID_VALUE;
}

static void test_failure(void)
{
    struct seen seen[2] = {0};
    linking.graph_kernel_node_set_params = fail_to_change;
    CUresult result = link_as(set, (struct kernel[]){one, one}, 2, seen);
    linking = real;
    tap_ok(result == CUDA_ERROR_INVALID_VALUE && seen[0].trigger == OH_TRIGGER_NONE && seen[0].intact,
           "a node that cannot be changed stays as it was");
}

static void test_stranger(void)
{
    static const struct oh_kernel_set empty;
    struct seen seen[2] = {0};
    CUresult result = link_as(&empty, (struct kernel[]){one, one}, 2, seen);
    tap_ok(result == CUDA_SUCCESS && seen[0].trigger == OH_TRIGGER_NONE, "kernels of no set stay as they are");
}

/* --- behind a kernel of the program ------------------------------------------------------------------------------- */

extern const unsigned char oh_image_floor[];
static CUfunction program;

static CUgraphNode launch_program(bool programmatic)
{
    const struct oh_kernel_args args = {.count = 0};
    must(oh_driver_launch(program, 4, 64, stream, programmatic, &args), "launch");
    return newest();
}

/* What stands in front of the kernel. */
enum front {
    PROGRAM,              /* a kernel, which comes after nothing */
    PROGRAM_PROGRAMMATIC, /* a kernel that may itself begin early behind another */
    PROGRAM_BEHIND,       /* a kernel behind another, in the usual way */
    OURS,                 /* of another communicator */
    MEMSET
};

static CUgraphNode launch_front(enum front front)
{
    switch (front) {
    case PROGRAM:
        return launch_program(false);
    case OURS:
        return launch(&one);
    case MEMSET:
        CU(memset_d8_async((CUdeviceptr)(uintptr_t)memory, 0, 16, stream));
        return newest();
    default:
        launch_program(false);
        return launch_program(front == PROGRAM_PROGRAMMATIC);
    }
}

/* The port of the edge into the kernel behind it, and the result. */
static unsigned port_behind(enum front front, uint32_t blocks, CUresult *result_p)
{
    const struct kernel kernel = {ONEHOP_ONESHOT, .blocks = blocks};
    struct oh_edge edge = {.early_blocks = 64};
    size_t count = 1;
    CU(stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_front(front);
    edge.to = launch(&kernel);
    CUstreamCaptureStatus status;
    CU(stream_get_capture_info(stream, &status, NULL, &edge.graph, NULL, NULL));
    CU(graph_node_get_dependencies(edge.to, &edge.from, &edge.data, &count));
    oh_driver = linking;
    *result_p = oh_edge_launch_early(&edge);
    oh_driver = real;
    count = 1;
    edge.data.from_port = 99;
    CU(graph_node_get_dependencies(edge.to, &edge.from, &edge.data, &count));
    const unsigned port = count == 1 ? edge.data.from_port : 98; /* 98: no edge at all */
    CU(stream_end_capture(stream, &edge.graph));
    CU(graph_destroy(edge.graph));
    return port;
}

static void expect_port(enum front front, uint32_t blocks, unsigned port, const char *what)
{
    CUresult result;
    const unsigned got = port_behind(front, blocks, &result);
    tap_ok(got == port && result == CUDA_SUCCESS, "%s: port %u", what, got);
}

static CUresult refuse_edge(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                            const struct oh_edge_data *data, size_t count)
{
    return data->from_port == OH_PORT_LAUNCH_ORDER ? CUDA_ERROR_INVALID_VALUE
                                                   : real.graph_add_edges(graph, from, to, data, count);
}

static CUresult refuse_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                             const struct oh_edge_data *data, size_t count)
{
    (void)graph, (void)from, (void)to, (void)data, (void)count;
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult say_cooperative(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue *value_p)
{
    CUresult result = real.graph_kernel_node_get_attribute(node, id, value_p);
    value_p->cooperative = id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE ? 1 : value_p->cooperative;
    return result;
}

static CUgraphNode urgent; /* the first node asked for its priority has less than the second */
static CUresult say_urgent(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue *value_p)
{
    CUresult result = real.graph_kernel_node_get_attribute(node, id, value_p);
    if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
        value_p->priority = urgent ? -1 : 0;
        urgent = node;
    }
    return result;
}

static void test_early_blocks(void)
{
    tap_ok(oh_edge_early_blocks(132) == 64 && oh_edge_early_blocks(129) == 64 && oh_edge_early_blocks(128) == 63 &&
               oh_edge_early_blocks(16) == 7 && oh_edge_early_blocks(2) == 0 && oh_edge_early_blocks(0) == 0,
           "a kernel that waits leaves more than half of the SMs, whatever their number");
}

static void test_program(void)
{
    CUresult result;
    linking = real;
    expect_port(PROGRAM, 8, OH_PORT_LAUNCH_ORDER, "behind a kernel of the program");
    expect_port(PROGRAM_BEHIND, 8, OH_PORT_LAUNCH_ORDER, "... which comes after another");
    expect_port(PROGRAM, 64, OH_PORT_LAUNCH_ORDER, "as many blocks as may wait");
    expect_port(PROGRAM, 65, OH_PORT_PROGRAMMATIC, "more blocks");
    expect_port(PROGRAM_PROGRAMMATIC, 8, OH_PORT_PROGRAMMATIC, "behind a kernel that may begin early itself");
    expect_port(OURS, 8, OH_PORT_PROGRAMMATIC, "behind a kernel of another communicator");
    expect_port(MEMSET, 8, 0, "behind what is no kernel");
    linking.graph_kernel_node_get_attribute = say_cooperative;
    expect_port(PROGRAM, 8, OH_PORT_PROGRAMMATIC, "behind a cooperative kernel");
    linking.graph_kernel_node_get_attribute = say_urgent;
    expect_port(PROGRAM, 8, OH_PORT_PROGRAMMATIC, "where the kernel has the higher priority");
    linking = real;
    linking.graph_add_edges = NULL;
    expect_port(PROGRAM, 8, OH_PORT_PROGRAMMATIC, "a driver that knows no ports");
    linking = real;
    linking.graph_remove_edges = refuse_edges;
    expect_port(PROGRAM, 8, OH_PORT_PROGRAMMATIC, "an edge that cannot be removed");
    linking = real;
    linking.graph_add_edges = refuse_edge;
    expect_port(PROGRAM, 8, OH_PORT_PROGRAMMATIC, "an edge that cannot be added: the old one is back");
    linking.graph_add_edges = refuse_edges;
    port_behind(PROGRAM, 8, &result);
    tap_ok(result == CUDA_ERROR_INVALID_VALUE, "nor the old one: an error");
}

static void open_device(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    CUlibrary library;
    CUkernel kernel;
    CU(device_get(&device, 0));
    CU(primary_ctx_retain(&context, device));
    CU(ctx_set_current(context));
    CU(stream_create(&stream, CU_STREAM_NON_BLOCKING));
    CU(mem_alloc(&address, BUFFER));
    memory = (char *)(uintptr_t)address;
    must(oh_kernel_set_get(device, RANKS, &set), "no kernels");
    CU(library_load_data(&library, oh_image_floor, NULL, NULL, 0, NULL, NULL, 0));
    CU(library_get_kernel(&kernel, library, "oh_program_copy"));
    CU(kernel_get_function(&program, kernel));
}

int main(void)
{
    if (oh_driver_open() != ncclSuccess) {
        tap_skip_all("no driver");
    }
    linking = real = oh_driver;
    open_device();
    test_kinds();
    test_grids();
    test_unlike();
    test_three();
    test_failure();
    test_stranger();
    test_early_blocks();
    test_program();
    return tap_done();
}
