/* SPDX-License-Identifier: MIT */
/*
 * topo.h - can every pair of these GPUs reach each other over NVLink?
 *
 * Facts (gathered from NVML and the CUDA driver) are plain data, kept apart from the verdict, which is a pure
 * function of them: recorded facts give the same verdict elsewhere. Used by the plugin (one rank asks about its own
 * GPU and every peer) and by `onehop topo` (all pairs). Thread-safe.
 */
#ifndef OH_TOPO_TOPO_H_
#define OH_TOPO_TOPO_H_

#include <stdbool.h>
#include <stddef.h>

#include "gpu/driver.h"

#define OH_TOPO_BUS_ID 32
#define OH_TOPO_COMPUTE_MAJOR 8 /* the least compute capability that kernels are compiled for (Ampere) */

/* What one source says of something: it does not know, no, or yes. */
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
    char name[96];
};

/* One ordered pair of GPUs: what decides. */
struct oh_topo_pair {
    enum oh_fact nvml_nvlink;  /* nvmlDeviceGetP2PStatus(NVLINK) */
    enum oh_fact nvml_read;    /* nvmlDeviceGetP2PStatus(READ) */
    enum oh_fact nvml_write;   /* nvmlDeviceGetP2PStatus(WRITE) */
    enum oh_fact cuda_access;  /* CUDA P2P attribute ACCESS_SUPPORTED, both directions */
    enum oh_fact cuda_atomics; /* CUDA P2P attribute NATIVE_ATOMIC_SUPPORTED: NVLink has it, PCIe has not */
};

/* What stands against a pair, in the order in which it is looked for. */
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

/* The links of an ordered pair: for people to see, no part of the verdict. */
struct oh_topo_links {
    int active;      /* active NVLinks between the two (through switches: of the first GPU); -1 unknown */
    bool via_switch; /* the links end in an NVSwitch */
};

/*
 * Fills *gpu_p for a CUDA device of this process. Never fails: what cannot be learned stays OH_UNKNOWN. This and
 * oh_topo_pair_gather ask once and remember the answer: it does not change while the process lives.
 */
void oh_topo_gpu_gather(const struct oh_driver *driver, CUdevice device, struct oh_topo_gpu *gpu_p);

/* The version of the NVIDIA driver as NVML writes it; "unknown" where it does not tell. Never fails. */
void oh_topo_driver_version(char *version_p, size_t size);

/* Fills *pair_p for two GPUs given by bus id; either may be invisible to CUDA in this process. Never fails. */
void oh_topo_pair_gather(const struct oh_driver *driver, const char *bus_id_a, const char *bus_id_b,
                         struct oh_topo_pair *pair_p);

/* Fills *links_p for two GPUs given by bus id. Asks NVML two questions for each link of the first. Never fails. */
void oh_topo_links_gather(const char *bus_id_a, const char *bus_id_b, struct oh_topo_links *links_p);

/*
 * Verdict on a GPU by itself: false, with one clause in reason_p, when it is split into MIG instances, has no bus
 * id to know it by, or is too old for the kernels. Pure. reason_p is untouched when true.
 */
bool oh_topo_check_gpu(const struct oh_topo_gpu *gpu, char *reason_p, size_t size);

/* The first thing that stands against a pair of different GPUs; OH_CAUSE_NONE when nothing does. Pure. */
enum oh_topo_cause oh_topo_pair_cause(const struct oh_topo_pair *pair);

/*
 * Verdict on a pair: true when no source denies NVLink or direct access, and each of the two is proven by at least
 * one source. Otherwise false, with one clause in reason_p that names the pair, the cause and the source. Pure.
 * reason_p is untouched when true.
 */
bool oh_topo_check_pair(const char *bus_id_a, const char *bus_id_b, const struct oh_topo_pair *pair, char *reason_p,
                        size_t size);

/*
 * Honours the user's NCCL settings that forbid direct GPU access: NCCL_P2P_DISABLE=1, NCCL_P2P_LEVEL=LOC (or 0).
 * Returns true when access is allowed; false with the reason. Reads the environment: ask after NCCL has initialised,
 * which puts the settings of nccl.conf there.
 */
bool oh_topo_allowed_by_env(char *reason_p, size_t size);

/* The same for given values of the two variables; NULL: not set. Pure. */
bool oh_topo_allowed(const char *p2p_disable, const char *p2p_level, char *reason_p, size_t size);

#endif
