/* SPDX-License-Identifier: MIT */
#include "hook/real.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
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

/* Paths of the loaded objects, one after the other, each ended by a zero. */
struct paths {
    char *text;
    size_t length, room;
};

/* Called with the loader's lock held: nothing here may open an object. */
static int note_path(struct dl_phdr_info *object, size_t size, void *user)
{
    struct paths *paths = user;
    size_t length = object->dlpi_name ? strlen(object->dlpi_name) + 1 : 0;
    (void)size;
    if (length <= 1) {
        return 0; /* the program itself: RTLD_NEXT has covered it */
    }
    if (paths->length + length > paths->room) {
        size_t room = 2 * paths->room + length + 4096;
        char *text = realloc(paths->text, room);
        if (!text) {
            return 1;
        }
        paths->text = text;
        paths->room = room;
    }
    memcpy(paths->text + paths->length, object->dlpi_name, length);
    paths->length += length;
    return 0;
}

/* The first loaded object that is an NCCL, with a reference that is kept for the life of the process; NULL: none. */
static void *find_among_loaded(void)
{
    struct paths paths = {0};
    void *found_handle = NULL;
    dl_iterate_phdr(note_path, &paths);
    for (size_t at = 0; at < paths.length; at += strlen(paths.text + at) + 1) {
        const char *path = paths.text + at;
        void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
        if (!handle) {
            continue;
        }
        if (!defines_mark(handle, path)) {
            dlclose(handle);
        } else if (!found_handle) {
            found_handle = handle;
            OH_INFO("NCCL found: %s", path);
        } else {
            OH_WARN("a second NCCL is loaded, %s; calls of both go to the first (ONEHOP_DISABLE=1 keeps them apart)",
                    path);
            dlclose(handle);
        }
    }
    free(paths.text);
    return found_handle;
}

static bool fill_table(void *handle)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(handle, functions[i].symbol);
        if (!address && functions[i].required) {
            OH_INFO("this NCCL has no %s", functions[i].symbol);
            return false;
        }
        memcpy((char *)&table + functions[i].offset, &address, sizeof address);
    }
    return true;
}

static bool find(void)
{
    void *handle = dlsym(RTLD_NEXT, MARK) ? RTLD_NEXT : find_among_loaded();
    return handle && fill_table(handle);
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
                OH_WARN("no NCCL of version 2.19 or later is loaded in this process that calls could go to");
            }
            return ncclSystemError;
        }
    }
    *real_p = &table;
    return ncclSuccess;
}
