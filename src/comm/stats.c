/* SPDX-License-Identifier: MIT */
/*
 * stats.c - what was served, for people and for the public API
 */
#include "comm/comm.h"

#include <inttypes.h>
#include <stdio.h>

#include "util/env.h"
#include "util/log.h"

void oh_comm_describe(const struct oh_comm *comm, onehop_comm_info_t *info_p)
{
    *info_p = (onehop_comm_info_t){
        .served = atomic_load(&comm->served),
        .rank = (int)comm->rank,
        .nranks = (int)comm->nranks,
        .handed_back = atomic_load(&comm->handed_back),
        .bytes = atomic_load(&comm->bytes),
        .staging_bytes = comm->staging.base ? OH_STAGING_BYTES : 0,
        .setup_ms = comm->setup_ms,
    };
    snprintf(info_p->reason, sizeof info_p->reason, "%s", comm->reason);
    for (int a = 0; a < ONEHOP_ALGORITHMS; a++) {
        info_p->calls[a] = atomic_load(&comm->calls[a]);
    }
}

void oh_comm_print_stats(const struct oh_comm *comm)
{
    onehop_comm_info_t info;
    char calls[48 * ONEHOP_ALGORITHMS] = ""; /* a name, a number of 20 digits */
    uint64_t served = 0;

    if (!oh_env_flag(OH_ENV_STATS, false)) {
        return;
    }
    oh_comm_describe(comm, &info);
    for (int a = 0, used = 0; a < ONEHOP_ALGORITHMS; a++) {
        used += snprintf(calls + used, sizeof calls - (size_t)used, "%s%s=%" PRIu64, a > 0 ? " " : "",
                         oh_algorithm_name(a), info.calls[a]);
        served += info.calls[a];
    }
    oh_log_stats("rank %d nranks %d served=%" PRIu64 " (%s) handed_back=%" PRIu64 " bytes=%" PRIu64 "%s%s", info.rank,
                 info.nranks, served, calls, info.handed_back, info.bytes, info.reason[0] ? " reason: " : "",
                 info.reason);
}

void oh_comms_print_stats(void)
{
    oh_registry_visit(oh_comm_print_stats);
}
