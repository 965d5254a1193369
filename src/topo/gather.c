/* SPDX-License-Identifier: MIT */
/*
 * gather.c - facts about GPUs and pairs of GPUs, from NVML and the CUDA driver
 *
 * Does: Asks both, and remembers the answers on pairs, which do not change while the process lives: NVML takes
 *    milliseconds for some. NVML sees every GPU of the machine, CUDA those of CUDA_VISIBLE_DEVICES. Creates no CUDA
 *    context.
 * Threads: any; `mutex` guards the answers, and is not held over a call to NVML or CUDA.
 * Owns: the remembered answers, and NVML (nvml.h).
 */
#include "topo/topo.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "topo/nvml.h"
#include "util/log.h"
#include "util/symbols.h"

#define KNOWN_PAIRS (16 * 15) /* then the oldest is forgotten */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char bus_id[2][OH_TOPO_BUS_ID];
    struct oh_topo_pair facts;
} pairs[KNOWN_PAIRS];
static unsigned pair_count; /* ever remembered */

static pthread_once_t nvml_once = PTHREAD_ONCE_INIT;
static struct oh_nvml nvml_table;
static const struct oh_nvml *opened;

static const struct oh_symbol functions[] = {
#define OH_NVML_ROW(field_, symbol_, args_) {#symbol_, offsetof(struct oh_nvml, field_), true},
#define OH_NVML_OPTIONAL_ROW(field_, symbol_, args_) {#symbol_, offsetof(struct oh_nvml, field_), false},
    OH_NVML_FUNCTIONS(OH_NVML_ROW) OH_NVML_OPTIONAL_FUNCTIONS(OH_NVML_OPTIONAL_ROW)};

static void open_nvml(void)
{
    int result;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        OH_INFO("libnvidia-ml.so.1 cannot be opened");
        return;
    }
    const char *missing = oh_symbols_load(library, functions, sizeof functions / sizeof *functions, &nvml_table);
    if (missing) {
        OH_INFO("libnvidia-ml.so.1 lacks %s", missing);
    } else if ((result = nvml_table.init()) != OH_NVML_SUCCESS) {
        OH_INFO("nvmlInit_v2 failed with %d", result);
    } else {
        opened = &nvml_table;
        return;
    }
    dlclose(library);
}

const struct oh_nvml *oh_nvml_get(void)
{
    pthread_once(&nvml_once, open_nvml);
    return opened;
}

/* A PCI function as numbers: NVML writes the domain with eight digits, CUDA with four, either in any case. */
struct pci_address {
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
};

static bool parse_bus_id(const char *text, struct pci_address *address_p)
{
    return sscanf(text, "%x:%x:%x", &address_p->domain, &address_p->bus, &address_p->device) == 3;
}

bool oh_topo_same_gpu(const char *bus_id_a, const char *bus_id_b)
{
    struct pci_address a, b;
    return parse_bus_id(bus_id_a, &a) && parse_bus_id(bus_id_b, &b) && a.domain == b.domain && a.bus == b.bus &&
           a.device == b.device;
}

/* The NVML handle; NULL when NVML is absent or does not see that GPU. */
static oh_nvml_device_t nvml_device(const struct oh_nvml *nvml, const char *bus_id)
{
    oh_nvml_device_t device;
    return nvml && nvml->device_by_bus_id(bus_id, &device) == OH_NVML_SUCCESS ? device : NULL;
}

static enum oh_fact mig_mode(const struct oh_topo_gpu *gpu)
{
    const struct oh_nvml *nvml = oh_nvml_get();
    oh_nvml_device_t device = nvml_device(nvml, gpu->bus_id);
    unsigned int current, pending;
    if (strstr(gpu->name, " MIG ")) {
        return OH_YES; /* CUDA names an instance "NVIDIA H200 MIG 1g.18gb" */
    }
    if (!device || nvml->mig_mode(device, &current, &pending) != OH_NVML_SUCCESS) {
        return OH_UNKNOWN;
    }
    return current ? OH_YES : OH_NO;
}

int oh_topo_attribute(CUdevice device, CUdevice_attribute which, int unknown)
{
    int value;
    return oh_driver.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : unknown;
}

void oh_topo_gpu_gather(CUdevice device, struct oh_topo_gpu *gpu_p)
{
    *gpu_p = (struct oh_topo_gpu){.cuda_device = device}; /* a CUdevice is the ordinal */
    if (oh_driver.device_get_pci_bus_id(gpu_p->bus_id, OH_TOPO_BUS_ID, device) != CUDA_SUCCESS) {
        gpu_p->bus_id[0] = '\0';
    }
    for (char *c = gpu_p->bus_id; *c; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    if (oh_driver.device_get_name(gpu_p->name, sizeof gpu_p->name, device) != CUDA_SUCCESS) {
        snprintf(gpu_p->name, sizeof gpu_p->name, "unknown GPU");
    }
    gpu_p->mig = mig_mode(gpu_p);
    gpu_p->compute_major = oh_topo_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    gpu_p->compute_minor = oh_topo_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, -1);
}

void oh_topo_driver_version(char *version_p, size_t size)
{
    const struct oh_nvml *nvml = oh_nvml_get();
    char version[80]; /* NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE */
    const bool known = nvml && nvml->driver_version && nvml->driver_version(version, sizeof version) == OH_NVML_SUCCESS;
    snprintf(version_p, size, "%.79s", known ? version : "unknown");
}

static enum oh_fact p2p_status(const struct oh_nvml *nvml, oh_nvml_device_t a, oh_nvml_device_t b, int capability)
{
    int status;
    if (nvml->p2p_status(a, b, capability, &status) != OH_NVML_SUCCESS || status == OH_NVML_P2P_UNKNOWN) {
        return OH_UNKNOWN;
    }
    return status == OH_NVML_P2P_OK ? OH_YES : OH_NO;
}

/* Yes when it holds in both directions, no when one direction denies it. */
static enum oh_fact p2p_attribute(CUdevice a, CUdevice b, CUdevice_P2PAttribute which)
{
    int there, back;
    if (oh_driver.device_get_p2p_attribute(&there, which, a, b) != CUDA_SUCCESS ||
        oh_driver.device_get_p2p_attribute(&back, which, b, a) != CUDA_SUCCESS) {
        return OH_UNKNOWN;
    }
    return there && back ? OH_YES : OH_NO;
}

static void ask_pair(const char *bus_id_a, const char *bus_id_b, struct oh_topo_pair *pair_p)
{
    *pair_p = (struct oh_topo_pair){0};
    if (oh_topo_same_gpu(bus_id_a, bus_id_b)) {
        return; /* neither source may be asked about a GPU and itself */
    }

    const struct oh_nvml *nvml = oh_nvml_get();
    oh_nvml_device_t nvml_a = nvml_device(nvml, bus_id_a);
    oh_nvml_device_t nvml_b = nvml_device(nvml, bus_id_b);
    if (nvml_a && nvml_b) {
        pair_p->nvml_nvlink = p2p_status(nvml, nvml_a, nvml_b, OH_NVML_P2P_NVLINK);
        pair_p->nvml_read = p2p_status(nvml, nvml_a, nvml_b, OH_NVML_P2P_READ);
        pair_p->nvml_write = p2p_status(nvml, nvml_a, nvml_b, OH_NVML_P2P_WRITE);
    }

    CUdevice cuda_a, cuda_b;
    if (oh_driver.device_get_by_pci_bus_id(&cuda_a, bus_id_a) == CUDA_SUCCESS &&
        oh_driver.device_get_by_pci_bus_id(&cuda_b, bus_id_b) == CUDA_SUCCESS) {
        pair_p->cuda_access = p2p_attribute(cuda_a, cuda_b, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
        pair_p->cuda_atomics = p2p_attribute(cuda_a, cuda_b, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
    }
}

void oh_topo_pair_gather(const char *bus_id_a, const char *bus_id_b, struct oh_topo_pair *pair_p)
{
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < KNOWN_PAIRS && !found; i++) {
        found = strcmp(pairs[i].bus_id[0], bus_id_a) == 0 && strcmp(pairs[i].bus_id[1], bus_id_b) == 0;
        *pair_p = pairs[i].facts;
    }
    pthread_mutex_unlock(&mutex);
    if (found) {
        return;
    }
    ask_pair(bus_id_a, bus_id_b, pair_p);
    pthread_mutex_lock(&mutex); /* two threads may remember the same pair: no harm */
    const unsigned at = pair_count++ % KNOWN_PAIRS;
    snprintf(pairs[at].bus_id[0], OH_TOPO_BUS_ID, "%s", bus_id_a);
    snprintf(pairs[at].bus_id[1], OH_TOPO_BUS_ID, "%s", bus_id_b);
    pairs[at].facts = *pair_p;
    pthread_mutex_unlock(&mutex);
}
