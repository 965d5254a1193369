/* SPDX-License-Identifier: MIT */
/*
 * topology.h - which GPUs the simulated node has and how they are joined
 *
 * Read from a text file (README.md describes it) by the simulated driver and the simulated NVML, each for itself.
 * Plain data, only read once loaded.
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
    unsigned domain;
    unsigned bus;
    unsigned device;
    int cc_major;
    int cc_minor;
    int sms;
    uint64_t memory; /* bytes */
    enum simnode_answer mig;
    int fabric;    /* nvmlGpuFabricState_t; 0: not supported */
    char name[96]; /* begins with "SIMULATED " */
};

/* One pair of different GPUs; the same in both directions. */
struct simnode_pair {
    int nvlinks;
    bool via_switch;
    enum simnode_answer nvlink; /* NVML P2P status, three capabilities */
    enum simnode_answer read;
    enum simnode_answer write;
    bool access; /* CUDA P2P attributes, two of them */
    bool atomics;
};

struct simnode_topology {
    int gpus;
    struct simnode_gpu gpu[SIMNODE_MAX_GPUS];
    struct simnode_pair pair[SIMNODE_MAX_GPUS][SIMNODE_MAX_GPUS];
};

/*
 * Loads the topology that SIMNODE_TOPOLOGY names (h200x4 when unset). Returns false, having written one line to
 * stderr, when there is no such file or it cannot be read.
 */
bool simnode_topology_load(struct simnode_topology *topology_p);

/* The index of the GPU with that PCI bus id ("0000:19:00.0", any number of leading zeros, any case); -1: none. */
int simnode_topology_find(const struct simnode_topology *topology, const char *bus_id);

/* Writes "DDDD:BB:dd.0" in upper case, the domain with at least that many digits. */
void simnode_gpu_bus_id(const struct simnode_gpu *gpu, int domain_digits, char *text_p, size_t size);

#endif
