/* SPDX-License-Identifier: MIT */
/*
 * fuzz_topology.c - the files of test/simnode/topologies
 *
 * sources: test/simnode/topology.c
 * corpus: test/simnode/topologies
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/simnode/topology.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static struct simnode_topology topology;
    char path[64];
    if (fd < 0) {
        fd = memfd_create("topology", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        setenv("SIMNODE_TOPOLOGY", path, 1);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) {
        abort();
    }
    if (simnode_topology_load(&topology)) {
        if (topology.gpus < 0 || topology.gpus > SIMNODE_MAX_GPUS) {
            abort();
        }
        for (int g = 0; g < topology.gpus; g++) {
            char bus_id[32];
            if (strnlen(topology.gpu[g].name, sizeof topology.gpu[g].name) == sizeof topology.gpu[g].name) {
                abort();
            }
            simnode_gpu_bus_id(&topology.gpu[g], 4, bus_id, sizeof bus_id);
            simnode_topology_find(&topology, bus_id);
        }
    }
    return 0;
}
