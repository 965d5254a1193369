/* SPDX-License-Identifier: MIT */
/*
 * comm_config.h - what a program asks of a communicator: ncclConfig_t, and NCCL's variables that override it
 *
 * Threads: any. Owns: nothing.
 */
#ifndef OH_HOOK_COMM_CONFIG_H_
#define OH_HOOK_COMM_CONFIG_H_

#include <nccl.h>

#include "comm/attach/attach.h"

/*
 * Reads a configuration, as far as its `size` says that it has a field. config NULL: what is inherited, NULL: NCCL's
 * defaults. The variables NCCL_COMM_BLOCKING, NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS and NCCL_CTA_POLICY go before both, as
 * in NCCL (2.30.7, src/init.cc:1725 and 2025-2033). A value that NCCL ignores or rejects counts as none.
 */
struct oh_comm_config oh_config_read(const ncclConfig_t *config, const struct oh_comm_config *inherited);

#endif
