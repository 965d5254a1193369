/* SPDX-License-Identifier: MIT */
/*
 * nvml.h - the functions of NVML that tell how GPUs are joined
 *
 * Does: Opens libnvidia-ml.so.1 with the first oh_nvml_get, for the life of the process: NVML counts its users by
 *    process, and the application may be another. Names and values follow the NVML API reference.
 * Threads: any, as NVML itself.
 * Owns: the library.
 */
#ifndef OH_TOPO_NVML_H_
#define OH_TOPO_NVML_H_

enum {
    OH_NVML_SUCCESS = 0,
    OH_NVML_INVALID_ARGUMENT = 2,
    OH_NVML_NOT_SUPPORTED = 3,
    /* nvmlGpuP2PCapsIndex_t */
    OH_NVML_P2P_READ = 0,
    OH_NVML_P2P_WRITE = 1,
    OH_NVML_P2P_NVLINK = 2,
    /* nvmlGpuP2PStatus_t; what lies between says why not */
    OH_NVML_P2P_OK = 0,
    OH_NVML_P2P_UNKNOWN = 6,
    /* nvmlGpuFabricState_t */
    OH_NVML_FABRIC_NOT_SUPPORTED = 0,
    OH_NVML_FABRIC_NOT_STARTED = 1,
    OH_NVML_FABRIC_IN_PROGRESS = 2,
    OH_NVML_FABRIC_COMPLETED = 3,
    /* nvmlIntNvLinkDeviceType_t */
    OH_NVML_REMOTE_SWITCH = 2,
    /* NVML_NVLINK_MAX_LINKS */
    OH_NVML_LINKS = 18
};

typedef struct oh_nvml_device *oh_nvml_device_t;

/* nvmlPciInfo_t as of the _v2 and later functions. */
struct oh_nvml_pci {
    char bus_id_legacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pci_device_id;
    unsigned int pci_subsystem_id;
    char bus_id[32];
};

/* nvmlGpuFabricInfo_t: status counts where the state is COMPLETED. */
struct oh_nvml_fabric {
    unsigned char cluster[16];
    int status;
    unsigned int clique;
    unsigned char state;
};

/* X(field, exported symbol, parameter list); all return nvmlReturn_t, an int. */
#define OH_NVML_FUNCTIONS(X)                                                                                           \
    X(init, nvmlInit_v2, (void))                                                                                       \
    X(device_by_bus_id, nvmlDeviceGetHandleByPciBusId_v2, (const char *, oh_nvml_device_t *))                          \
    X(p2p_status, nvmlDeviceGetP2PStatus, (oh_nvml_device_t, oh_nvml_device_t, int, int *))                            \
    X(mig_mode, nvmlDeviceGetMigMode, (oh_nvml_device_t, unsigned int *, unsigned int *))                              \
    X(link_state, nvmlDeviceGetNvLinkState, (oh_nvml_device_t, unsigned int, int *))                                   \
    X(link_remote_type, nvmlDeviceGetNvLinkRemoteDeviceType, (oh_nvml_device_t, unsigned int, int *))                  \
    X(link_remote_pci, nvmlDeviceGetNvLinkRemotePciInfo_v2, (oh_nvml_device_t, unsigned int, struct oh_nvml_pci *))

/* The same, for people to see: NULL where the library lacks it. The verdict does not need them. */
#define OH_NVML_OPTIONAL_FUNCTIONS(X)                                                                                  \
    X(driver_version, nvmlSystemGetDriverVersion, (char *, unsigned int))                                              \
    X(device_count, nvmlDeviceGetCount_v2, (unsigned int *))                                                           \
    X(device_by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned int, oh_nvml_device_t *))                              \
    X(device_name, nvmlDeviceGetName, (oh_nvml_device_t, char *, unsigned int))                                        \
    X(pci_info, nvmlDeviceGetPciInfo_v3, (oh_nvml_device_t, struct oh_nvml_pci *))                                     \
    X(fabric_info, nvmlDeviceGetGpuFabricInfo, (oh_nvml_device_t, struct oh_nvml_fabric *))

struct oh_nvml {
#define OH_NVML_FIELD(field_, symbol_, args_) int(*field_) args_;
    OH_NVML_FUNCTIONS(OH_NVML_FIELD)
    OH_NVML_OPTIONAL_FUNCTIONS(OH_NVML_FIELD)
#undef OH_NVML_FIELD
};

/* Returns the functions, or NULL if the library is absent, too old or fails to initialise (logged once at INFO). */
const struct oh_nvml *oh_nvml_get(void);

#endif
