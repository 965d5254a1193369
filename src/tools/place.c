/* SPDX-License-Identifier: MIT */
/*
 * place.c - hwloc behind three functions
 */
#include "config.h"

#include "tools/place.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_HWLOC
#include <hwloc.h>

struct oh_machine {
    hwloc_topology_t topology;
};

struct oh_machine *oh_machine_open(void)
{
    struct oh_machine *machine = malloc(sizeof *machine);
    if (!machine || hwloc_topology_init(&machine->topology) != 0) {
        goto err_free;
    }
    /* PCI devices only: hwloc's own CUDA and NVML parts run for the sake of OS devices, and stay out. */
    if (hwloc_topology_set_type_filter(machine->topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) ||
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

void oh_machine_close(struct oh_machine *machine)
{
    if (machine) {
        hwloc_topology_destroy(machine->topology);
        free(machine);
    }
}

void oh_machine_place(const struct oh_machine *machine, const char *bus_id, struct oh_place *place_p)
{
    *place_p = (struct oh_place){"-", "-"};
    hwloc_obj_t gpu = machine ? hwloc_get_pcidev_by_busidstring(machine->topology, bus_id) : NULL;
    hwloc_obj_t host = gpu ? hwloc_get_non_io_ancestor_obj(machine->topology, gpu) : NULL;
    if (host) {
        hwloc_bitmap_list_snprintf(place_p->cpus, sizeof place_p->cpus, host->cpuset);
        hwloc_bitmap_list_snprintf(place_p->numa, sizeof place_p->numa, host->nodeset);
    }
}

#else

struct oh_machine *oh_machine_open(void)
{
    return NULL;
}

void oh_machine_close(struct oh_machine *machine)
{
    (void)machine;
}

void oh_machine_place(const struct oh_machine *machine, const char *bus_id, struct oh_place *place_p)
{
    (void)machine;
    (void)bus_id;
    *place_p = (struct oh_place){"-", "-"};
}

#endif
