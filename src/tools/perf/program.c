/* SPDX-License-Identifier: MIT */
/*
 * perf/program.c - the kernels of kernels/floor.cu, and those of a program between the calls of a pattern
 *
 * Does: loads the image; launches a kernel as programs do, without programmatic stream serialization.
 * Threads: a thread's. Owns: the library of the image, until the process ends.
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
    static const char *const names[OH_PERF_PROGRAMS] = {
        [OH_PERF_COPY] = "oh_program_copy", [OH_PERF_SPINNER] = "oh_program_spin"};
    const char *name = names[oh_perf_program_of(thread->options->pattern)];
    OH_PERF_EACH_RANK(thread, member)
    {
        member->program = name ? oh_perf_kernel(thread, name) : NULL;
    }
}

/* Threads for a message: as many as there are accesses to have under way, as far as OH_MAX_BLOCKS go. */
static CUlaunchConfig shape_of(size_t bytes)
{
    const size_t block_bytes = (size_t)BLOCK_THREADS * THREAD_WORDS * OH_WORD_BYTES;
    const size_t blocks = (bytes + block_bytes - 1) / block_bytes;
    return blocks <= OH_MAX_BLOCKS ? oh_launch_config((unsigned)blocks, BLOCK_THREADS, NULL)
                                   : oh_launch_config(OH_MAX_BLOCKS, 2 * BLOCK_THREADS, NULL);
}

void oh_perf_run_program(struct oh_perf_thread *thread, const struct oh_perf_workload *workload)
{
    CUlaunchConfig config = shape_of(workload->bytes);
    OH_PERF_EACH_RANK(thread, member)
    {
        const struct oh_kernel_args args = {
            .sendbuff = (const void *)(uintptr_t)member->recv[workload->side],
            .recvbuff = (void *)(uintptr_t)member->send[workload->side],
            .count = workload->bytes,
            .operand = workload->program == OH_PERF_SPINNER ? SPIN_CYCLES : 0,
        };
        void *parameter = (void *)&args;
        config.hStream = member->stream;
        OH_PERF_CU(thread, launch_kernel_ex(&config, member->program, &parameter, NULL));
    }
}
