/* SPDX-License-Identifier: MIT */
/*
 * nvml.c - NVML, opened at run time
 *
 * Does: See nvml.h. Threads: any. Owns: the library, for the life of the process.
 */
#include "topo/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "util/log.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct oh_nvml table;
static const struct oh_nvml *opened;

static const struct {
    const char *symbol;
    size_t offset;
    bool needed;
} functions[] = {
#define OH_NVML_ROW(field_, symbol_, args_) {#symbol_, offsetof(struct oh_nvml, field_), true},
#define OH_NVML_OPTIONAL_ROW(field_, symbol_, args_) {#symbol_, offsetof(struct oh_nvml, field_), false},
    OH_NVML_FUNCTIONS(OH_NVML_ROW) OH_NVML_OPTIONAL_FUNCTIONS(OH_NVML_OPTIONAL_ROW)
#undef OH_NVML_ROW
#undef OH_NVML_OPTIONAL_ROW
};

static void open_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        OH_INFO("libnvidia-ml.so.1 cannot be opened");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].symbol);
        if (!address && functions[i].needed) {
            OH_INFO("libnvidia-ml.so.1 lacks %s", functions[i].symbol);
            goto err_close;
        }
        memcpy((char *)&table + functions[i].offset, &address, sizeof address);
    }
    int result = table.init();
    if (result != OH_NVML_SUCCESS) {
        OH_INFO("nvmlInit_v2 failed with %d", result);
        goto err_close;
    }
    opened = &table;
    return;

err_close:
    dlclose(library);
}

const struct oh_nvml *oh_nvml_get(void)
{
    pthread_once(&once, open_nvml);
    return opened;
}
