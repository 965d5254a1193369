/* SPDX-License-Identifier: MIT */
/*
 * topo/locality.c - hwloc behind a few functions
 */
#include "config.h"

#include "tools/topo/locality.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_HWLOC
#include <hwloc.h>

struct oh_hwloc {
    hwloc_topology_t topology;
};

struct oh_hwloc *oh_hwloc_open(void)
{
    struct oh_hwloc *machine = malloc(sizeof *machine);
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* what it cannot tell is a "-" on the page */
    if (!machine || hwloc_topology_init(&machine->topology) != 0) {
        goto err_free;
    }
    /* PCI devices only: hwloc's own CUDA and NVML parts run for the sake of OS devices, and stay out. */
    if (hwloc_topology_set_type_filter(machine->topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) ||
        hwloc_topology_set_type_filter(machine->topology, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) ||
        hwloc_topology_load(machine->topology) != 0) {
        goto err_destroy;
    }
    return machine;

err_destroy:
    hwloc_topology_destroy(machine->topology);
err_free:
    free(machine);
    return NULL;
}

void oh_hwloc_close(struct oh_hwloc *machine)
{
    if (machine) {
        hwloc_topology_destroy(machine->topology);
        free(machine);
    }
}

static hwloc_obj_t find(const struct oh_hwloc *machine, const char *bus_id)
{
    return machine && bus_id[0] ? hwloc_get_pcidev_by_busidstring(machine->topology, bus_id) : NULL;
}

static bool is_pci_bridge(hwloc_obj_t object)
{
    return object && object->type == HWLOC_OBJ_BRIDGE && object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI;
}

void oh_hwloc_locality(const struct oh_hwloc *machine, const char *bus_id, struct oh_locality *place_p)
{
    *place_p = (struct oh_locality){0};
    hwloc_obj_t gpu = find(machine, bus_id);
    hwloc_obj_t host = gpu ? hwloc_get_non_io_ancestor_obj(machine->topology, gpu) : NULL;
    if (!host) {
        return;
    }
    hwloc_bitmap_list_snprintf(place_p->cpus, sizeof place_p->cpus, host->cpuset);
    hwloc_bitmap_list_snprintf(place_p->numa, sizeof place_p->numa, host->nodeset);
    for (hwloc_obj_t up = gpu->parent; up != host; up = up->parent) {
        if (is_pci_bridge(up)) {
            const struct hwloc_pcidev_attr_s *pci = &up->attr->bridge.upstream.pci;
            snprintf(place_p->root, sizeof place_p->root, "%04x:%02x:%02x.%x", (unsigned)pci->domain,
                     (unsigned)pci->bus, (unsigned)pci->dev, (unsigned)pci->func);
        }
    }
}

/* Steps from an object up to its ancestor; -1 when it is none. */
static int steps_up(hwloc_obj_t object, hwloc_obj_t ancestor)
{
    int steps = 0;
    while (object && object != ancestor) {
        object = object->parent;
        steps++;
    }
    return object ? steps : -1;
}

enum oh_path oh_hwloc_path(const struct oh_hwloc *machine, const char *bus_id_a, const char *bus_id_b)
{
    hwloc_obj_t a = find(machine, bus_id_a), b = find(machine, bus_id_b), shared = a;
    if (!a || !b) {
        return OH_PATH_UNKNOWN;
    }
    while (steps_up(b, shared) < 0) {
        shared = shared->parent; /* the root is above both */
    }
    if (is_pci_bridge(shared)) { /* a switch: a bridge at its upstream port, and one at each port below */
        return steps_up(a, shared) <= 2 && steps_up(b, shared) <= 2 ? OH_PATH_PIX : OH_PATH_PXB;
    }
    if (shared->type == HWLOC_OBJ_BRIDGE) {
        return OH_PATH_PHB;
    }
    hwloc_obj_t host_a = hwloc_get_non_io_ancestor_obj(machine->topology, a);
    hwloc_obj_t host_b = hwloc_get_non_io_ancestor_obj(machine->topology, b);
    bool same = host_a && host_b && hwloc_bitmap_isequal(host_a->nodeset, host_b->nodeset);
    return same ? OH_PATH_NODE : OH_PATH_SYS;
}

#else

struct oh_hwloc *oh_hwloc_open(void)
{
    return NULL;
}

void oh_hwloc_close(struct oh_hwloc *machine)
{
    (void)machine;
}

void oh_hwloc_locality(const struct oh_hwloc *machine, const char *bus_id, struct oh_locality *place_p)
{
    (void)machine;
    (void)bus_id;
    *place_p = (struct oh_locality){0};
}

enum oh_path oh_hwloc_path(const struct oh_hwloc *machine, const char *bus_id_a, const char *bus_id_b)
{
    (void)machine;
    (void)bus_id_a;
    (void)bus_id_b;
    return OH_PATH_UNKNOWN;
}

#endif
