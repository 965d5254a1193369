/* SPDX-License-Identifier: MIT */
/*
 * patch.h - what onehop writes into the tables of loaded objects
 *
 * Does: Redirects to onehop the callers that the dynamic linker has bound, or would bind, to NCCL itself. Replaces
 *    ncclX and pncclX in the symbol table (.dynsym, in this process's memory) of each copy of NCCL by thunks, so that
 *    later look-ups and bindings lead to onehop: dlsym, ctypes, objects loaded later, lazy calls. Replaces earlier
 *    bindings in the table of addresses (GOT) of their object. Hides onehop's functions that no copy of NCCL has. Not
 *    reached: addresses that the application took by dlsym before, and NCCL linked into a program statically.
 * Threads: one at a time (hooks.c).
 * Owns: nothing.
 */
#ifndef OH_INTERPOSE_PATCH_H_
#define OH_INTERPOSE_PATCH_H_

#include <stdint.h>

/* Hides onehop's functions that no copy of NCCL has, and shows the others. */
void oh_patch_own_symbols(void);

/* Puts thunks into the symbol tables of the copies that are held. */
void oh_patch_copies(void);

/* Corrects the addresses that objects already have: those behind the objects of the value `after` (oh_next_visit). */
void oh_patch_callers(uintptr_t after);

#endif
