/* SPDX-License-Identifier: MIT */
/*
 * topo/links.c - the NVLinks of a pair of GPUs, by NVML
 *
 * Does: See links.h.
 * Threads: any.
 * Owns: nothing.
 */
#include "tools/topo/links.h"

#include "topo/nvml.h"
#include "topo/topo.h"

void oh_topo_links_gather(const char *bus_id_a, const char *bus_id_b, struct oh_topo_links *links_p)
{
    const struct oh_nvml *nvml = oh_nvml_get();
    oh_nvml_device_t device;
    *links_p = (struct oh_topo_links){.active = -1};
    if (!nvml || nvml->device_by_bus_id(bus_id_a, &device) != OH_NVML_SUCCESS) {
        return;
    }
    for (unsigned int link = 0; link < OH_NVML_LINKS; link++) {
        int active, type;
        struct oh_nvml_pci remote;
        if (nvml->link_state(device, link, &active) != OH_NVML_SUCCESS) {
            break; /* links are numbered without gaps */
        }
        links_p->active = links_p->active < 0 ? 0 : links_p->active;
        if (!active) {
            continue;
        }
        if (nvml->link_remote_type(device, link, &type) == OH_NVML_SUCCESS && type == OH_NVML_REMOTE_SWITCH) {
            links_p->via_switch = true;
            links_p->active++;
        } else if (nvml->link_remote_pci(device, link, &remote) == OH_NVML_SUCCESS &&
                   oh_topo_same_gpu(remote.bus_id, bus_id_b)) {
            links_p->active++;
        }
    }
}
