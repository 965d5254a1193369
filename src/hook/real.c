/* SPDX-License-Identifier: MIT */
#include "hook/real.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "util/log.h"

/* The entry point by which an NCCL is known: exported by every NCCL, and by nothing else. */
#define MARK "pncclAllReduce"

static const struct {
    const char *symbol;
    size_t offset;
    bool required;
} functions[] = {
#define REQUIRED_ROW(name_, args_) {"pnccl" #name_, offsetof(struct oh_real, name_), true},
#define OPTIONAL_ROW(name_, args_) {"pnccl" #name_, offsetof(struct oh_real, name_), false},
    OH_REAL_REQUIRED(REQUIRED_ROW) OH_REAL_OPTIONAL(OPTIONAL_ROW)
#undef REQUIRED_ROW
#undef OPTIONAL_ROW
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct oh_real table; /* complete before `found` is set */
static atomic_bool found;

/* Does the object behind this handle define the mark itself (not one of the objects it needs)? */
static bool defines_mark(void *handle, const char *path)
{
    Dl_info info;
    void *address = dlsym(handle, MARK);
    return address && dladdr(address, &info) && info.dli_fname && strcmp(info.dli_fname, path) == 0;
}

struct search {
    void *handle; /* a reference on the library, kept for the life of the process */
};

static int look_at_object(struct dl_phdr_info *object, size_t size, void *user)
{
    struct search *search = user;
    (void)size;
    if (!object->dlpi_name || !object->dlpi_name[0]) {
        return 0; /* the program itself: RTLD_NEXT has covered it */
    }
    void *handle = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (!handle) {
        return 0;
    }
    if (!defines_mark(handle, object->dlpi_name)) {
        dlclose(handle);
        return 0;
    }
    search->handle = handle;
    return 1;
}

static bool fill_table(void *handle)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(handle, functions[i].symbol);
        if (!address && functions[i].required) {
            OH_WARN("this NCCL has no %s; 2.19 or later is needed", functions[i].symbol);
            return false;
        }
        memcpy((char *)&table + functions[i].offset, &address, sizeof address);
    }
    return true;
}

static bool find(void)
{
    struct search search = {0};
    if (dlsym(RTLD_NEXT, MARK)) {
        return fill_table(RTLD_NEXT);
    }
    dl_iterate_phdr(look_at_object, &search);
    return search.handle && fill_table(search.handle);
}

ncclResult_t oh_real_get(const struct oh_real **real_p)
{
    static atomic_flag said;
    if (!atomic_load_explicit(&found, memory_order_acquire)) {
        pthread_mutex_lock(&mutex);
        bool now = atomic_load_explicit(&found, memory_order_relaxed) || find();
        atomic_store_explicit(&found, now, memory_order_release);
        pthread_mutex_unlock(&mutex);
        if (!now) {
            if (!atomic_flag_test_and_set(&said)) {
                OH_WARN("no NCCL is loaded in this process that calls could go to");
            }
            return ncclSystemError;
        }
    }
    *real_p = &table;
    return ncclSuccess;
}
