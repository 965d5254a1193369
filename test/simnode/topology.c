/* SPDX-License-Identifier: MIT */
/*
 * topology.c - the nodes that can be simulated
 */
#include "test/simnode/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct simnode_gpu h200 = {"SIMULATED NVIDIA H200", 9, 0, 132, 141};
static const struct simnode_gpu h100_pcie = {"SIMULATED NVIDIA H100 PCIe", 9, 0, 114, 80};
static const struct simnode_gpu a100 = {"SIMULATED NVIDIA A100-SXM4-80GB", 8, 0, 108, 80};
static const struct simnode_gpu a100_pcie = {"SIMULATED NVIDIA A100 80GB PCIe", 8, 0, 108, 80};

static const struct simnode_pair nvswitch = {18, true, SIMNODE_YES, SIMNODE_YES, true, true};
static const struct simnode_pair dead_link = {18, true, SIMNODE_NO, SIMNODE_YES, true, false};
static const struct simnode_pair no_fabric = {18, true, SIMNODE_NO, SIMNODE_YES, true, true};
static const struct simnode_pair no_access = {18, true, SIMNODE_YES, SIMNODE_YES, false, false};
static const struct simnode_pair four_links = {4, false, SIMNODE_YES, SIMNODE_YES, true, true};
static const struct simnode_pair bridge = {12, false, SIMNODE_YES, SIMNODE_YES, true, true};
static const struct simnode_pair pcie = {0, false, SIMNODE_NO, SIMNODE_YES, true, false};
static const struct simnode_pair proven_by_cuda = {0, false, SIMNODE_UNKNOWN, SIMNODE_UNKNOWN, true, true};
static const struct simnode_pair hidden = {0, false, SIMNODE_HIDDEN, SIMNODE_HIDDEN, false, false};

#define NODE(name_, gpus_, gpu_, pair_, ...)                                                                           \
    {                                                                                                                  \
        .name = name_, .gpus = gpus_, .gpu = &gpu_, .pair = &pair_, __VA_ARGS__                                        \
    }
static const struct simnode_topology topologies[] = {
    /* GPUs behind NVSwitches: all well, or not */
    NODE("h200x2", 2, h200, nvswitch, ),
    NODE("h200x3", 3, h200, nvswitch, ),
    NODE("h200x4", 4, h200, nvswitch, ),
    NODE("h200x8", 8, h200, nvswitch, ),
    NODE("dead-link-pair", 4, h200, nvswitch, .other = {{1, 3, &dead_link}}),
    NODE("fabric-down", 2, h200, no_fabric, .fabric = 1), /* its state: not started */
    NODE("mig", 4, h200, nvswitch, .mig = 1),
    NODE("nvml-disagrees", 4, h200, no_access, ), /* CUDA denies what NVML says */
    /* NVLinks from GPU to GPU, and none */
    NODE("a100x4-direct", 4, a100, four_links, ),
    NODE("partial-nvlink", 4, a100_pcie, pcie, .other = {{0, 1, &bridge}, {2, 3, &bridge}}),
    NODE("pcie-only", 4, h100_pcie, pcie, ),
    /* virtual machines, whose NVML does not know of NVLink, or does not answer */
    NODE("vm-hidden", 4, h200, proven_by_cuda, ),
    NODE("vm-hidden-noproof", 4, h200, hidden, ),
};

static const unsigned buses[SIMNODE_MAX_GPUS] = {0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb};

const struct simnode_topology *simnode_topology_get(void)
{
    const char *name = getenv("SIMNODE_TOPOLOGY");
    if (!name || name[0] == '\0') {
        name = "h200x4";
    }
    for (size_t i = 0; i < sizeof topologies / sizeof *topologies; i++) {
        if (strcmp(topologies[i].name, name) == 0) {
            return &topologies[i];
        }
    }
    fprintf(stderr, "simnode: no topology '%s' (SIMNODE_TOPOLOGY)\n", name);
    return NULL;
}

const struct simnode_pair *simnode_topology_pair(const struct simnode_topology *topology, int a, int b)
{
    for (size_t i = 0; i < sizeof topology->other / sizeof *topology->other; i++) {
        if (topology->other[i].pair && ((topology->other[i].a == a && topology->other[i].b == b) ||
                                        (topology->other[i].a == b && topology->other[i].b == a))) {
            return topology->other[i].pair;
        }
    }
    return topology->pair;
}

int simnode_topology_find(const struct simnode_topology *topology, const char *bus_id)
{
    unsigned domain, bus, device;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) == 3 && domain == 0 && device == 0) {
        for (int i = 0; i < topology->gpus; i++) {
            if (buses[i] == bus) {
                return i;
            }
        }
    }
    return -1;
}

unsigned simnode_gpu_bus(int gpu)
{
    return buses[gpu];
}

void simnode_bus_id(unsigned bus, int domain_digits, char *text_p, size_t size)
{
    snprintf(text_p, size, "%0*X:%02X:00.0", domain_digits, 0, bus);
}
