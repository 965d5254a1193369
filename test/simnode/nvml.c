/* SPDX-License-Identifier: MIT */
/*
 * nvml.c - the simulated libnvidia-ml.so.1: what the topology says, by way of NVML
 *
 * The topology is chosen by the first nvmlInit_v2 and never changes. NVML sees every GPU, whatever CUDA_VISIBLE_DEVICES
 * says.
 */
#include "topo/nvml.h"

#include <pthread.h>
#include <stdio.h>

#include "test/simnode/fault.h"
#include "test/simnode/topology.h"

#define EXPORT __attribute__((visibility("default")))

/* nvmlReturn_t */
enum {
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_DRIVER_NOT_LOADED = 9
};

/* Why a pair has no P2P: nvmlGpuP2PStatus_t */
#define P2P_NOT_SUPPORTED 5

/* The end of a link: nvmlIntNvLinkDeviceType_t */
#define REMOTE_GPU 0

/* What onehop asks of NVML. All return nvmlReturn_t. */
#define DECLARE(field_, symbol_, args_) EXPORT int symbol_ args_;
OH_NVML_FUNCTIONS(DECLARE)
OH_NVML_OPTIONAL_FUNCTIONS(DECLARE)
#undef DECLARE

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct simnode_topology *topology; /* NULL: not initialised */

static int enter(const char *function, const void *caller)
{
    if (simnode_call(function, caller)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&lock);
    bool initialised = topology != NULL;
    pthread_mutex_unlock(&lock);
    return initialised ? OH_NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* Returns from the function that it stands in with the error of a call. */
#define TRY(call_)                                                                                                     \
    do {                                                                                                               \
        int result_ = (call_);                                                                                         \
        if (result_ != OH_NVML_SUCCESS) {                                                                              \
            return result_;                                                                                            \
        }                                                                                                              \
    } while (0)

/* Heads every function that wants NVML initialised. */
#define ENTER() TRY(enter(__func__, __builtin_return_address(0)))

static char handles[SIMNODE_MAX_GPUS]; /* a device handle points to the one of its GPU */

static oh_nvml_device_t handle_of(int gpu)
{
    return (oh_nvml_device_t)&handles[gpu];
}

/* The index of a handle's GPU. */
static int find_gpu(oh_nvml_device_t device, int *gpu_p)
{
    for (int i = 0; i < topology->gpus; i++) {
        if (device == handle_of(i)) {
            *gpu_p = i;
            return OH_NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

int nvmlInit_v2(void)
{
    if (simnode_call(__func__, __builtin_return_address(0))) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&lock);
    topology = topology ? topology : simnode_topology_get();
    bool initialised = topology != NULL;
    pthread_mutex_unlock(&lock);
    return initialised ? OH_NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

int nvmlSystemGetDriverVersion(char *version_p, unsigned size)
{
    ENTER();
    snprintf(version_p, size, "580.00.00");
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count_p)
{
    ENTER();
    *count_p = (unsigned)topology->gpus;
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, oh_nvml_device_t *device_p)
{
    ENTER();
    if (index >= (unsigned)topology->gpus) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device_p = handle_of((int)index);
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, oh_nvml_device_t *device_p)
{
    ENTER();
    int gpu = simnode_topology_find(topology, bus_id);
    if (gpu < 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    *device_p = handle_of(gpu);
    return OH_NVML_SUCCESS;
}

static void fill_pci(unsigned bus, struct oh_nvml_pci *pci_p)
{
    *pci_p = (struct oh_nvml_pci){.bus = bus};
    simnode_bus_id(bus, 4, pci_p->bus_id_legacy, sizeof pci_p->bus_id_legacy);
    simnode_bus_id(bus, 8, pci_p->bus_id, sizeof pci_p->bus_id);
}

int nvmlDeviceGetPciInfo_v3(oh_nvml_device_t device, struct oh_nvml_pci *pci_p)
{
    ENTER();
    int gpu;
    TRY(find_gpu(device, &gpu));
    fill_pci(simnode_gpu_bus(gpu), pci_p);
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetName(oh_nvml_device_t device, char *name_p, unsigned size)
{
    ENTER();
    int gpu;
    TRY(find_gpu(device, &gpu));
    snprintf(name_p, size, "%s", topology->gpu->name);
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetMigMode(oh_nvml_device_t device, unsigned *current_p, unsigned *pending_p)
{
    ENTER();
    int gpu;
    TRY(find_gpu(device, &gpu));
    *current_p = *pending_p = gpu > 0 && gpu == topology->mig;
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(oh_nvml_device_t device, struct oh_nvml_fabric *fabric_p)
{
    ENTER();
    int gpu;
    TRY(find_gpu(device, &gpu));
    *fabric_p = (struct oh_nvml_fabric){.state = (unsigned char)topology->fabric};
    return OH_NVML_SUCCESS;
}

static int p2p_answer(enum simnode_answer answer, int *status_p)
{
    static const int status[] = {
        [SIMNODE_NO] = P2P_NOT_SUPPORTED, [SIMNODE_YES] = OH_NVML_P2P_OK, [SIMNODE_UNKNOWN] = OH_NVML_P2P_UNKNOWN};
    if (answer == SIMNODE_HIDDEN) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *status_p = status[answer];
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetP2PStatus(oh_nvml_device_t device, oh_nvml_device_t peer, int capability, int *status_p)
{
    ENTER();
    int a, b;
    TRY(find_gpu(device, &a));
    TRY(find_gpu(peer, &b));
    if (a == b) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct simnode_pair *pair = simnode_topology_pair(topology, a, b);
    return p2p_answer(capability == OH_NVML_P2P_NVLINK ? pair->nvlink : pair->memory, status_p);
}

/*
 * Where a link ends: *peer_p is a GPU, or -1 for a switch, through which a GPU's links serve all peers. Without
 * switches come the links to each peer in turn. NVML says that a link is not supported where there is none.
 */
static int find_link(oh_nvml_device_t device, unsigned link, int *peer_p)
{
    int gpu, at = (int)link;
    TRY(find_gpu(device, &gpu));
    *peer_p = -1;
    if (topology->pair->via_switch) {
        return at < topology->pair->nvlinks ? OH_NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    for (int i = 0; i < topology->gpus && *peer_p < 0; i++) {
        const int links = i == gpu ? 0 : simnode_topology_pair(topology, gpu, i)->nvlinks;
        *peer_p = at < links ? i : -1;
        at -= links;
    }
    return *peer_p < 0 ? NVML_ERROR_NOT_SUPPORTED : OH_NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkState(oh_nvml_device_t device, unsigned link, int *active_p)
{
    ENTER();
    int peer;
    TRY(find_link(device, link, &peer));
    *active_p = 1;
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(oh_nvml_device_t device, unsigned link, int *type_p)
{
    ENTER();
    int peer;
    TRY(find_link(device, link, &peer));
    *type_p = peer < 0 ? OH_NVML_REMOTE_SWITCH : REMOTE_GPU;
    return OH_NVML_SUCCESS;
}

/* The simulated machine's switches sit on buses 5 to 8. */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(oh_nvml_device_t device, unsigned link, struct oh_nvml_pci *pci_p)
{
    ENTER();
    int peer;
    TRY(find_link(device, link, &peer));
    fill_pci(peer < 0 ? 5 + link % 4 : simnode_gpu_bus(peer), pci_p);
    return OH_NVML_SUCCESS;
}
