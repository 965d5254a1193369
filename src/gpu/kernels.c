/* SPDX-License-Identifier: MIT */
/*
 * kernels.c - loads and launches the kernels
 *
 * Does: Loads device images once per process, finds the kernels of a number of ranks, launches them.
 * Threads: the background thread of attach loads, without a lock: loading may wait for the GPU, where a kernel may wait
 *    for a rank that another thread serves. Any thread launches.
 * Owns: the loaded libraries and the list of sets, for the life of the process.
 */
#include "gpu/kernels.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "util/log.h"

extern const unsigned char oh_image_oneshot[], oh_image_twoshot[], oh_image_allgather[], oh_image_reducescatter[],
    oh_image_broadcast[], oh_image_verify[];

/* Allreduce has one for each algorithm, the others one each, in the order of enum onehop_collective. */
static const struct {
    const unsigned char *code;
    enum onehop_collective collective;
    const char *name; /* of the collective, as in the names of its functions */
    enum onehop_algorithm algorithm;
} images[OH_KERNEL_IMAGES] = {
    {oh_image_oneshot, ONEHOP_ALLREDUCE, "AllReduce", ONEHOP_ONESHOT},
    {oh_image_twoshot, ONEHOP_ALLREDUCE, "AllReduce", ONEHOP_TWOSHOT},
    {oh_image_allgather, ONEHOP_ALLGATHER, "AllGather", ONEHOP_ONESHOT},
    {oh_image_reducescatter, ONEHOP_REDUCESCATTER, "ReduceScatter", ONEHOP_ONESHOT},
    {oh_image_broadcast, ONEHOP_BROADCAST, "Broadcast", ONEHOP_ONESHOT},
};

static int image_of(const struct oh_plan *plan)
{
    return plan->collective == ONEHOP_ALLREDUCE ? (int)plan->algorithm
                                                : ONEHOP_ALGORITHM_COUNT - 1 + (int)plan->collective;
}

/* Grids of the kernels that compare: they run between calls, and are not to delay what the program has beside them. */
#define VERIFY_BLOCKS 32u

bool oh_architectures_include(const char *architectures, int major, int minor)
{
    const int capability = 10 * major + minor;
    for (const char *word = architectures; *word; word += strcspn(word, " ")) {
        word += strspn(word, " \n");
        const bool real = strncmp(word, "sm_", 3) == 0, virtual = strncmp(word, "compute_", 8) == 0;
        char *end = NULL;
        const long target = real || virtual ? strtol(word + (real ? 3 : 8), &end, 10) : 0;
        const bool own = end && *end && !strchr(" \n", *end);
        if (strncmp(word, "any", 3) == 0 || target == capability ||
            (!own && target > 0 && target < capability && (virtual || target / 10 == major))) {
            return true;
        }
    }
    return false;
}

/* The kernels that a context has for a number of ranks. */
struct loaded {
    unsigned long long context_id; /* unlike handles of contexts, ids are not reused */
    uint32_t nranks;
    struct oh_kernel_set set;
    const struct loaded *next;
};

static CUlibrary libraries[OH_KERNEL_IMAGES], verify_library;
static _Atomic(const struct loaded *) newest; /* a list; any thread reads it */

/* acquire: pairs with the release store in oh_kernel_set_get(). */
static const struct loaded *get_list(void)
{
    return atomic_load_explicit(&newest, memory_order_acquire);
}

static const char *const types[OH_KERNEL_TYPES] = {
    [OH_TYPE_F32] = "f32", [OH_TYPE_F16] = "f16",   [OH_TYPE_BF16] = "bf16",
    [OH_TYPE_F64] = "f64", [OH_TYPE_E4M3] = "e4m3", [OH_TYPE_E5M2] = "e5m2",
    [OH_TYPE_I8] = "i8",   [OH_TYPE_I32] = "i32",   [OH_TYPE_I64] = "i64",
};

/* As in kernels/entry_points.cuh. */
static void name_function(int image, int f, uint32_t nranks, char *name_p, size_t size)
{
    const bool list = f < OH_KERNEL_TYPES, reduces = oh_collective_reduces(images[image].collective);
    char ranks[16] = "n5to8", what[32];
    if (nranks < 5 || (!list && reduces)) {
        snprintf(ranks, sizeof ranks, "n%u", nranks);
    }
    if (reduces) {
        snprintf(what, sizeof what, "%s_%s_", list ? "Any" : "Sum", types[list ? f : f - OH_KERNEL_TYPES]);
    } else {
        snprintf(what, sizeof what, "%s", list ? "List_" : "");
    }
    snprintf(name_p, size, "ncclDevKernel_%s_%sonehop_%s_%s", images[image].name, what,
             oh_algorithm_name(images[image].algorithm), ranks);
}

/* Loads the library, unless it is there. */
static CUresult get_library(const unsigned char *code, CUlibrary *library_p)
{
    return *library_p ? CUDA_SUCCESS : OH_CU(library_load_data(library_p, code, NULL, NULL, 0, NULL, NULL, 0));
}

/* Asking for an attribute makes the driver load the code now (CUDA_MODULE_LOADING=LAZY is the default). */
static CUresult get_function(CUlibrary library, const char *name, CUfunction *function_p, int *code_p)
{
    CUkernel kernel;
    OH_CU_TRY(library_get_kernel(&kernel, library, name));
    OH_CU_TRY(kernel_get_function(function_p, kernel));
    return OH_CU(func_get_attribute(code_p, CU_FUNC_ATTRIBUTE_PTX_VERSION, *function_p));
}

static CUresult load_function(int image, int f, uint32_t nranks, struct oh_kernel_set *set)
{
    char name[80];
    int code;
    if (!oh_collective_reduces(images[image].collective) && f != 0 && f != OH_KERNEL_TYPES) {
        return CUDA_SUCCESS;
    }
    name_function(image, f, nranks, name, sizeof name);
    OH_TRY(get_function(libraries[image], name, &set->function[image][f], &code));
    set->programmatic &= code >= OH_PROGRAMMATIC_CODE;
    return CUDA_SUCCESS;
}

static CUresult load_set(CUdevice device, uint32_t nranks, struct oh_kernel_set *set)
{
    int major;
    OH_CU_TRY(device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    set->programmatic = major >= 9;
    for (int i = 0; i < OH_KERNEL_IMAGES; i++) {
        OH_TRY(get_library(images[i].code, &libraries[i]));
        for (int f = 0; f < OH_KERNEL_FUNCTIONS; f++) {
            OH_TRY(load_function(i, f, nranks, set));
        }
    }
    return CUDA_SUCCESS;
}

CUresult oh_kernel_set_get(CUdevice device, uint32_t nranks, const struct oh_kernel_set **set_p)
{
    const uint64_t start = oh_now_ns();
    unsigned long long context_id;
    OH_CU_TRY(ctx_get_id(NULL, &context_id));
    for (const struct loaded *entry = get_list(); entry; entry = entry->next) {
        if (entry->context_id == context_id && entry->nranks == nranks) {
            *set_p = &entry->set;
            return CUDA_SUCCESS;
        }
    }
    struct loaded *entry = calloc(1, sizeof *entry);
    if (!entry) {
        OH_INFO("out of memory for the table of kernels");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    entry->context_id = context_id;
    entry->nranks = nranks;
    entry->next = get_list();
    CUresult result = load_set(device, nranks, &entry->set);
    OH_TRACE("kernels for %u ranks loaded in %.1f ms", nranks, (double)(oh_now_ns() - start) / 1e6);
    if (result != CUDA_SUCCESS) {
        free(entry);
        return result;
    }
    /* release: publishes the entry. Pairs with the acquire load in get_list(). */
    atomic_store_explicit(&newest, entry, memory_order_release);
    *set_p = &entry->set;
    return CUDA_SUCCESS;
}

bool oh_kernel_find(const struct oh_kernel_set *set, CUfunction function, struct oh_kernel_kind *kind_p)
{
    for (int i = 0; i < OH_KERNEL_IMAGES; i++) {
        for (int f = 0; f < OH_KERNEL_FUNCTIONS; f++) {
            if (set->function[i][f] == function) {
                kind_p->collective = images[i].collective;
                kind_p->args_bytes =
                    f < OH_KERNEL_TYPES ? sizeof(struct oh_kernel_list_args) : sizeof(struct oh_kernel_args);
                return true;
            }
        }
    }
    return false;
}

bool oh_kernel_is_ours(CUfunction function)
{
    struct oh_kernel_kind kind;
    const struct loaded *entry = get_list();
    while (entry && !oh_kernel_find(&entry->set, function, &kind)) {
        entry = entry->next;
    }
    return entry != NULL;
}

static CUresult launch_function(const struct oh_launch *launch, CUfunction function, const void *args)
{
    return oh_driver_launch(function, launch->plan->blocks, launch->plan->threads, launch->stream,
                            launch->set->programmatic && !launch->serial, args);
}

CUresult oh_kernel_launch_list(const struct oh_launch *launch, struct oh_kernel_list_args *args)
{
    args->base.op = launch->op->kind;
    args->base.operand = launch->op->operand;
    args->base.scalar = launch->op->scalar;
    const int type = oh_collective_reduces(launch->plan->collective) ? oh_type_kernel(launch->type) : 0;
    return launch_function(launch, launch->set->function[image_of(launch->plan)][type], args);
}

CUresult oh_kernel_launch(const struct oh_launch *launch, const struct oh_kernel_args *args)
{
    const bool reduces = oh_collective_reduces(launch->plan->collective);
    const int type = reduces ? oh_type_kernel(launch->type) : 0;
    if (!reduces || (launch->op->kind == OH_OP_SUM && type < OH_SUM_TYPES)) {
        return launch_function(launch, launch->set->function[image_of(launch->plan)][OH_KERNEL_TYPES + type], args);
    }
    struct oh_kernel_list_args list; /* items that are not in use may hold anything */
    list.base = *args;
    list.calls = 1;
    list.words = (uint32_t)oh_message_words(args->count, oh_type_size(launch->type));
    list.item[0] = (struct oh_list_item){args->sendbuff, args->recvbuff, args->count, args->stride, args->root, 0};
    return oh_kernel_launch_list(launch, &list);
}

CUresult oh_kernels_get_verify(struct oh_verify_kernels *kernels_p)
{
    int code;
    OH_TRY(get_library(oh_image_verify, &verify_library));
    OH_TRY(get_function(verify_library, "onehop_verify_magnitudes", &kernels_p->magnitudes, &code));
    return get_function(verify_library, "onehop_verify_compare", &kernels_p->compare, &code);
}

CUresult oh_kernel_launch_verify(CUfunction function, const struct oh_verify_args *args, uint64_t elements,
                                 CUstream stream)
{
    const uint64_t blocks = (elements + OH_VERIFY_THREADS - 1) / OH_VERIFY_THREADS;
    return oh_driver_launch(function, blocks < VERIFY_BLOCKS ? (unsigned)blocks : VERIFY_BLOCKS, OH_VERIFY_THREADS,
                            stream, false, args);
}

/* As cuda.h of CUDA 12.4 has CUdevResource and CU_DEV_RESOURCE_TYPE_SM: cuda.h of 12.0 lacks both. */
#define DEV_RESOURCE_TYPE_SM 1
struct dev_resource {
    int type;
    unsigned char padding[92];
    unsigned sm_count; /* the first field of the union */
    unsigned char oversize[256];
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* What a driver cannot tell limits nothing. */
static uint32_t limited_sms(const struct oh_context *context, uint32_t sms)
{
    CUexecAffinityParam affinity;
    struct dev_resource resource;
    memset(&resource, 0, sizeof resource);
    if (oh_driver.ctx_get_exec_affinity &&
        oh_driver.ctx_get_exec_affinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT) == CUDA_SUCCESS &&
        affinity.param.smCount.val > 0) {
        sms = least(sms, affinity.param.smCount.val);
    }
    if (oh_driver.ctx_get_dev_resource &&
        oh_driver.ctx_get_dev_resource(context->handle, &resource, DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
        resource.sm_count > 0) {
        sms = least(sms, resource.sm_count);
    }
    return sms;
}

/* Threads of the function that fit on a multiprocessor, in blocks of each size of the rows; at most *threads_p. */
static CUresult limit_threads(CUfunction function, const struct oh_plan_rows *rows, uint32_t *threads_p)
{
    uint32_t asked = 0;
    for (uint32_t i = 0; i < rows->count && function; i++) {
        const struct oh_plan_row *row = &rows->row[i];
        int blocks;
        if (row->algorithm != OH_PLAN_NCCL && row->threads != asked) {
            asked = row->threads;
            OH_CU_TRY(occupancy(&blocks, function, (int)asked, 0));
            *threads_p = least(*threads_p, (uint32_t)blocks * asked);
        }
    }
    return CUDA_SUCCESS;
}

CUresult oh_room_query(CUdevice device, const struct oh_context *context, const struct oh_kernel_set *set,
                       const struct oh_plan_table *table, struct oh_plan_room *room_p)
{
    struct oh_plan_room room = {.max_blocks = UINT32_MAX};
    int sms;
    OH_CU_TRY(device_get_attribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    room.sms = limited_sms(context, (uint32_t)sms);
    memset(room.sm_threads, 0xff, sizeof room.sm_threads);
    for (int i = 0; i < OH_KERNEL_IMAGES; i++) {
        const enum onehop_collective collective = images[i].collective;
        for (int f = 0; f < OH_KERNEL_FUNCTIONS; f++) {
            OH_TRY(limit_threads(set->function[i][f], &table->rows[collective], &room.sm_threads[collective]));
        }
    }
    *room_p = room;
    return CUDA_SUCCESS;
}
