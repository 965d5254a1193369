/* SPDX-License-Identifier: MIT */
/*
 * place.h - where in the machine a GPU sits: its CPUs and NUMA node, from hwloc
 *
 * Without hwloc at build time nothing is known. One thread at a time.
 */
#ifndef OH_TOOLS_PLACE_H_
#define OH_TOOLS_PLACE_H_

#include <stdbool.h>

struct oh_place {
    char cpus[64]; /* as a list, "0-31,64-95"; "-" unknown */
    char numa[32]; /* as a list, "0"; "-" unknown */
};

struct oh_machine;

/* Reads the machine's topology. NULL when built without hwloc or when hwloc fails. Free with oh_machine_close. */
struct oh_machine *oh_machine_open(void);

/* Frees it; NULL is fine. */
void oh_machine_close(struct oh_machine *machine);

/* Fills *place_p for the GPU of a PCI bus id. Never fails; machine may be NULL. */
void oh_machine_place(const struct oh_machine *machine, const char *bus_id, struct oh_place *place_p);

#endif
