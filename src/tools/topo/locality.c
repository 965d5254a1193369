/* SPDX-License-Identifier: MIT */
/*
 * topo/locality.c - where in the machine the GPUs of a node sit, by hwloc
 *
 * Does: fills CPUs, NUMA node, root port, and the PCIe path of pairs. Without hwloc at build time they stay unknown.
 * Threads: one.
 * Owns: hwloc's topology, while it looks.
 */
#include "config.h"

#include <stdio.h>

#include "tools/shared/tool.h"
#include "tools/topo/node.h"

#ifdef HAVE_HWLOC
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

/* Without it a cpuset hides CPUs and nodes of the machine. */
#if HWLOC_API_VERSION >= 0x00020100
#define WHOLE_MACHINE HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED
#else
#define WHOLE_MACHINE HWLOC_TOPOLOGY_FLAG_WHOLE_SYSTEM
#endif

static bool is_pci_bridge(hwloc_obj_t object)
{
    return object && object->type == HWLOC_OBJ_BRIDGE && object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI;
}

/* A list that does not fit is unknown. */
static void fill_list(char list_p[OH_NODE_VALUE], hwloc_const_bitmap_t set)
{
    const int length = set ? hwloc_bitmap_list_snprintf(list_p, OH_NODE_VALUE, set) : 0;
    list_p[length < OH_NODE_VALUE ? length : 0] = '\0';
}

/* SYS if a NUMA node is near one object alone, NODE if all nodes there have both, else "": not known. */
static const char *node_path(hwloc_topology_t topology, hwloc_obj_t a, hwloc_obj_t b)
{
    bool apart = false, partly = hwloc_bitmap_iszero(a->cpuset) || hwloc_bitmap_iszero(b->cpuset);
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node));) {
        const bool near_a = hwloc_bitmap_intersects(a->cpuset, node->cpuset);
        const bool near_b = hwloc_bitmap_intersects(b->cpuset, node->cpuset);
        const bool all_a = hwloc_bitmap_isincluded(a->cpuset, node->cpuset);
        const bool all_b = hwloc_bitmap_isincluded(b->cpuset, node->cpuset);
        apart = apart || (all_a && !near_b) || (all_b && !near_a);
        partly = partly || ((near_a || near_b) && !(all_a && all_b));
    }
    return apart ? "SYS" : partly ? "" : "NODE";
}

/* What a device is near to; NULL: not known. hwloc puts a device beside all nodes if its own is unknown or hidden. */
static hwloc_obj_t host_of(hwloc_topology_t topology, hwloc_obj_t device)
{
    hwloc_obj_t host = device ? hwloc_get_non_io_ancestor_obj(topology, device) : NULL;
    const bool somewhere =
        host && host == hwloc_get_root_obj(topology) &&
        (!node_path(topology, host, host)[0] || !hwloc_bitmap_isequal(host->nodeset, host->complete_nodeset));
    return somewhere ? NULL : host;
}

static void fill_gpu(hwloc_topology_t topology, hwloc_obj_t object, struct oh_node_gpu *gpu)
{
    hwloc_obj_t host = object ? hwloc_get_non_io_ancestor_obj(topology, object) : NULL;
    if (!host) {
        return;
    }
    if (host_of(topology, object)) {
        fill_list(gpu->cpus, host->cpuset);
        fill_list(gpu->numa, host->nodeset);
    }
    for (hwloc_obj_t up = object->parent; up != host; up = up->parent) {
        if (is_pci_bridge(up)) { /* the last one is the root port */
            const struct hwloc_pcidev_attr_s *pci = &up->attr->bridge.upstream.pci;
            snprintf(gpu->root, sizeof gpu->root, "%04x:%02x:%02x.%x", (unsigned)pci->domain, (unsigned)pci->bus,
                     (unsigned)pci->dev, (unsigned)pci->func);
        }
    }
}

/* Steps from an object up to its ancestor; -1: it is none. */
static int steps_up(hwloc_obj_t object, hwloc_obj_t ancestor)
{
    int steps = 0;
    while (object && object != ancestor) {
        object = object->parent;
        steps++;
    }
    return object ? steps : -1;
}

/* How near two PCI devices are, by the names that nvidia-smi gives. */
static const char *path_of(hwloc_topology_t topology, hwloc_obj_t a, hwloc_obj_t b)
{
    hwloc_obj_t shared = a;
    if (!a || !b) {
        return "";
    }
    while (steps_up(b, shared) < 0) {
        shared = shared->parent; /* the root is above both */
    }
    if (is_pci_bridge(shared)) { /* a switch: a bridge at its upstream port, and one at each port below */
        return steps_up(a, shared) <= 2 && steps_up(b, shared) <= 2 ? "PIX" : "PXB";
    }
    if (shared->type == HWLOC_OBJ_BRIDGE) {
        return "PHB";
    }
    hwloc_obj_t host_a = host_of(topology, a), host_b = host_of(topology, b);
    const bool known = host_a && host_b && a->parent != host_a && b->parent != host_b; /* the last two: by a bridge */
    return known ? node_path(topology, host_a, host_b) : "";
}

static void fill(hwloc_topology_t topology, struct oh_node *node)
{
    hwloc_obj_t object[OH_NODE_GPUS];
    for (int i = 0; i < node->visible + node->hidden; i++) {
        const char *bus_id = node->gpu[i].topo.bus_id;
        object[i] = bus_id[0] ? hwloc_get_pcidev_by_busidstring(topology, bus_id) : NULL;
        fill_gpu(topology, object[i], &node->gpu[i]);
    }
    for (int i = 0; i < node->visible * node->visible; i++) {
        int row = i / node->visible, column = i % node->visible;
        if (row != column) {
            strcpy(node->pair[i].path, path_of(topology, object[row], object[column])); /* NOLINT: at most 4 letters */
        }
    }
}

/* Lists the GPUs of a file: NVIDIA's display controllers. */
static void list_gpus(hwloc_topology_t topology, struct oh_node *node)
{
    hwloc_obj_t device = NULL;
    while ((device = hwloc_get_next_pcidev(topology, device)) && node->visible < OH_NODE_GPUS) {
        const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
        if (pci->vendor_id == 0x10de && pci->class_id >> 8 == 0x03) {
            struct oh_node_gpu *gpu = &node->gpu[node->visible++];
            oh_node_gpu_init(gpu);
            snprintf(gpu->topo.bus_id, sizeof gpu->topo.bus_id, "%04x:%02x:%02x.%x", (unsigned)pci->domain,
                     (unsigned)pci->bus, (unsigned)pci->dev, (unsigned)pci->func);
            snprintf(gpu->topo.name, sizeof gpu->topo.name, "%.95s", device->name ? device->name : "NVIDIA GPU");
            oh_text_clean(gpu->topo.name, sizeof gpu->topo.name);
        }
    }
    oh_node_make_pairs(node);
}

/* Of this machine, or of XML that lists the GPUs, too. Returns whether hwloc can read it. */
static bool locate(const char *xml, struct oh_node *node)
{
    hwloc_topology_t topology;
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* what hwloc does not know is "?" on the page */
    if (hwloc_topology_init(&topology) != 0) {
        return false;
    }
    /* PCI devices only: hwloc's own CUDA and NVML parts find OS devices, and are not loaded. */
    const bool good =
        (!xml || hwloc_topology_set_xmlbuffer(topology, xml, (int)strlen(xml) + 1) == 0) &&
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
        hwloc_topology_set_flags(topology, WHOLE_MACHINE) == 0 && hwloc_topology_load(topology) == 0;
    if (good && xml) {
        list_gpus(topology, node);
    }
    if (good) {
        fill(topology, node);
    }
    hwloc_topology_destroy(topology);
    return good;
}

#else

static bool locate(const char *xml, struct oh_node *node)
{
    (void)xml, (void)node;
    return false;
}

#endif

void oh_node_locate(struct oh_node *node)
{
    locate(NULL, node);
}

bool oh_node_read_hwloc(const char *text, struct oh_node *node, const char **what_p)
{
    snprintf(node->source, sizeof node->source, "XML of hwloc");
    *what_p = locate(text, node) ? "XML of hwloc without a GPU of NVIDIA's"
                                 : "XML of hwloc that is damaged, or of a later version than this build's hwloc";
    return node->visible > 0;
}
