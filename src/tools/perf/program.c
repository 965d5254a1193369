/* SPDX-License-Identifier: MIT */
/*
 * perf/program.c - the kernels of kernels/floor.cu, and those of a program between the calls of a pattern
 *
 * Does: Loads the image; launches a kernel as programs do, without programmatic stream serialization.
 * Threads: a rank's.
 * Owns: the library of the image, until the process ends.
 */
#include "kernels/floor.h"
#include "tools/perf/thread.h"

#define BLOCK_THREADS 256
#define THREAD_WORDS 4 /* that a thread of the copy has under way */
/* 2 us at 2 GHz: longer than a launch takes, which is then hidden if it can be. */
#define SPIN_CYCLES 4000

extern const unsigned char oh_image_floor[];

CUfunction oh_perf_kernel(struct oh_perf_thread *thread, const char *name)
{
    CUfunction function;
    CUkernel kernel;
    if (!thread->image) {
        OH_PERF_CU(thread, library_load_data(&thread->image, oh_image_floor, NULL, NULL, 0, NULL, NULL, 0));
    }
    OH_PERF_CU(thread, library_get_kernel(&kernel, thread->image, name));
    OH_PERF_CU(thread, kernel_get_function(&function, kernel));
    return function;
}

void oh_perf_open_program(struct oh_perf_thread *thread)
{
    static const char *const names[OH_PERF_PATTERNS] = {
        [OH_PERF_LAYER] = "oh_program_copy", [OH_PERF_SPIN] = "oh_program_spin"};
    const char *name = names[thread->options->pattern];
    thread->program = name ? oh_perf_kernel(thread, name) : NULL;
}

void oh_perf_run_program(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    /* As many threads as there are accesses to have under way, up to OH_MAX_BLOCKS blocks. */
    const size_t block_bytes = (size_t)BLOCK_THREADS * THREAD_WORDS * OH_WORD_BYTES;
    const size_t blocks = (workload->bytes + block_bytes - 1) / block_bytes;
    CUlaunchConfig config = blocks <= OH_MAX_BLOCKS
                                ? oh_launch_config((unsigned)blocks, BLOCK_THREADS, thread->stream)
                                : oh_launch_config(OH_MAX_BLOCKS, 2 * BLOCK_THREADS, thread->stream);
    const struct oh_kernel_args args = {
        .sendbuff = (const void *)(uintptr_t)thread->recv[workload->side],
        .recvbuff = (void *)(uintptr_t)thread->send[workload->side],
        .count = workload->bytes,
        .operand = thread->options->pattern == OH_PERF_SPIN ? SPIN_CYCLES : 0,
    };
    void *parameter = (void *)&args;
    OH_PERF_CU(thread, launch_kernel_ex(&config, thread->program, &parameter, NULL));
}
