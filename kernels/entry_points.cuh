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
 * Profilers recognise NCCL's kernels, and so onehop's, by their names (PyTorch's Kineto and HTA: ^nccl.*Kernel).
 * src/gpu/kernels.c has the same names. body_: the function of the collective's source.
 */

/* Threads of a block, at most. */
#define OH_AllReduce_THREADS OH_BLOCK_THREADS
#define OH_AllGather_THREADS OH_BLOCK_THREADS
#define OH_ReduceScatter_THREADS OH_BLOCK_THREADS
#define OH_Broadcast_THREADS OH_BROADCAST_BLOCK_THREADS

/* Collectives that reduce, for one type: the sum of one call; any op of a call list. */
#define OH_SUM_KERNELS(collective_, algorithm_, body_, type_)                                                          \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 2)                                                            \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 3)                                                            \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 4)                                                            \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 5)                                                            \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 6)                                                            \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 7)                                                            \
    OH_SUM_KERNEL(collective_, algorithm_, body_, type_, 8)
#define OH_SUM_KERNEL(collective_, algorithm_, body_, type_, n_)                                                       \
    OH_KERNEL(ncclDevKernel_##collective_##_Sum_##type_##_onehop_##algorithm_##_n##n_, OH_##collective_##_THREADS(n_), \
              oh_kernel_args, oh_run<oh_kernel_args, body_<oh_sum_of<oh_##type_, n_>, oh_kernel_args>>)

/* x_(arguments, suffix, least ranks, most ranks) for the kernels that read the number of ranks from their arguments */
#define OH_EACH_RANKS(x_, ...)                                                                                         \
    x_(__VA_ARGS__, n2, 2, 2) x_(__VA_ARGS__, n3, 3, 3) x_(__VA_ARGS__, n4, 4, 4) x_(__VA_ARGS__, n5to8, 5, 8)

#define OH_ANY_KERNELS(collective_, algorithm_, body_, type_)                                                          \
    OH_EACH_RANKS(OH_ANY_KERNEL, collective_, algorithm_, body_, type_)
#define OH_ANY_KERNEL(collective_, algorithm_, body_, type_, suffix_, least_, most_)                                   \
    OH_KERNEL(ncclDevKernel_##collective_##_Any_##type_##_onehop_##algorithm_##_##suffix_,                             \
              OH_##collective_##_THREADS(most_), oh_kernel_list_args,                                                  \
              oh_run<oh_kernel_list_args, body_<oh_any_of<oh_##type_, least_, most_>, oh_kernel_list_args>>)

/* Collectives that move bytes: one call; a call list. */
#define OH_BYTE_KERNELS(collective_, body_)                                                                            \
    OH_EACH_RANKS(OH_BYTE_KERNEL, collective_, body_, _, oh_kernel_args)                                               \
    OH_EACH_RANKS(OH_BYTE_KERNEL, collective_, body_, _List_, oh_kernel_list_args)
#define OH_BYTE_KERNEL(collective_, body_, infix_, args_t_, suffix_, least_, most_)                                    \
    OH_KERNEL(ncclDevKernel_##collective_##infix_##onehop_oneshot_##suffix_, OH_##collective_##_THREADS(most_),        \
              args_t_, oh_run<args_t_, body_<oh_bytes_of<least_, most_>, args_t_>>)

/* x_(arguments, type) for the types of one kind */
#define OH_EACH_TYPE(x_, ...) OH_EACH_FLOAT_TYPE(x_, __VA_ARGS__) OH_EACH_INTEGER_TYPE(x_, __VA_ARGS__)
#define OH_EACH_SUM_TYPE(x_, ...) x_(__VA_ARGS__, f32) x_(__VA_ARGS__, f16) x_(__VA_ARGS__, bf16)
#define OH_EACH_FLOAT_TYPE(x_, ...)                                                                                    \
    x_(__VA_ARGS__, f64) x_(__VA_ARGS__, f32) x_(__VA_ARGS__, f16) x_(__VA_ARGS__, bf16) x_(__VA_ARGS__, e4m3)         \
        x_(__VA_ARGS__, e5m2)
#define OH_EACH_INTEGER_TYPE(x_, ...) x_(__VA_ARGS__, i8) x_(__VA_ARGS__, i32) x_(__VA_ARGS__, i64)

#endif
