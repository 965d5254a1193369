/* SPDX-License-Identifier: MIT */
/*
 * bench_driver.c - host time of the driver calls of which an eager allreduce is made
 *
 *   bench_driver [ROUNDS]
 *
 * One GPU. Each line is a sequence of calls, the launch of an empty kernel with the arguments of an allreduce among
 * them or not; the sequences take turns. The least and the median of the rounds, in nanoseconds a sequence. A round is
 * so short that the launch queue never fills, and begins with an idle stream.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/abi.h"
#include "test/gpu/bench.h"
#include "util/clock.h"

#define CALLS 200
#define MOST_ROUNDS 1000

extern const unsigned char oh_image_floor[];

static CUstream stream, other;
static CUevent event, other_event;
static CUfunction function;
static struct oh_kernel_args args;

static void launch_with(const CUlaunchAttribute *attributes, unsigned count)
{
    void *parameter = &args;
    CUlaunchConfig config = oh_launch_config(8, 64, stream);
    config.attrs = (CUlaunchAttribute *)attributes;
    config.numAttrs = count;
    CU(launch_kernel_ex(&config, function, &parameter, NULL));
}

static const CUlaunchAttribute serialization = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                .value.programmaticStreamSerializationAllowed = 1};

static void launch_plain(void)
{
    launch_with(NULL, 0);
}

static void launch(void)
{
    launch_with(&serialization, 1);
}

static void launch_programmatic_event(void)
{
    const CUlaunchAttribute attributes[] = {
        serialization, {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, .value.programmaticEvent = {.event = event}}};
    launch_with(attributes, 2);
}

static void record(void)
{
    CU(event_record(event, stream));
}

static void launch_and_record(void)
{
    launch();
    record();
}

static void get_context_id(void)
{
    unsigned long long id;
    CU(ctx_get_id(NULL, &id));
}

static void get_context(void)
{
    CUcontext context;
    CU(ctx_get_current(&context));
}

static void get_capture(void)
{
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph;
    CU(stream_get_capture_info(stream, &status, &id, &graph, NULL, NULL));
}

static void get_capture_status(void)
{
    CUstreamCaptureStatus status;
    CU(stream_get_capture_info(stream, &status, NULL, NULL, NULL, NULL));
}

static void get_stream_id(void)
{
    unsigned long long id;
    CU(stream_get_id(stream, &id));
}

static void wait_event(void)
{
    CU(stream_wait_event(stream, other_event, 0));
}

static void served(void)
{
    get_context_id();
    get_capture();
    get_stream_id();
    launch();
    record();
}

static void fallback(void)
{
    get_context_id();
    get_capture();
    get_stream_id();
    get_context_id();
    record();
}

static const struct {
    const char *name;
    void (*run)(void);
} sequences[] = {
    {"launch, no attribute", launch_plain},
    {"launch, programmatic stream serialization", launch},
    {"the same with a programmatic event", launch_programmatic_event},
    {"the same and cuEventRecord", launch_and_record},
    {"what a served call does", served},
    {"what a fallback adds", fallback},
    {"cuEventRecord", record},
    {"cuCtxGetId", get_context_id},
    {"cuCtxGetCurrent", get_context},
    {"cuStreamGetCaptureInfo", get_capture},
    {"cuStreamGetCaptureInfo, status alone", get_capture_status},
    {"cuStreamGetId", get_stream_id},
    {"cuStreamWaitEvent, the event of another stream", wait_event},
};
#define SEQUENCES (sizeof sequences / sizeof *sequences)

static void open_device(void)
{
    CUdevice device;
    CUcontext context;
    CUlibrary library;
    CUkernel kernel;
    if (oh_driver_get(&driver) != ncclSuccess) {
        fprintf(stderr, "bench_driver: %s\n", oh_driver_error());
        exit(EXIT_FAILURE);
    }
    CU(device_get(&device, 0));
    CU(primary_ctx_retain(&context, device));
    CU(ctx_set_current(context));
    CU(stream_create(&stream, CU_STREAM_NON_BLOCKING));
    CU(stream_create(&other, CU_STREAM_NON_BLOCKING));
    CU(event_create(&event, CU_EVENT_DISABLE_TIMING));
    CU(event_create(&other_event, CU_EVENT_DISABLE_TIMING));
    CU(event_record(other_event, other));
    CU(library_load_data(&library, oh_image_floor, NULL, NULL, 0, NULL, NULL, 0));
    CU(library_get_kernel(&kernel, library, "oh_floor_empty"));
    CU(kernel_get_function(&function, kernel));
}

static double time_round(void (*run)(void))
{
    CU(stream_synchronize(stream));
    const uint64_t begin = oh_now_ns();
    for (int i = 0; i < CALLS; i++) {
        run();
    }
    return (double)(oh_now_ns() - begin) / CALLS;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double ns[SEQUENCES][MOST_ROUNDS];
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    open_device();
    for (int round = -1; round < rounds; round++) { /* the first is for what is made at first use */
        for (size_t s = 0; s < SEQUENCES; s++) {
            const double taken = time_round(sequences[s].run);
            ns[s][round < 0 ? 0 : round] = taken;
        }
    }
    printf("%-50s %8s %8s\n", "ns a sequence", "least", "median");
    for (size_t s = 0; s < SEQUENCES; s++) {
        qsort(ns[s], (size_t)rounds, sizeof *ns[s], compare);
        printf("%-50s %8.0f %8.0f\n", sequences[s].name, ns[s][0], ns[s][rounds / 2]);
    }
    return 0;
}
