/* SPDX-License-Identifier: MIT */
/*
 * kernels.h - the device kernels compiled for the CPU, found by their device name
 *
 * The simulated driver runs them; the kernel unit test runs them directly. One thread per block.
 */
#ifndef TEST_SIMNODE_KERNELS_H_
#define TEST_SIMNODE_KERNELS_H_

#include <stddef.h>

#include "kernels/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Runs block `block` of a grid of `blocks` blocks to its end. Blocks of one grid may run one after the other in
 * ascending order, or at the same time in several threads. args: struct oh_kernel_args or oh_kernel_list_args.
 */
typedef void (*simnode_kernel_fn)(const void *args, unsigned block, unsigned blocks);

/* When set, called at barriers of a block and now and then before a Lamport word is cleared: a test may sleep there.
 * Set before use. */
extern void (*simnode_litmus_delay)(void);

/* When set, called where a block waits for the kernel before, and where it lets in the next: then a test may run
 * kernels that overlap as with programmatic launch. Otherwise they must not. Set before use. */
extern void (*simnode_pdl_wait)(void);
extern void (*simnode_pdl_trigger)(void);

/* When set, called where a block traps. The block leaves its kernel behind it. Set before use. */
extern void (*simnode_trap)(void);

struct simnode_kernel {
    const char *name;
    simnode_kernel_fn run;
    size_t args_bytes; /* of its parameter */
    unsigned threads;  /* of a block, at most */
};

/* NULL when there is no kernel of that name. */
const struct simnode_kernel *simnode_kernel_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif
