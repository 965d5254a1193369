/* SPDX-License-Identifier: MIT */
/*
 * kept_config.c - copies of the configurations of calls that a group keeps
 *
 * Does: Copies what the program passes to ncclAllReduceConfig and the like, which is valid until the call returns.
 * Threads: any.
 * Owns: the copies, a list that the caller has.
 */
#include "comm/call/internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "util/log.h"

#define MAX_BYTES 4096 /* 72 in NCCL 2.32 */

struct oh_kept_config {
    struct oh_kept_config *next;
    _Alignas(max_align_t) char bytes[];
};

/* The beginning of ncclCollConfig_t in NCCL 2.31 and 2.32, which later versions keep (nccl.h). */
struct call_config {
    size_t size;
    unsigned magic, version;
    const void *extensions; /* a list of other vendors', which NCCL ignores */
    int limits[4];
    const char *algorithms;
};

/* Of one without NCCL's mark, for which NCCL rejects the call, nothing but the head is read. */
ncclResult_t oh_kept_config_add(struct oh_kept_config **list, struct oh_call *call)
{
    const struct call_config *given = (const void *)call->config;
    const bool is_known = given && given->magic == OH_NCCL_CONFIG_MAGIC;
    if (!given || (is_known && (given->size < sizeof *given || given->size > MAX_BYTES))) {
        return ncclSuccess; /* none, or one that NCCL rejects, or that has grown */
    }
    const size_t size = is_known ? given->size : offsetof(struct call_config, version);
    const size_t length = is_known && given->algorithms ? strlen(given->algorithms) + 1 : 0;
    struct oh_kept_config *kept = calloc(1, sizeof *kept + sizeof *given + size + length);
    if (!kept) {
        OH_WARN("out of memory for the calls of a group");
        return ncclSystemError;
    }
    kept->next = *list;
    *list = kept;
    struct call_config *copy = memcpy(kept->bytes, given, size);
    copy->extensions = NULL;
    if (length > 0) {
        copy->algorithms = memcpy(kept->bytes + size, given->algorithms, length);
    }
    call->config = (const void *)copy;
    return ncclSuccess;
}

void oh_kept_configs_free(struct oh_kept_config *list)
{
    for (struct oh_kept_config *next; list; list = next) {
        next = list->next;
        free(list);
    }
}
