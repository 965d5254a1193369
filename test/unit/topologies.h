/* SPDX-License-Identifier: MIT */
/* topologies.h - where a test of the simulated node finds its topologies */
#ifndef TEST_UNIT_TOPOLOGIES_H_
#define TEST_UNIT_TOPOLOGIES_H_

#include <stdio.h>
#include <stdlib.h>

/* Those of the source tree that `make check` names, unless the environment names others. Before any use of the node. */
static inline void use_topologies(void)
{
    char folder[4096];
    const char *source = getenv("abs_top_srcdir");
    if (source) {
        snprintf(folder, sizeof folder, "%s/test/simnode/topologies", source);
        setenv("SIMNODE_TOPOLOGY_DIR", folder, 0);
    }
}

#endif
