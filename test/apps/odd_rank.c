/* SPDX-License-Identifier: MIT */
/*
 * odd_rank.c - onehop with one rank that stalls, or is slow, in calls of one size: for t_choice.sh
 *
 * It depends on libonehop.so, so that everything else that is looked up in it is onehop's. In the last rank's calls of
 * ODD_COUNT elements: ODD_STALLS=1: the call never returns. ODD_SLOW_US=N: every second call returns that much later,
 * which are those that are measured when a block is one eager call, and not those before that bring the ranks together;
 * so this rank's time grows, and the others' does not.
 */
#include <dlfcn.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "onehop/onehop.h"

static size_t setting(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : 0;
}

__attribute__((visibility("default"))) ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count,
                                                                  ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                                                  cudaStream_t stream)
{
    static atomic_uint calls; /* of that size */
    __typeof__(ncclAllReduce) *onehop;
    onehop_comm_info_t info;
    void *address = dlsym(RTLD_NEXT, "ncclAllReduce");
    memcpy(&onehop, &address, sizeof onehop);
    bool odd =
        count == setting("ODD_COUNT") && onehopCommInfo(comm, &info, sizeof info) == 0 && info.rank == info.nranks - 1;
    while (odd && setting("ODD_STALLS") > 0) {
        pause();
    }
    ncclResult_t result = onehop(send, recv, count, type, op, comm, stream);
    if (odd && atomic_fetch_add(&calls, 1) % 2 == 1) {
        usleep((useconds_t)setting("ODD_SLOW_US"));
    }
    return result;
}
