/* SPDX-License-Identifier: MIT */
/*
 * nccl_redop.c - reduction operations of the simulated NCCL that a program makes: sums with a factor
 *
 * Those of a communicator are an array in its core. A call takes a copy (nccl_collectives.c).
 */
#include "nccl_internal.h"

#include <string.h>

#include "nccl_reduce.h"

/* Handles differ from communicator to communicator, as NCCL's do. Its own inverse; leaves the plain ops alone. */
static int disguise(const struct ncclComm *comm, int op)
{
    uint64_t hash = (uint64_t)(uintptr_t)comm * 0xd6e8feb86659fd93u;
    int other = op ^ (int)(hash >> 33);
    return op < (int)ncclNumOps || other < (int)ncclNumOps ? op : other;
}

struct simnccl_user_op *simnccl_user_op_find(struct ncclComm *comm, int handle)
{
    int index = disguise(comm, handle) - (int)ncclNumOps;
    bool known = handle >= (int)ncclNumOps && index >= 0 && index < SIMNCCL_MAX_USER_OPS;
    return known && comm->core->user_op[index].used ? &comm->core->user_op[index] : NULL;
}

SIMNCCL_API(ncclResult_t, RedOpCreatePreMulSum,
            (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t comm))
{
    if (op == NULL || scalar == NULL || comm == NULL || simnccl_type_size(type) == 0) {
        return ncclInvalidArgument;
    }
    for (int i = 0; i < SIMNCCL_MAX_USER_OPS; i++) {
        struct simnccl_user_op *user = &comm->core->user_op[i];
        if (!user->used) {
            user->used = true;
            user->type = type;
            user->on_device = residence == ncclScalarDevice;
            user->device_scalar = scalar;
            if (!user->on_device) {
                memcpy(&user->host_scalar, scalar, simnccl_type_size(type));
            }
            *op = (ncclRedOp_t)disguise(comm, ncclNumOps + i);
            return ncclSuccess;
        }
    }
    return ncclInternalError;
}

SIMNCCL_API(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))
{
    struct simnccl_user_op *user = comm != NULL ? simnccl_user_op_find(comm, (int)op) : NULL;
    if (user == NULL) {
        return ncclInvalidArgument;
    }
    user->used = false;
    return ncclSuccess;
}
