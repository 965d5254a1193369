/* SPDX-License-Identifier: MIT */
/*
 * topo/locality.h - where in the machine a GPU sits: its CPUs, NUMA node and place in the PCI tree, from hwloc
 *
 * Without hwloc at build time nothing is known. One thread at a time.
 */
#ifndef OH_TOOLS_TOPO_LOCALITY_H_
#define OH_TOOLS_TOPO_LOCALITY_H_

#include <stdbool.h>
#include <stddef.h>

/* Empty texts: unknown. */
struct oh_locality {
    char cpus[64]; /* as a list, "0-31,64-95" */
    char numa[32]; /* as a list, "0" */
    char root[32]; /* bus id of the bridge below the host bridge that the GPU hangs on: its root port */
};

/* How near two PCI devices are, by the names that nvidia-smi gives. */
enum oh_path {
    OH_PATH_UNKNOWN,
    OH_PATH_PIX,  /* one PCIe bridge or switch */
    OH_PATH_PXB,  /* several, without the host bridge */
    OH_PATH_PHB,  /* the host bridge */
    OH_PATH_NODE, /* host bridges of one NUMA node */
    OH_PATH_SYS,  /* the interconnect of NUMA nodes */
    OH_PATHS
};

struct oh_hwloc;

/* Reads the machine's topology. NULL when built without hwloc or when hwloc fails. Free with oh_hwloc_close. */
struct oh_hwloc *oh_hwloc_open(void);

/* Frees it; NULL is fine. */
void oh_hwloc_close(struct oh_hwloc *machine);

/* Fills *place_p for the GPU of a PCI bus id. Never fails; machine may be NULL. */
void oh_hwloc_locality(const struct oh_hwloc *machine, const char *bus_id, struct oh_locality *place_p);

/* How near two GPUs are; OH_PATH_UNKNOWN when hwloc does not know one of them, or machine is NULL. */
enum oh_path oh_hwloc_path(const struct oh_hwloc *machine, const char *bus_id_a, const char *bus_id_b);

#endif
