/* SPDX-License-Identifier: MIT */
/*
 * topo.h - can every pair of these GPUs reach each other over NVLink?
 *
 * Does: Gathers facts from NVML and the CUDA driver, and judges them; recorded facts get the same verdict elsewhere. A
 *    rank judges its own GPU with each peer, `onehop topo` all pairs. Nothing fails: what is not known is OH_UNKNOWN.
 * Threads: any; verdicts are pure functions, apart from oh_topo_allowed_by_env.
 * Owns: nothing.
 */
#ifndef OH_TOPO_TOPO_H_
#define OH_TOPO_TOPO_H_

#include <stdbool.h>
#include <stddef.h>

#include "gpu/driver.h"

#define OH_TOPO_BUS_ID 32
#define OH_TOPO_COMPUTE_MAJOR 8 /* the least compute capability that kernels are compiled for (Ampere) */

enum oh_fact {
    OH_UNKNOWN = 0,
    OH_NO = 1,
    OH_YES = 2
};

/* One GPU as seen from this process. */
struct oh_topo_gpu {
    char bus_id[OH_TOPO_BUS_ID]; /* as cuDeviceGetPCIBusId writes it, lower case; empty when that failed */
    int cuda_device;             /* CUDA ordinal in this process */
    enum oh_fact mig;            /* MIG mode is on */
    int compute_major;           /* compute capability; 0: unknown */
    int compute_minor;           /* -1: unknown */
    char name[96];
};

/* One ordered pair of GPUs. */
struct oh_topo_pair {
    enum oh_fact nvml_nvlink, nvml_read, nvml_write; /* nvmlDeviceGetP2PStatus */
    enum oh_fact cuda_access;                        /* CUDA P2P attribute ACCESS_SUPPORTED, both directions */
    /*
     * CUDA P2P attribute NATIVE_ATOMIC_SUPPORTED, of which PCIe has none. The kernels use no atomics on a peer's
     * memory: it only tells NVLink from PCIe where NVML does not. (CUDA 13 documents it as "all atomics": NVLink may
     * lack some.)
     */
    enum oh_fact cuda_atomics;
};

/* Why a pair is not served, in the order in which it is checked. */
enum oh_topo_cause {
    OH_CAUSE_NONE,
    OH_CAUSE_NVML_NVLINK, /* denied, by the source and fact of that name */
    OH_CAUSE_NVML_READ,
    OH_CAUSE_NVML_WRITE,
    OH_CAUSE_CUDA_ACCESS,
    OH_CAUSE_CUDA_ATOMICS,
    OH_CAUSE_UNPROVEN_NVLINK, /* neither source denies it, and none proves it */
    OH_CAUSE_UNPROVEN_ACCESS,
    OH_CAUSES
};

/* Returns an attribute of the device, or `unknown` if the driver does not tell it. */
int oh_topo_attribute(CUdevice device, CUdevice_attribute which, int unknown);

/* Gathers the facts on a CUDA device of this process. */
void oh_topo_gpu_gather(CUdevice device, struct oh_topo_gpu *gpu_p);

/* Gets the version of the NVIDIA driver as NVML writes it, or "unknown". */
void oh_topo_driver_version(char *version_p, size_t size);

/* Gathers and remembers the facts on two GPUs given by bus id; either may be invisible to CUDA in this process. */
void oh_topo_pair_gather(const char *bus_id_a, const char *bus_id_b, struct oh_topo_pair *pair_p);

/* Returns whether two bus ids mean the same GPU: NVML writes the domain with eight digits, CUDA with four. */
bool oh_topo_same_gpu(const char *bus_id_a, const char *bus_id_b);

/*
 * Judges a GPU by itself. Returns false, with one clause in reason_p, if it is split into MIG instances, has no bus id,
 * or is too old for the kernels. Here and below, reason_p is unchanged if the result is true.
 */
bool oh_topo_check_gpu(const struct oh_topo_gpu *gpu, char *reason_p, size_t size);

/* Returns the first cause against a pair of different GPUs, or OH_CAUSE_NONE. */
enum oh_topo_cause oh_topo_pair_cause(const struct oh_topo_pair *pair);

/*
 * Judges a pair. Returns true if no source denies NVLink or direct access, and one at least proves each. Otherwise
 * reason_p names the pair, the cause and the source.
 */
bool oh_topo_check_pair(const char *bus_id_a, const char *bus_id_b, const struct oh_topo_pair *pair, char *reason_p,
                        size_t size);

/*
 * Judges the user's settings: NCCL_P2P_DISABLE=1 and NCCL_P2P_LEVEL=LOC (or 0) forbid direct access, the zero-CTA
 * policy of NCCL_CTA_POLICY forbids kernels, NCCL_LAUNCH_ORDER_IMPLICIT=1 orders the kernels of all communicators,
 * which onehop's would not be part of. An NCCL_ALGO of one algorithm pins NCCL's order of sums, and counts unless
 * ONEHOP_INVARIANT=1 or ONEHOP_PINNED=serve is set. The first function reads the variables (util/nccl_conf.h). The
 * others take the values; NULL: not set.
 */
bool oh_topo_allowed_by_env(char *reason_p, size_t size);
bool oh_topo_allowed(const char *p2p_disable, const char *p2p_level, const char *cta_policy, const char *launch_order,
                     char *reason_p, size_t size);

bool oh_topo_allowed_by_algo(const char *algo, char *reason_p, size_t size);

#endif
