/* SPDX-License-Identifier: MIT */
/*
 * kernels.cpp - the device kernels compiled for the CPU
 *
 * The sources are the ones that nvcc compiles; OH_SIMNODE puts test/simnode/primitives_cpu.h under them. Each kernel
 * enters itself in a list before main; afterwards the list is only read.
 */
#define OH_SIMNODE 1

#include "kernels/allgather.cu"
#include "kernels/broadcast.cu"
#include "kernels/floor.cu"
#include "kernels/oneshot.cu"
#include "kernels/reducescatter.cu"
#include "kernels/twoshot.cu"
#include "kernels/verify.cu"

#include "test/simnode/kernels.h"

void (*simnode_litmus_delay)(void);
void (*simnode_pdl_wait)(void);
void (*simnode_trap)(void);
void (*simnode_pdl_trigger)(void);

const simnode_kernel *simnode_kernel_find(const char *name)
{
    for (const simnode_kernel_entry *entry = simnode_kernels; entry; entry = entry->next) {
        if (strcmp(entry->kernel.name, name) == 0) {
            return &entry->kernel;
        }
    }
    return nullptr;
}
