/* SPDX-License-Identifier: MIT */
/*
 * topo/links.h - the NVLinks of a pair of GPUs, for people to see
 *
 * Does: Asks NVML. No part of the verdict.
 * Threads: any.
 * Owns: nothing.
 */
#ifndef OH_TOOLS_TOPO_LINKS_H_
#define OH_TOOLS_TOPO_LINKS_H_

#include <stdbool.h>

/* The links of an ordered pair: for people to see, no part of the verdict. */
struct oh_topo_links {
    int active;      /* active NVLinks between the two (through switches: of the first GPU); -1 unknown */
    bool via_switch; /* the links end in an NVSwitch */
};

/* Counts the links between two GPUs given by bus id. Two questions to NVML for each link of the first. */
void oh_topo_links_gather(const char *bus_id_a, const char *bus_id_b, struct oh_topo_links *links_p);

#endif
