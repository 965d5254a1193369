/* SPDX-License-Identifier: MIT */
/*
 * verdict.c - from facts to a decision and the reason that users read
 *
 * Does: See topo.h.
 * Threads: pure functions, but for the environment.
 * Owns: nothing.
 */
#include "topo/topo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/env.h"
#include "util/nccl_conf.h"

bool oh_topo_check_gpu(const struct oh_topo_gpu *gpu, char *reason_p, size_t size)
{
    if (!gpu->bus_id[0]) {
        snprintf(reason_p, size, "CUDA tells no PCI bus id of device %d", gpu->cuda_device);
        return false;
    }
    if (gpu->mig == OH_YES) {
        snprintf(reason_p, size, "GPU %s is in MIG mode", gpu->bus_id);
        return false;
    }
    if (gpu->compute_major > 0 && gpu->compute_major < OH_TOPO_COMPUTE_MAJOR) {
        snprintf(reason_p, size, "GPU %s has compute capability %d, onehop's kernels need %d or later", gpu->bus_id,
                 gpu->compute_major, OH_TOPO_COMPUTE_MAJOR);
        return false;
    }
    return true;
}

static const char *const words[OH_CAUSES] = {
    [OH_CAUSE_NVML_NVLINK] = "are not joined by NVLink (NVML)",
    [OH_CAUSE_NVML_READ] = "cannot read each other's memory (NVML)",
    [OH_CAUSE_NVML_WRITE] = "cannot write each other's memory (NVML)",
    [OH_CAUSE_CUDA_ACCESS] = "cannot access each other's memory (CUDA)",
    [OH_CAUSE_CUDA_ATOMICS] = "are not joined by NVLink (CUDA: no native atomics)",
    [OH_CAUSE_UNPROVEN_NVLINK] = "may lack NVLink: neither NVML nor CUDA can tell",
    [OH_CAUSE_UNPROVEN_ACCESS] = "may lack access to each other's memory: neither NVML nor CUDA can tell",
};

enum oh_topo_cause oh_topo_pair_cause(const struct oh_topo_pair *pair)
{
    const struct {
        enum oh_fact fact;
        enum oh_topo_cause cause;
    } denials[] = {
        {pair->nvml_nvlink, OH_CAUSE_NVML_NVLINK},
        {pair->nvml_read, OH_CAUSE_NVML_READ},
        {pair->nvml_write, OH_CAUSE_NVML_WRITE},
        {pair->cuda_access, OH_CAUSE_CUDA_ACCESS},
        {pair->nvml_nvlink == OH_YES ? OH_UNKNOWN : pair->cuda_atomics, OH_CAUSE_CUDA_ATOMICS},
    };
    for (size_t i = 0; i < sizeof denials / sizeof *denials; i++) {
        if (denials[i].fact == OH_NO) {
            return denials[i].cause;
        }
    }
    bool nvlink = pair->nvml_nvlink == OH_YES || pair->cuda_atomics == OH_YES;
    bool access = (pair->nvml_read == OH_YES && pair->nvml_write == OH_YES) || pair->cuda_access == OH_YES;
    if (!nvlink) {
        return OH_CAUSE_UNPROVEN_NVLINK;
    }
    return access ? OH_CAUSE_NONE : OH_CAUSE_UNPROVEN_ACCESS;
}

bool oh_topo_check_pair(const char *bus_id_a, const char *bus_id_b, const struct oh_topo_pair *pair, char *reason_p,
                        size_t size)
{
    if (strcasecmp(bus_id_a, bus_id_b) == 0) {
        snprintf(reason_p, size, "two ranks share GPU %s", bus_id_a);
        return false;
    }
    enum oh_topo_cause cause = oh_topo_pair_cause(pair);
    if (cause != OH_CAUSE_NONE) {
        snprintf(reason_p, size, "GPUs %s and %s %s", bus_id_a, bus_id_b, words[cause]);
        return false;
    }
    return true;
}

bool oh_topo_allowed(const char *p2p_disable, const char *p2p_level, const char *cta_policy, const char *launch_order,
                     char *reason_p, size_t size)
{
    /* As NCCL 2.28 reads them (ncclGetUserP2pLevel): only the value 1 disables; a level is a name or an old number. */
    if (p2p_disable && strtol(p2p_disable, NULL, 0) == 1) {
        snprintf(reason_p, size, "NCCL_P2P_DISABLE=%s is set", p2p_disable);
        return false;
    }
    if (p2p_level && (strcmp(p2p_level, "LOC") == 0 ||
                      (p2p_level[0] >= '0' && p2p_level[0] <= '9' && strtol(p2p_level, NULL, 0) == 0))) {
        snprintf(reason_p, size, "NCCL_P2P_LEVEL=%s is set", p2p_level);
        return false;
    }
    if (oh_nccl_cta_policy(cta_policy, 0) & OH_NCCL_CTA_POLICY_ZERO) {
        snprintf(reason_p, size, "NCCL_CTA_POLICY=%s is set: NCCL uses copy engines and no kernels", cta_policy);
        return false;
    }
    if (launch_order && strtol(launch_order, NULL, 0) != 0) {
        snprintf(reason_p, size, "NCCL_LAUNCH_ORDER_IMPLICIT=%s is set: NCCL orders the calls of all communicators",
                 launch_order);
        return false;
    }
    return true;
}

bool oh_topo_allowed_by_algo(const char *algo, char *reason_p, size_t size)
{
    if (!oh_nccl_algo_is_pinned(algo)) {
        return true;
    }
    snprintf(reason_p, size, "NCCL_ALGO=%.40s pins NCCL's order of sums; ONEHOP_INVARIANT=1 pins onehop's", algo);
    return false;
}

/* The user asks for onehop's order, or says that NCCL_ALGO is set for another reason than the order. */
static bool overrides_algo(void)
{
    static const char *const answers[] = {"forward", "serve"};
    return oh_env_flag(OH_ENV_INVARIANT, false) || oh_env_choice(OH_ENV_PINNED, answers, 2, 0) == 1;
}

bool oh_topo_allowed_by_env(char *reason_p, size_t size)
{
    return oh_topo_allowed(oh_nccl_variable("NCCL_P2P_DISABLE"), oh_nccl_variable("NCCL_P2P_LEVEL"),
                           oh_nccl_variable("NCCL_CTA_POLICY"), oh_nccl_variable("NCCL_LAUNCH_ORDER_IMPLICIT"),
                           reason_p, size) &&
           (overrides_algo() || oh_topo_allowed_by_algo(oh_nccl_variable("NCCL_ALGO"), reason_p, size));
}
