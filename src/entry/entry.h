/* SPDX-License-Identifier: MIT */
/*
 * entry.h - what the exported nccl* functions share
 *
 * Does: Each entry point finds the communicator and the copy of NCCL, does onehop's part and forwards. Before the first
 *    communicator is created, in a forked child, and with ONEHOP_DISABLE=1 it only forwards. errno is as NCCL left it,
 *    or as it was.
 * Threads: any, by NCCL's own rules.
 * Owns: nothing.
 */
#ifndef OH_ENTRY_ENTRY_H_
#define OH_ENTRY_ENTRY_H_

#include <nccl.h>
#include <stdbool.h>

#include "comm/comm.h"
#include "interpose/hooks.h"
#include "interpose/real.h"
#include "util/scope.h"

#define OH_EXPORT __attribute__((visibility("default")))

/* The return address of the exported function in which it is written. */
#define OH_CALLER() __builtin_return_address(0)

/* --- process.c ---------------------------------------------------------------------------------------------------- */

/* Returns whether onehop does anything in this call. The first call starts onehop. */
bool oh_entry_is_active(void);

/* Returns whether this process was forked from one that uses onehop. */
bool oh_entry_is_forked(void);

/* --- handle.c ----------------------------------------------------------------------------------------------------- */

/*
 * Finds the communicator of a handle (NULL: unknown), and the NCCL that made it, or else the NCCL that `caller` (a
 * return address) means. The caller uses the communicator, as after oh_comm_find, up to the end of OH_COMM_SCOPE,
 * or to a function that ends the use. is_counted: all ranks count the call. Returns ncclSuccess, or ncclSystemError
 * (logged): no NCCL is loaded.
 */
ncclResult_t oh_handle_find(ncclComm_t handle, const void *caller, bool is_counted, struct oh_comm **comm_p,
                            const struct oh_nccl **nccl_p);

/* --- config.c ----------------------------------------------------------------------------------------------------- */

/*
 * Reads the fields of a configuration that its `size` covers. If `config` is NULL, uses `inherited`; if both are NULL,
 * NCCL's defaults. NCCL_COMM_BLOCKING, NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS and NCCL_CTA_POLICY override both, as in NCCL
 * (2.30.7, src/init.cc:1725 and 2025-2033). A value that NCCL ignores or rejects counts as none.
 */
struct oh_comm_config oh_config_read(const ncclConfig_t *config, const struct oh_comm_config *inherited);

#endif
