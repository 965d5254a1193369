/* SPDX-License-Identifier: MIT */
/*
 * entry_points.cuh - the list of kernels: names, types and numbers of ranks
 */
#ifndef OH_KERNELS_ENTRY_POINTS_CUH_
#define OH_KERNELS_ENTRY_POINTS_CUH_

#include "kernels/wait.cuh"

template <class Args, bool (*algorithm)(const Args &)> OH_DEVICE void oh_run(const Args &args)
{
    if (!algorithm(args)) {
        oh_abort_leave(oh_base(args));
    }
}

/*
 * The kernels of one type: the sum of one call; any op of a call list. Profilers recognise NCCL's kernels, and so
 * onehop's, by their names (PyTorch's Kineto and HTA: ^nccl.*Kernel). src/gpu/kernels.c has the same names.
 */
#define OH_SUM_KERNELS(algorithm_, type_)                                                                              \
    OH_SUM_KERNEL(algorithm_, type_, 2)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 3)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 4)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 5)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 6)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 7)                                                                                \
    OH_SUM_KERNEL(algorithm_, type_, 8)
#define OH_SUM_KERNEL(algorithm_, type_, n_)                                                                           \
    OH_KERNEL(ncclDevKernel_AllReduce_Sum_##type_##_onehop_##algorithm_##_n##n_, n_, oh_kernel_args,                   \
              oh_run<oh_kernel_args, algorithm_<oh_sum_of<oh_##type_, n_>, oh_kernel_args>>)

/* x_(algorithm, type, suffix, least ranks, most ranks) for the kernels that read the op from their arguments */
#define OH_EACH_ANY_RANKS(x_, algorithm_, type_)                                                                       \
    x_(algorithm_, type_, n2, 2, 2) x_(algorithm_, type_, n3, 3, 3) x_(algorithm_, type_, n4, 4, 4)                    \
        x_(algorithm_, type_, n5to8, 5, 8)

#define OH_ANY_KERNELS(algorithm_, type_) OH_EACH_ANY_RANKS(OH_ANY_KERNEL, algorithm_, type_)
#define OH_ANY_KERNEL(algorithm_, type_, suffix_, least_, most_)                                                       \
    OH_KERNEL(ncclDevKernel_AllReduce_Any_##type_##_onehop_##algorithm_##_##suffix_, most_, oh_kernel_list_args,       \
              oh_run<oh_kernel_list_args, algorithm_<oh_any_of<oh_##type_, least_, most_>, oh_kernel_list_args>>)

/* X(algorithm, type) for the types of one kind */
#define OH_EACH_TYPE(x_, algorithm_) OH_EACH_FLOAT_TYPE(x_, algorithm_) OH_EACH_INTEGER_TYPE(x_, algorithm_)
#define OH_EACH_SUM_TYPE(x_, algorithm_) x_(algorithm_, f32) x_(algorithm_, f16) x_(algorithm_, bf16)
#define OH_EACH_FLOAT_TYPE(x_, algorithm_)                                                                             \
    x_(algorithm_, f64) x_(algorithm_, f32) x_(algorithm_, f16) x_(algorithm_, bf16) x_(algorithm_, e4m3)              \
        x_(algorithm_, e5m2)
#define OH_EACH_INTEGER_TYPE(x_, algorithm_) x_(algorithm_, i8) x_(algorithm_, i32) x_(algorithm_, i64)

#endif
