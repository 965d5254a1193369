/* SPDX-License-Identifier: MIT */
#include "test/common/api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

struct cf_cuda cu;
struct cf_nccl nccl;

static char missing[200];

static const char *look_up(void *scope, const char *name, bool required, void **address_p)
{
    *address_p = dlsym(scope, name);
    if (*address_p == NULL && required) {
        snprintf(missing, sizeof missing, "no function %s", name);
        return missing;
    }
    return NULL;
}

const char *cf_api_open_cuda(void)
{
    const char *lack = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        snprintf(missing, sizeof missing, "%s", dlerror());
        return missing;
    }
#define CF_GET(field_, symbol_, parameters_)                                                                           \
    lack = lack != NULL ? lack : look_up(library, #symbol_, true, (void **)&cu.field_);
    CF_CUDA_REQUIRED(CF_GET)
#undef CF_GET
#define CF_GET(field_, symbol_, parameters_) look_up(library, #symbol_, false, (void **)&cu.field_);
    CF_CUDA_OPTIONAL(CF_GET)
#undef CF_GET
    return lack;
}

const char *cf_api_open(void)
{
    const char *lack = cf_api_open_cuda();
    if (lack == NULL && dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL) == NULL) {
        snprintf(missing, sizeof missing, "%s", dlerror());
        lack = missing;
    }
#define CF_GET(name_, parameters_)                                                                                     \
    lack = lack != NULL ? lack : look_up(RTLD_DEFAULT, "nccl" #name_, true, (void **)&nccl.name_);
    CF_NCCL_REQUIRED(CF_GET)
#undef CF_GET
    if (lack != NULL) {
        return lack;
    }
#define CF_GET(name_, parameters_) look_up(RTLD_DEFAULT, "nccl" #name_, false, (void **)&nccl.name_);
    CF_NCCL_OPTIONAL(CF_GET)
#undef CF_GET
    look_up(RTLD_DEFAULT, "onehopVersion", false, (void **)&nccl.onehop_version);
    look_up(RTLD_DEFAULT, "onehopCommInfo", false, (void **)&nccl.onehop_comm_info);
    return NULL;
}
