/* SPDX-License-Identifier: MIT */
/*
 * nvml.c - the simulated libnvidia-ml.so.1: what the topology file says, by way of NVML
 *
 * A device handle is a pointer into the topology, which is loaded by the first nvmlInit_v2 and never changes. NVML
 * sees every GPU, whatever CUDA_VISIBLE_DEVICES says.
 */
#include "topo/nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "test/simnode/fault.h"
#include "test/simnode/topology.h"

#define EXPORT __attribute__((visibility("default")))

/* nvmlReturn_t */
enum {
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9
};

/* Why a pair has no P2P: nvmlGpuP2PStatus_t */
#define P2P_NOT_SUPPORTED 5

/* The end of a link: nvmlIntNvLinkDeviceType_t */
#define REMOTE_GPU 0

/* What a link can do: nvmlNvLinkCapability_t, its last value */
#define CAPABILITY_LAST 5

/* What the library exports: what onehop asks of NVML, and what others want of it. All return nvmlReturn_t. */
#define FUNCTIONS(X)                                                                                                   \
    OH_NVML_FUNCTIONS(X)                                                                                               \
    OH_NVML_OPTIONAL_FUNCTIONS(X)                                                                                      \
    X(shutdown, nvmlShutdown, (void))                                                                                  \
    X(uuid, nvmlDeviceGetUUID, (oh_nvml_device_t, char *, unsigned))                                                   \
    X(link_capability, nvmlDeviceGetNvLinkCapability, (oh_nvml_device_t, unsigned, int, unsigned *))

#define DECLARE(field_, symbol_, args_) EXPORT int symbol_ args_;
FUNCTIONS(DECLARE)
#undef DECLARE
EXPORT const char *nvmlErrorString(int result);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct simnode_topology topology;
static bool loaded;
static int users; /* nvmlInit_v2 less nvmlShutdown */

static int enter(const char *function, const void *caller)
{
    if (simnode_call(function, caller)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&lock);
    bool initialised = users > 0;
    pthread_mutex_unlock(&lock);
    return initialised ? OH_NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* Heads every function that wants NVML initialised. */
#define ENTER()                                                                                                        \
    do {                                                                                                               \
        int entered_ = enter(__func__, __builtin_return_address(0));                                                   \
        if (entered_ != OH_NVML_SUCCESS) {                                                                             \
            return entered_;                                                                                           \
        }                                                                                                              \
    } while (0)

static oh_nvml_device_t handle_of(int gpu)
{
    return (oh_nvml_device_t)&topology.gpu[gpu];
}

/* The index of a handle's GPU; -1: not a handle. */
static int gpu_of(oh_nvml_device_t device)
{
    for (int i = 0; i < topology.gpus; i++) {
        if (device == handle_of(i)) {
            return i;
        }
    }
    return -1;
}

static int copy_text(const char *text, char *text_p, unsigned size)
{
    if (strlen(text) >= size) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    strcpy(text_p, text);
    return OH_NVML_SUCCESS;
}

int nvmlInit_v2(void)
{
    int result = OH_NVML_SUCCESS;
    if (simnode_call(__func__, __builtin_return_address(0))) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&lock);
    loaded = loaded || simnode_topology_load(&topology);
    if (loaded) {
        users++;
    } else {
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int nvmlShutdown(void)
{
    ENTER();
    pthread_mutex_lock(&lock);
    users--;
    pthread_mutex_unlock(&lock);
    return OH_NVML_SUCCESS;
}

const char *nvmlErrorString(int result)
{
    switch (result) {
    case OH_NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    default:
        return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version_p, unsigned size)
{
    ENTER();
    return copy_text("580.00.00", version_p, size);
}

int nvmlDeviceGetCount_v2(unsigned *count_p)
{
    ENTER();
    *count_p = (unsigned)topology.gpus;
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, oh_nvml_device_t *device_p)
{
    ENTER();
    if (index >= (unsigned)topology.gpus) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device_p = handle_of((int)index);
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, oh_nvml_device_t *device_p)
{
    ENTER();
    int gpu = simnode_topology_find(&topology, bus_id);
    if (gpu < 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    *device_p = handle_of(gpu);
    return OH_NVML_SUCCESS;
}

static void fill_pci(const struct simnode_gpu *gpu, struct oh_nvml_pci *pci_p)
{
    *pci_p = (struct oh_nvml_pci){.domain = gpu->domain, .bus = gpu->bus, .device = gpu->device};
    simnode_gpu_bus_id(gpu, 4, pci_p->bus_id_legacy, sizeof pci_p->bus_id_legacy);
    simnode_gpu_bus_id(gpu, 8, pci_p->bus_id, sizeof pci_p->bus_id);
}

int nvmlDeviceGetPciInfo_v3(oh_nvml_device_t device, struct oh_nvml_pci *pci_p)
{
    ENTER();
    int gpu = gpu_of(device);
    if (gpu < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    fill_pci(&topology.gpu[gpu], pci_p);
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetName(oh_nvml_device_t device, char *name_p, unsigned size)
{
    ENTER();
    int gpu = gpu_of(device);
    return gpu < 0 ? NVML_ERROR_INVALID_ARGUMENT : copy_text(topology.gpu[gpu].name, name_p, size);
}

int nvmlDeviceGetUUID(oh_nvml_device_t device, char *uuid_p, unsigned size)
{
    ENTER();
    char text[64] = "GPU";
    unsigned char uuid[SIMNODE_UUID_BYTES];
    int gpu = gpu_of(device);
    if (gpu < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    simnode_gpu_uuid(&topology.gpu[gpu], uuid);
    for (int i = 0, at = 3; i < SIMNODE_UUID_BYTES; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%02x", dash ? "-" : "", uuid[i]);
    }
    return copy_text(text, uuid_p, size);
}

int nvmlDeviceGetMigMode(oh_nvml_device_t device, unsigned *current_p, unsigned *pending_p)
{
    ENTER();
    int gpu = gpu_of(device);
    if (gpu < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    enum simnode_answer mig = topology.gpu[gpu].mig;
    if (mig != SIMNODE_YES && mig != SIMNODE_NO) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *current_p = *pending_p = mig == SIMNODE_YES;
    return OH_NVML_SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(oh_nvml_device_t device, struct oh_nvml_fabric *fabric_p)
{
    ENTER();
    int gpu = gpu_of(device);
    if (gpu < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *fabric_p = (struct oh_nvml_fabric){.state = (unsigned char)topology.gpu[gpu].fabric};
    return OH_NVML_SUCCESS;
}

static int p2p_answer(enum simnode_answer answer, int *status_p)
{
    switch (answer) {
    case SIMNODE_YES:
        *status_p = OH_NVML_P2P_OK;
        return OH_NVML_SUCCESS;
    case SIMNODE_NO:
        *status_p = P2P_NOT_SUPPORTED;
        return OH_NVML_SUCCESS;
    case SIMNODE_UNKNOWN:
        *status_p = OH_NVML_P2P_UNKNOWN;
        return OH_NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

int nvmlDeviceGetP2PStatus(oh_nvml_device_t device, oh_nvml_device_t peer, int capability, int *status_p)
{
    ENTER();
    int a = gpu_of(device), b = gpu_of(peer);
    if (a < 0 || b < 0 || a == b) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct simnode_pair *pair = &topology.pair[a][b];
    switch (capability) {
    case OH_NVML_P2P_READ:
        return p2p_answer(pair->read, status_p);
    case OH_NVML_P2P_WRITE:
        return p2p_answer(pair->write, status_p);
    case OH_NVML_P2P_NVLINK:
        return p2p_answer(pair->nvlink, status_p);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/*
 * Where a link ends: *peer_p is a GPU, or -1 for a switch. A GPU's links to switches come first, shared by all peers
 * behind them; then those to each peer in turn. NVML says that a link is not supported where there is none.
 */
static int find_link(oh_nvml_device_t device, unsigned link, int *peer_p)
{
    int gpu = gpu_of(device);
    int at = (int)link, switched = 0;
    if (gpu < 0 || link >= OH_NVML_LINKS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct simnode_pair *pair = topology.pair[gpu];
    for (int i = 0; i < topology.gpus; i++) {
        if (i != gpu && pair[i].via_switch && pair[i].nvlinks > switched) {
            switched = pair[i].nvlinks;
        }
    }
    *peer_p = -1;
    if (at < switched) {
        return OH_NVML_SUCCESS;
    }
    at -= switched;
    for (int i = 0; i < topology.gpus; i++) {
        if (i != gpu && !pair[i].via_switch) {
            if (at < pair[i].nvlinks) {
                *peer_p = i;
                return OH_NVML_SUCCESS;
            }
            at -= pair[i].nvlinks;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkState(oh_nvml_device_t device, unsigned link, int *active_p)
{
    ENTER();
    int peer;
    int result = find_link(device, link, &peer);
    if (result == OH_NVML_SUCCESS) {
        *active_p = 1;
    }
    return result;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(oh_nvml_device_t device, unsigned link, int *type_p)
{
    ENTER();
    int peer;
    int result = find_link(device, link, &peer);
    if (result == OH_NVML_SUCCESS) {
        *type_p = peer < 0 ? OH_NVML_REMOTE_SWITCH : REMOTE_GPU;
    }
    return result;
}

/* The simulated machine's switches sit on buses 5 to 8. */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(oh_nvml_device_t device, unsigned link, struct oh_nvml_pci *pci_p)
{
    ENTER();
    int peer;
    int result = find_link(device, link, &peer);
    if (result == OH_NVML_SUCCESS) {
        struct simnode_gpu nvswitch = {.bus = 5 + link % 4};
        fill_pci(peer < 0 ? &nvswitch : &topology.gpu[peer], pci_p);
    }
    return result;
}

int nvmlDeviceGetNvLinkCapability(oh_nvml_device_t device, unsigned link, int capability, unsigned *has_p)
{
    ENTER();
    int peer;
    int result = find_link(device, link, &peer);
    if (result == OH_NVML_SUCCESS && (capability < 0 || capability > CAPABILITY_LAST)) {
        result = NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == OH_NVML_SUCCESS) {
        *has_p = 1;
    }
    return result;
}
