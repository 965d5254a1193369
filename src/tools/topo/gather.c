/* SPDX-License-Identifier: MIT */
/*
 * topo/gather.c - a node from this machine: CUDA and NVML by way of src/topo
 *
 * Does: gathers the facts that decide by the plugin's own functions. Creates no CUDA context.
 * Threads: one.
 * Owns: nothing; the node owns what is gathered.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shared/tool.h"
#include "tools/topo/node.h"
#include "topo/nvml.h"
#include "util/nccl_conf.h"

static void gather_fabric(const struct oh_nvml *nvml, oh_nvml_device_t device, struct oh_node_gpu *gpu)
{
    struct oh_nvml_fabric fabric;
    bool named = false;
    const int result = nvml->fabric_info ? nvml->fabric_info(device, &fabric) : OH_NVML_SUCCESS + 1;
    if (result != OH_NVML_SUCCESS) {
        gpu->fabric = result == OH_NVML_NOT_SUPPORTED ? OH_NVML_FABRIC_NOT_SUPPORTED : -1;
        return;
    }
    gpu->fabric = fabric.state;
    gpu->fabric_status = fabric.status;
    gpu->clique = (int)fabric.clique;
    for (size_t i = 0; i < sizeof fabric.cluster; i++) {
        snprintf(gpu->cluster + 2 * i, 3, "%02x", fabric.cluster[i]);
        named = named || fabric.cluster[i];
    }
    if (!named) {
        gpu->cluster[0] = '\0';
    }
}

void oh_node_add_links(struct oh_node *node, int gpu, int count, bool to_switch, const char *remote)
{
    int *const all = &node->gpu[gpu].links;
    *all = (*all < 0 ? 0 : *all) + count;
    for (int other = 0; gpu < node->visible && other < node->visible; other++) {
        struct oh_node_pair *pair = oh_node_pair_at(node, gpu, other);
        if (other != gpu) {
            const bool joins = to_switch || oh_topo_same_gpu(remote, node->gpu[other].topo.bus_id);
            pair->via_switch |= to_switch;
            pair->links = (pair->links < 0 ? 0 : pair->links) + (joins ? count : 0);
        }
    }
}

static void add_link(const struct oh_nvml *nvml, oh_nvml_device_t device, unsigned link, int active,
                     struct oh_node *node, int row)
{
    struct oh_nvml_pci remote = {.bus_id = ""};
    int type, *const down = &node->gpu[row].links_down;
    const bool to_switch =
        active && nvml->link_remote_type(device, link, &type) == OH_NVML_SUCCESS && type == OH_NVML_REMOTE_SWITCH;
    const bool to_gpu = active && !to_switch && nvml->link_remote_pci(device, link, &remote) == OH_NVML_SUCCESS;
    *down = (*down < 0 ? 0 : *down) + !active;
    oh_node_add_links(node, row, active != 0, to_switch, to_gpu ? remote.bus_id : "");
}

/* What NVML knows of a GPU that is listed: for people to see, no part of the verdict. */
static void gather_nvlinks(struct oh_node *node, int row)
{
    const struct oh_nvml *nvml = oh_nvml_get();
    oh_nvml_device_t device;
    int active;
    if (!nvml || nvml->device_by_bus_id(node->gpu[row].topo.bus_id, &device) != OH_NVML_SUCCESS) {
        return;
    }
    gather_fabric(nvml, device, &node->gpu[row]);
    for (unsigned link = 0; link < OH_NVML_LINKS; link++) {
        const int result = nvml->link_state(device, link, &active);
        if (result == OH_NVML_SUCCESS) {
            add_link(nvml, device, link, active, node, row);
        } else if (node->gpu[row].links < 0 &&
                   (result == OH_NVML_NOT_SUPPORTED || result == OH_NVML_INVALID_ARGUMENT)) {
            node->gpu[row].links = node->gpu[row].links_down = 0; /* the GPU has no such link */
        }
    }
}

static void gather_gpu(CUdevice device, struct oh_node_gpu *gpu_p)
{
    oh_node_gpu_init(gpu_p);
    oh_topo_gpu_gather(device, &gpu_p->topo);
    gpu_p->compute_mode = oh_topo_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, -1);
    /* cuda.h: this attribute tells whether the IPC functions, those for memory too, work with the device. */
    int ipc = oh_topo_attribute(device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, -1);
    gpu_p->ipc = ipc < 0 ? OH_UNKNOWN : ipc ? OH_YES : OH_NO;
}

/* NVML's bus id as CUDA writes it: lower case, four digits of domain where that is enough. */
static void normal_bus_id(const char *text, char *bus_id_p, size_t size)
{
    snprintf(bus_id_p, size, "%s", strncmp(text, "0000", 4) == 0 && strlen(text) > 12 ? text + 4 : text);
    for (char *c = bus_id_p; *c; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
}

/* The GPUs that NVML sees and CUDA does not, or does not see in this process. */
static void gather_hidden(struct oh_node *node)
{
    const struct oh_nvml *nvml = oh_nvml_get();
    unsigned count;
    if (!nvml || !nvml->device_count || !nvml->device_by_index || !nvml->pci_info ||
        nvml->device_count(&count) != OH_NVML_SUCCESS) {
        return;
    }
    for (unsigned i = 0; i < count && node->visible + node->hidden < OH_NODE_GPUS; i++) {
        struct oh_node_gpu *gpu = &node->gpu[node->visible + node->hidden];
        oh_nvml_device_t device;
        struct oh_nvml_pci pci;
        unsigned current, pending;
        bool known =
            nvml->device_by_index(i, &device) == OH_NVML_SUCCESS && nvml->pci_info(device, &pci) == OH_NVML_SUCCESS;
        for (int k = 0; k < node->visible && known; k++) {
            known = !oh_topo_same_gpu(pci.bus_id, node->gpu[k].topo.bus_id);
        }
        if (!known) {
            continue; /* or listed already */
        }
        oh_node_gpu_init(gpu);
        normal_bus_id(pci.bus_id, gpu->topo.bus_id, sizeof gpu->topo.bus_id);
        if (!nvml->device_name || nvml->device_name(device, gpu->topo.name, sizeof gpu->topo.name) != OH_NVML_SUCCESS) {
            snprintf(gpu->topo.name, sizeof gpu->topo.name, "unknown GPU");
        }
        if (nvml->mig_mode(device, &current, &pending) == OH_NVML_SUCCESS) {
            gpu->topo.mig = current ? OH_YES : OH_NO;
        }
        node->hidden++;
    }
}

static void gather_variables(struct oh_node *node)
{
    for (int v = 0; v < OH_NODE_VARIABLES; v++) {
        const char *name = oh_node_variable_names[v];
        const char *value = strncmp(name, "NCCL_", 5) == 0 ? oh_nccl_variable(name) : getenv(name);
        node->variable[v].set = value != NULL;
        snprintf(node->variable[v].value, sizeof node->variable[v].value, "%s", value ? value : "");
        oh_text_clean(node->variable[v].value, sizeof node->variable[v].value);
    }
}

static void gather_pairs(struct oh_node *node)
{
    for (int i = 0; i < node->visible * node->visible; i++) {
        const int row = i / node->visible, column = i % node->visible;
        if (row != column) {
            oh_topo_pair_gather(node->gpu[row].topo.bus_id, node->gpu[column].topo.bus_id, &node->pair[i].topo);
        }
    }
}

/* Why there is nothing to judge, and what CUDA_VISIBLE_DEVICES has to do with it. */
static void explain_none(struct oh_node *node, const char *why)
{
    snprintf(node->problem, sizeof node->problem, "%s", why);
    if (node->hidden > 0 && node->variable[OH_NODE_VISIBLE_DEVICES].set) {
        oh_text_append(node->problem, sizeof node->problem,
                       "; NVML sees %d GPU%s that CUDA_VISIBLE_DEVICES=%.60s hides", node->hidden,
                       node->hidden == 1 ? "" : "s", node->variable[OH_NODE_VISIBLE_DEVICES].value);
    } else if (node->hidden > 0) {
        oh_text_append(node->problem, sizeof node->problem, ", though NVML sees %d", node->hidden);
    }
}

static void gather_versions(struct oh_node *node)
{
    const struct oh_nvml *nvml = oh_nvml_get();
    if (oh_driver_open() == ncclSuccess &&
        (!oh_driver.get_version || oh_driver.get_version(&node->cuda) != CUDA_SUCCESS)) {
        node->cuda = 0;
    }
    if (!nvml || !nvml->driver_version || nvml->driver_version(node->driver, sizeof node->driver) != OH_NVML_SUCCESS) {
        node->driver[0] = '\0';
    }
    oh_text_clean(node->driver, sizeof node->driver);
}

void oh_node_gather(struct oh_node *node_p)
{
    struct oh_node node = {0};
    char why[160];
    const int count = oh_tool_count_gpus(why, sizeof why);
    node.visible = count < OH_NODE_GPUS ? count : OH_NODE_GPUS;
    node.gpu = oh_tool_allocate(OH_NODE_GPUS * sizeof *node.gpu);
    oh_node_make_pairs(&node);
    for (int i = 0; i < node.visible; i++) {
        CUdevice device;
        gather_gpu(oh_driver.device_get(&device, i) == CUDA_SUCCESS ? device : i, &node.gpu[i]);
    }
    gather_versions(&node);
    gather_variables(&node);
    gather_pairs(&node);
    gather_hidden(&node);
    for (int i = 0; i < node.visible + node.hidden; i++) {
        gather_nvlinks(&node, i);
        oh_text_clean(node.gpu[i].topo.name, sizeof node.gpu[i].topo.name);
    }
    if (node.visible == 0) {
        explain_none(&node, why);
    }
    *node_p = node;
}
