/* SPDX-License-Identifier: MIT */
/*
 * topology.h - which GPUs the simulated node has and how they are joined
 *
 * The nodes are a table in topology.c. The simulated driver and the simulated NVML choose one of them, each for itself.
 */
#ifndef TEST_SIMNODE_TOPOLOGY_H_
#define TEST_SIMNODE_TOPOLOGY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIMNODE_MAX_GPUS 8

/* What NVML answers. */
enum simnode_answer {
    SIMNODE_NO,
    SIMNODE_YES,
    SIMNODE_UNKNOWN, /* the call succeeds and says "unknown" */
    SIMNODE_HIDDEN   /* the call fails with NVML_ERROR_NOT_SUPPORTED */
};

struct simnode_gpu {
    const char *name; /* begins with "SIMULATED " */
    int cc_major;
    int cc_minor;
    int sms;
    uint64_t memory_gib;
};

/* One pair of different GPUs; the same in both directions. */
struct simnode_pair {
    int nvlinks;
    bool via_switch;            /* the NVLinks end in a switch; a GPU's links then serve all its peers */
    enum simnode_answer nvlink; /* NVML P2P status, of NVLinks and of reading and writing memory */
    enum simnode_answer memory;
    bool access; /* CUDA P2P attributes, two of them */
    bool atomics;
};

struct simnode_topology {
    const char *name;
    int gpus;
    const struct simnode_gpu *gpu;   /* all are alike */
    const struct simnode_pair *pair; /* every one but `other` */
    struct {
        int a, b;
        const struct simnode_pair *pair; /* NULL: none */
    } other[2];
    int mig;    /* the GPU in MIG mode; 0: none */
    int fabric; /* nvmlGpuFabricState_t; 0: not supported */
};

/* The node that SIMNODE_TOPOLOGY names (h200x4 when unset); NULL, with one line on stderr: there is none. */
const struct simnode_topology *simnode_topology_get(void);

const struct simnode_pair *simnode_topology_pair(const struct simnode_topology *topology, int a, int b);

/* The index of the GPU with that PCI bus id ("0000:19:00.0", any number of leading zeros, any case); -1: none. */
int simnode_topology_find(const struct simnode_topology *topology, const char *bus_id);

/* The PCI bus of the GPU of an index. It is device 0 there, in domain 0. */
unsigned simnode_gpu_bus(int gpu);

/* Writes "DDDD:BB:00.0" in upper case, the domain with that many digits. */
void simnode_bus_id(unsigned bus, int domain_digits, char *text_p, size_t size);

#endif
