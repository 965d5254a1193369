/* SPDX-License-Identifier: MIT */
/*
 * t_simnode_nvml.c - the simulated NVML and the topologies that it shows
 */
#include <stdlib.h>
#include <string.h>

#include "test/unit/scenario.h"
#include "topo/nvml.h"

#define DECLARE(field_, symbol_, args_) int symbol_ args_;
OH_NVML_FUNCTIONS(DECLARE)
#undef DECLARE

static oh_nvml_device_t nvml_device(const char *bus_id)
{
    oh_nvml_device_t device = NULL;
    CHECK(nvmlDeviceGetHandleByPciBusId_v2(bus_id, &device) == 0);
    return device;
}

static void nvml_switch(void)
{
    int status, type, links = 0, active;
    unsigned current, pending;
    oh_nvml_device_t device;
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:19:00.0", &device) == 1);
    setenv("SIMNODE_TOPOLOGY", "h200x4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    CHECK(nvmlInit_v2() == 0);
    oh_nvml_device_t one = nvml_device("0000:19:00.0"), two = nvml_device("00000000:3b:00.0");
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:AA:00.0", &device) == 6);
    CHECK(nvmlDeviceGetP2PStatus(one, two, OH_NVML_P2P_NVLINK, &status) == 0 && status == OH_NVML_P2P_OK);
    CHECK(nvmlDeviceGetMigMode(one, &current, &pending) == 0 && current == 0);
    while (nvmlDeviceGetNvLinkState(one, (unsigned)links, &active) == 0) {
        CHECK(active == 1);
        CHECK(nvmlDeviceGetNvLinkRemoteDeviceType(one, (unsigned)links, &type) == 0 && type == OH_NVML_REMOTE_SWITCH);
        links++;
    }
    CHECK(links == 18);
}

static void nvml_direct(void)
{
    int type, to_two = 0;
    struct oh_nvml_pci pci;
    setenv("SIMNODE_TOPOLOGY", "a100x4-direct", 1);
    CHECK(nvmlInit_v2() == 0);
    oh_nvml_device_t one = nvml_device("0000:19:00.0");
    for (unsigned link = 0; link < 12; link++) {
        CHECK(nvmlDeviceGetNvLinkRemoteDeviceType(one, link, &type) == 0 && type == 0);
        CHECK(nvmlDeviceGetNvLinkRemotePciInfo_v2(one, link, &pci) == 0);
        to_two += strcmp(pci.bus_id, "00000000:3B:00.0") == 0;
    }
    CHECK(to_two == 4);
    CHECK(nvmlDeviceGetNvLinkState(one, 12, &type) == 3);
}

/* What NVML says of NVLink between the first two GPUs, and of MIG on the second; -1: it fails. */
static void nvml_pair(int expected_nvlink, int expected_mig)
{
    int status = -1;
    unsigned current = 0, pending;
    CHECK(nvmlInit_v2() == 0);
    oh_nvml_device_t one = nvml_device("0000:19:00.0"), two = nvml_device("0000:3B:00.0");
    if (nvmlDeviceGetP2PStatus(one, two, OH_NVML_P2P_NVLINK, &status) != 0) {
        status = -1;
    }
    CHECK(status == expected_nvlink);
    CHECK(nvmlDeviceGetMigMode(two, &current, &pending) == 0 && (int)current == expected_mig);
}

static void nvml_pcie(void)
{
    setenv("SIMNODE_TOPOLOGY", "pcie-only", 1);
    nvml_pair(5, 0);
}

static void nvml_mig(void)
{
    setenv("SIMNODE_TOPOLOGY", "mig", 1);
    nvml_pair(OH_NVML_P2P_OK, 1);
}

static void nvml_unknown(void)
{
    setenv("SIMNODE_TOPOLOGY", "vm-hidden", 1);
    nvml_pair(OH_NVML_P2P_UNKNOWN, 0);
}

static void nvml_hidden(void)
{
    setenv("SIMNODE_TOPOLOGY", "vm-hidden-noproof", 1);
    nvml_pair(-1, 0);
}

static const char *topology;

static void load_topology(void)
{
    setenv("SIMNODE_TOPOLOGY", topology, 1);
    OK(cuInit(0));
    CHECK(nvmlInit_v2() == 0);
}

static void topologies(void)
{
    static const char *const names[] = {
        "h200x2",        "h200x3",    "h200x4",         "h200x5",         "h200x6", "h200x7",    "h200x8",
        "a100x4-direct", "pcie-only", "partial-nvlink", "dead-link-pair", "mig",    "vm-hidden", "vm-hidden-noproof",
        "nvml-disagrees"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        topology = names[i];
        CHECK(run_child(load_topology));
    }
}

int main(void)
{
    static const struct scenario scenarios[] = {
        {nvml_switch, "NVML: GPUs behind switches"},
        {nvml_direct, "NVML: links from GPU to GPU"},
        {nvml_pcie, "NVML: PCIe only"},
        {nvml_mig, "NVML: MIG"},
        {nvml_unknown, "NVML: NVLink unknown"},
        {nvml_hidden, "NVML: NVLink hidden"},
        {topologies, "every topology can be read"},
    };
    return run_scenarios(scenarios, sizeof scenarios / sizeof *scenarios);
}
