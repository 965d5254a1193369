/* SPDX-License-Identifier: MIT */
/*
 * nccl_reduce.h - NCCL's types and reductions on host memory
 *
 * Narrow floats are reduced in fp32 in the order of the inputs and rounded once. The least and the greatest are those
 * of CUDA's fmin and fmax. No state.
 */
#ifndef TEST_SIMNODE_NCCL_REDUCE_H_
#define TEST_SIMNODE_NCCL_REDUCE_H_

#include <nccl.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one element, 0 for a value that is no type. */
size_t simnccl_type_size(ncclDataType_t type);

/*
 * out[i] = in[0][i] op in[1][i] ... op in[inputs-1][i] for count elements. `scalar`, where not NULL, points to one
 * element by which every input is multiplied first (op is then a user-made op and the reduction a sum). With one input
 * that is multiplication alone.
 */
void simnccl_reduce(ncclDataType_t type, ncclRedOp_t op, const void *scalar, const void *const *in, int inputs,
                    size_t count, void *out);

#ifdef __cplusplus
}
#endif
#endif
