/* SPDX-License-Identifier: MIT */
/*
 * net_plugin.c - a network plugin "simnet" with one device, for lists of plugins
 *
 * The simulated NCCL calls init and devices, and nothing else.
 */
#include <nccl.h>

static ncclResult_t net_init(void)
{
    return ncclSuccess;
}

static ncclResult_t net_devices(int *number)
{
    *number = 1;
    return ncclSuccess;
}

extern const struct {
    const char *name;
    ncclResult_t (*init)(void);
    ncclResult_t (*devices)(int *number);
    void *others[24];
} ncclNetPlugin_v6;

const __typeof__(ncclNetPlugin_v6) ncclNetPlugin_v6
    __attribute__((visibility("default"))) = {"simnet", net_init, net_devices, {0}};
