/* SPDX-License-Identifier: MIT */
/*
 * verdict.c - from facts to a decision and the reason that users read
 */
#include "topo/topo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool oh_topo_judge_gpu(const struct oh_topo_gpu *gpu, char *reason_p, size_t size)
{
    if (!gpu->bus_id[0]) {
        snprintf(reason_p, size, "CUDA tells no PCI bus id of device %d", gpu->cuda_device);
        return false;
    }
    if (gpu->mig == OH_YES) {
        snprintf(reason_p, size, "GPU %s is in MIG mode", gpu->bus_id);
        return false;
    }
    return true;
}

/* What a source denies; NULL when none denies anything. */
static const char *denied(const struct oh_topo_pair *pair)
{
    if (pair->nvml_nvlink == OH_NO) {
        return "are not joined by NVLink (NVML)";
    }
    if (pair->nvml_read == OH_NO) {
        return "cannot read each other's memory (NVML)";
    }
    if (pair->nvml_write == OH_NO) {
        return "cannot write each other's memory (NVML)";
    }
    if (pair->cuda_access == OH_NO) {
        return "cannot access each other's memory (CUDA)";
    }
    if (pair->cuda_atomics == OH_NO) {
        return "are not joined by NVLink (CUDA: no native atomics)";
    }
    return NULL;
}

/* What no source proves; NULL when all is proven. */
static const char *unproven(const struct oh_topo_pair *pair)
{
    bool nvlink = pair->nvml_nvlink == OH_YES || pair->cuda_atomics == OH_YES;
    bool access = (pair->nvml_read == OH_YES && pair->nvml_write == OH_YES) || pair->cuda_access == OH_YES;
    if (!nvlink) {
        return "may lack NVLink: neither NVML nor CUDA can tell";
    }
    if (!access) {
        return "may lack access to each other's memory: neither NVML nor CUDA can tell";
    }
    return NULL;
}

bool oh_topo_judge_pair(const char *bus_id_a, const char *bus_id_b, const struct oh_topo_pair *pair, char *reason_p,
                        size_t size)
{
    if (strcasecmp(bus_id_a, bus_id_b) == 0) {
        snprintf(reason_p, size, "two ranks share GPU %s", bus_id_a);
        return false;
    }
    const char *cause = denied(pair);
    if (!cause) {
        cause = unproven(pair);
    }
    if (cause) {
        snprintf(reason_p, size, "GPUs %s and %s %s", bus_id_a, bus_id_b, cause);
        return false;
    }
    return true;
}

bool oh_topo_allowed_by_env(char *reason_p, size_t size)
{
    /* As NCCL 2.28 reads them (ncclGetUserP2pLevel): only the value 1 disables; a level is a name or an old number. */
    const char *disable = getenv("NCCL_P2P_DISABLE");
    if (disable && strtol(disable, NULL, 0) == 1) {
        snprintf(reason_p, size, "NCCL_P2P_DISABLE=%s is set", disable);
        return false;
    }
    const char *level = getenv("NCCL_P2P_LEVEL");
    if (level && (strcmp(level, "LOC") == 0 || (level[0] >= '0' && level[0] <= '9' && strtol(level, NULL, 0) == 0))) {
        snprintf(reason_p, size, "NCCL_P2P_LEVEL=%s is set", level);
        return false;
    }
    return true;
}
