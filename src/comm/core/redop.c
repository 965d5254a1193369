/* SPDX-License-Identifier: MIT */
/*
 * redop.c - the ops that the application has created on a communicator (ncclRedOpCreatePreMulSum)
 *
 * Does: Keeps handle, type and scalar of each.
 * Threads: the one that uses the communicator.
 * Owns: the list.
 */
#include "comm/comm_internal.h"

#include <stdlib.h>

#include "util/log.h"

struct oh_user_op {
    ncclRedOp_t handle;
    ncclDataType_t type;
    struct oh_op op;
    struct oh_user_op *next;
};

ncclResult_t oh_comm_op_add(struct oh_comm *comm, ncclRedOp_t handle, ncclDataType_t type, const void *scalar,
                            bool on_device)
{
    struct oh_op op;
    if (!oh_op_scaled(type, scalar, on_device, &op)) {
        OH_WARN("ncclRedOpCreatePreMulSum: no scalar, or no such type");
        return ncclInvalidArgument;
    }
    struct oh_user_op *user = malloc(sizeof *user);
    if (!user) {
        OH_WARN("out of memory for an op");
        return ncclSystemError;
    }
    oh_comm_op_remove(comm, handle); /* NCCL has reused the handle of an op whose destruction onehop did not see */
    *user = (struct oh_user_op){.handle = handle, .type = type, .op = op, .next = comm->serve.user_ops};
    comm->serve.user_ops = user;
    return ncclSuccess;
}

void oh_comm_op_remove(struct oh_comm *comm, ncclRedOp_t handle)
{
    for (struct oh_user_op **at = &comm->serve.user_ops; *at; at = &(*at)->next) {
        struct oh_user_op *user = *at;
        if (user->handle == handle) {
            *at = user->next;
            free(user);
            return;
        }
    }
}

void oh_comm_ops_forget(struct oh_comm *comm)
{
    while (comm->serve.user_ops) {
        oh_comm_op_remove(comm, comm->serve.user_ops->handle);
    }
}

bool oh_comm_op_is_known(const struct oh_comm *comm, ncclRedOp_t op)
{
    const struct oh_user_op *user = comm->serve.user_ops;
    while (user && user->handle != op) {
        user = user->next;
    }
    return user != NULL;
}

bool oh_comm_op_find(const struct oh_comm *comm, ncclRedOp_t op, ncclDataType_t type, struct oh_op *op_p)
{
    if (oh_op_builtin(op, type, op_p)) {
        return true;
    }
    for (const struct oh_user_op *user = comm->serve.user_ops; user; user = user->next) {
        if (user->handle == op && user->type == type) { /* with another type NCCL returns the error */
            *op_p = user->op;
            return true;
        }
    }
    return false;
}
