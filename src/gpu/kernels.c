/* SPDX-License-Identifier: MIT */
/*
 * kernels.c - loads and launches the kernels
 *
 * Does: Loads device images once per context, finds the kernels of a number of ranks, launches them.
 * Threads: any; `mutex` guards the list of loaded sets.
 * Owns: the loaded libraries, as long as their context lives.
 */
#include "gpu/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "util/log.h"

extern const unsigned char oh_image_oneshot[], oh_image_twoshot[];

static const unsigned char *const images[ONEHOP_ALGORITHM_COUNT] = {
    [ONEHOP_ONESHOT] = oh_image_oneshot,
    [ONEHOP_TWOSHOT] = oh_image_twoshot,
};

/* What the code must have been compiled for to know programmatic launch: griddepcontrol is of compute_90. */
#define PROGRAMMATIC_CODE 90

/* Names of the kernels for any op, by number of ranks. */
static const char *const any_suffix[OH_MAX_RANKS + 1] = {
    [2] = "n2", [3] = "n3", [4] = "n4", [5] = "n5to8", [6] = "n5to8", [7] = "n5to8", [8] = "n5to8",
};

/* A set that has been loaded. */
struct loaded {
    unsigned long long context_id; /* handles of contexts come again, ids do not */
    uint32_t nranks;
    struct oh_kernel_set set;
    struct loaded *next;
};

/*
 * Loading may wait for the GPU, whose kernel may wait for a rank that another thread of the process is about to serve.
 * So the mutex is held for looking and adding only; two threads may load the same thing, and the second lets go of it.
 */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary libraries[ONEHOP_ALGORITHM_COUNT]; /* guarded by mutex; set once, never unloaded */
static struct loaded *loaded;                       /* likewise; entries are never freed */

static CUlibrary library_of(int algorithm)
{
    pthread_mutex_lock(&mutex);
    CUlibrary library = libraries[algorithm];
    pthread_mutex_unlock(&mutex);
    return library;
}

/* The second of two threads unloads what no kernel was taken from, which touches no context. */
static ncclResult_t load_library(const struct oh_driver *driver, int algorithm)
{
    ncclResult_t res = ncclSuccess;
    CUlibrary library;
    if (library_of(algorithm)) {
        return ncclSuccess;
    }
    OH_CU_GOTO(driver, library_load_data(&library, images[algorithm], NULL, NULL, 0, NULL, NULL, 0), res, out);
    pthread_mutex_lock(&mutex);
    bool first = !libraries[algorithm];
    if (first) {
        libraries[algorithm] = library;
    }
    pthread_mutex_unlock(&mutex);
    if (!first) {
        driver->library_unload(library);
    }
out:
    return res;
}

static ncclResult_t load_function(const struct oh_driver *driver, int algorithm, const char *name,
                                  struct oh_kernel_set *set, CUfunction *function_p)
{
    ncclResult_t res = ncclSuccess;
    CUkernel kernel;
    CUfunction function;
    int code;

    OH_CU_GOTO(driver, library_get_kernel(&kernel, library_of(algorithm), name), res, out);
    OH_CU_GOTO(driver, kernel_get_function(&function, kernel), res, out);
    /* Asking for an attribute makes the driver load the code now (CUDA_MODULE_LOADING=LAZY is the default). */
    OH_CU_GOTO(driver, func_get_attribute(&code, CU_FUNC_ATTRIBUTE_PTX_VERSION, function), res, out);
    set->programmatic &= code >= PROGRAMMATIC_CODE;
    *function_p = function;
out:
    return res;
}

/* As in kernels/protocol.cuh: op, then type, algorithm and number of ranks. */
#define KERNEL_NAME(op_) "ncclDevKernel_AllReduce_" op_ "_%s_onehop_%s_"

/* The kernels of one algorithm for one type. */
static ncclResult_t load_type(const struct oh_driver *driver, int algorithm, int type, uint32_t nranks,
                              struct oh_kernel_set *set)
{
    ncclResult_t res = ncclSuccess;
    char name[64];

    if (type < OH_SUM_TYPES) {
        snprintf(name, sizeof name, KERNEL_NAME("Sum") "n%u", oh_kernel_type_name(type), oh_algorithm_name(algorithm),
                 nranks);
        res = load_function(driver, algorithm, name, set, &set->sum[algorithm][type]);
    }
    if (res == ncclSuccess) {
        snprintf(name, sizeof name, KERNEL_NAME("Any") "%s", oh_kernel_type_name(type), oh_algorithm_name(algorithm),
                 any_suffix[nranks]);
        res = load_function(driver, algorithm, name, set, &set->any[algorithm][type]);
    }
    return res;
}

static ncclResult_t load_algorithm(const struct oh_driver *driver, int algorithm, uint32_t nranks,
                                   struct oh_kernel_set *set)
{
    ncclResult_t res = load_library(driver, algorithm);
    for (int t = 0; t < OH_KERNEL_TYPES && res == ncclSuccess; t++) {
        res = load_type(driver, algorithm, t, nranks, set);
    }
    return res;
}

static ncclResult_t load_set(const struct oh_driver *driver, CUdevice device, uint32_t nranks,
                             struct oh_kernel_set *set)
{
    ncclResult_t res = ncclSuccess;
    int major;
    OH_CU_GOTO(driver, device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), res, out);
    set->programmatic = major >= 9;
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT && res == ncclSuccess; a++) {
        res = load_algorithm(driver, a, nranks, set);
    }
out:
    return res;
}

/* The set in the list, NULL: it is not there. The mutex is held. */
static struct loaded *find_set(unsigned long long context_id, uint32_t nranks)
{
    struct loaded *entry = loaded;
    while (entry && (entry->context_id != context_id || entry->nranks != nranks)) {
        entry = entry->next;
    }
    return entry;
}

/* Puts a set into the list, unless another thread has been faster; gives the one that is there. */
static struct loaded *add_set(struct loaded *fresh)
{
    pthread_mutex_lock(&mutex);
    struct loaded *entry = find_set(fresh->context_id, fresh->nranks);
    if (!entry) {
        fresh->next = loaded;
        loaded = entry = fresh;
    }
    pthread_mutex_unlock(&mutex);
    if (entry != fresh) {
        free(fresh);
    }
    return entry;
}

static ncclResult_t make_set(const struct oh_driver *driver, CUdevice device, unsigned long long context_id,
                             uint32_t nranks, struct loaded **entry_p)
{
    uint64_t start = oh_now_ns();
    struct loaded *fresh = calloc(1, sizeof *fresh);
    if (!fresh) {
        OH_INFO("out of memory for the table of kernels");
        return ncclSystemError;
    }
    fresh->context_id = context_id;
    fresh->nranks = nranks;
    ncclResult_t res = load_set(driver, device, nranks, &fresh->set);
    OH_TRACE("kernels for %u ranks loaded in %.1f ms", nranks, (double)(oh_now_ns() - start) / 1e6);
    if (res != ncclSuccess) {
        free(fresh);
        return res;
    }
    *entry_p = add_set(fresh);
    return ncclSuccess;
}

bool oh_kernel_set_is_loaded(const struct oh_driver *driver, uint32_t nranks)
{
    unsigned long long context_id;
    if (driver->ctx_get_id(NULL, &context_id) != CUDA_SUCCESS) {
        return false;
    }
    pthread_mutex_lock(&mutex);
    bool found = find_set(context_id, nranks) != NULL;
    pthread_mutex_unlock(&mutex);
    return found;
}

size_t oh_kernel_args_bytes(const struct oh_kernel_set *set, CUfunction function)
{
    for (int a = 0; a < ONEHOP_ALGORITHM_COUNT; a++) {
        for (int t = 0; t < OH_KERNEL_TYPES; t++) {
            if (set->any[a][t] == function) {
                return sizeof(struct oh_kernel_list_args);
            }
            if (t < OH_SUM_TYPES && set->sum[a][t] == function) {
                return sizeof(struct oh_kernel_args);
            }
        }
    }
    return 0;
}

bool oh_kernel_is_ours(CUfunction function)
{
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (const struct loaded *entry = loaded; entry && !found; entry = entry->next) {
        found = oh_kernel_args_bytes(&entry->set, function) > 0;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

ncclResult_t oh_kernel_set_get(const struct oh_driver *driver, CUdevice device, uint32_t nranks,
                               const struct oh_kernel_set **set_p)
{
    ncclResult_t res = ncclSuccess;
    unsigned long long context_id;
    OH_CU_GOTO(driver, ctx_get_id(NULL, &context_id), res, out);
    pthread_mutex_lock(&mutex);
    struct loaded *entry = find_set(context_id, nranks);
    pthread_mutex_unlock(&mutex);
    if (!entry) {
        res = make_set(driver, device, context_id, nranks, &entry);
    }
    if (res == ncclSuccess) {
        *set_p = &entry->set;
    }
out:
    return res;
}

static CUresult launch_function(const struct oh_launch *launch, CUfunction function, void *args)
{
    CUlaunchAttribute attribute = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    CUlaunchConfig config = oh_launch_config(launch->plan->blocks, launch->plan->threads, launch->stream);
    config.attrs = &attribute;
    config.numAttrs = launch->set->programmatic && !launch->serial ? 1 : 0;
    return launch->driver->launch_kernel_ex(&config, function, &args, NULL);
}

static void put_op(struct oh_kernel_args *args, const struct oh_op *op)
{
    args->op = op->kind;
    args->operand = op->operand;
    args->scalar = op->scalar;
}

CUresult oh_kernel_launch_list(const struct oh_launch *launch, struct oh_kernel_list_args *args)
{
    put_op(&args->base, launch->op);
    return launch_function(launch, launch->set->any[launch->plan->algorithm][oh_type_kernel(launch->type)], args);
}

/* One call, where there are only kernels for lists. */
static CUresult launch_list_of_one(const struct oh_launch *launch, const struct oh_kernel_args *args)
{
    struct oh_kernel_list_args list; /* items that are not in use may hold anything */
    list.base = *args;
    list.calls = 1;
    list.words = (uint32_t)oh_message_words(args->count, oh_type_size(launch->type));
    list.item[0] = (struct oh_list_item){args->sendbuff, args->recvbuff, args->count, 0};
    return oh_kernel_launch_list(launch, &list);
}

CUresult oh_kernel_launch(const struct oh_launch *launch, const struct oh_kernel_args *args)
{
    int type = oh_type_kernel(launch->type);
    if (launch->op->kind == OH_OP_SUM && type < OH_SUM_TYPES) {
        return launch_function(launch, launch->set->sum[launch->plan->algorithm][type], (void *)args);
    }
    return launch_list_of_one(launch, args);
}
