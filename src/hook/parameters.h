/* SPDX-License-Identifier: MIT */
/*
 * parameters.h - from a list of types to a list of parameters, and of arguments
 *
 * (int, char *, void *) gives (int p3, char *p2, void *p1) and (p3, p2, p1): numbered from the last one, since the last
 * parameters of NCCL's calls are alike. Up to eight.
 */
#ifndef OH_HOOK_PARAMETERS_H_
#define OH_HOOK_PARAMETERS_H_

#define OH_PARAMETERS(types_) (OH_JOIN(OH_PARAMETERS_, OH_NUMBER types_) types_)
#define OH_ARGUMENTS(types_) (OH_JOIN(OH_ARGUMENTS_, OH_NUMBER types_))

#define OH_NUMBER(...) OH_NUMBER_(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1)
#define OH_NUMBER_(a1_, a2_, a3_, a4_, a5_, a6_, a7_, a8_, a9_, number_, ...) number_
#define OH_JOIN(a_, b_) OH_JOIN_(a_, b_)
#define OH_JOIN_(a_, b_) a_##b_

#define OH_PARAMETERS_1(a_) a_ p1
#define OH_PARAMETERS_2(a_, ...) a_ p2, OH_PARAMETERS_1(__VA_ARGS__)
#define OH_PARAMETERS_3(a_, ...) a_ p3, OH_PARAMETERS_2(__VA_ARGS__)
#define OH_PARAMETERS_4(a_, ...) a_ p4, OH_PARAMETERS_3(__VA_ARGS__)
#define OH_PARAMETERS_5(a_, ...) a_ p5, OH_PARAMETERS_4(__VA_ARGS__)
#define OH_PARAMETERS_6(a_, ...) a_ p6, OH_PARAMETERS_5(__VA_ARGS__)
#define OH_PARAMETERS_7(a_, ...) a_ p7, OH_PARAMETERS_6(__VA_ARGS__)
#define OH_PARAMETERS_8(a_, ...) a_ p8, OH_PARAMETERS_7(__VA_ARGS__)
#define OH_ARGUMENTS_1 p1
#define OH_ARGUMENTS_2 p2, OH_ARGUMENTS_1
#define OH_ARGUMENTS_3 p3, OH_ARGUMENTS_2
#define OH_ARGUMENTS_4 p4, OH_ARGUMENTS_3
#define OH_ARGUMENTS_5 p5, OH_ARGUMENTS_4
#define OH_ARGUMENTS_6 p6, OH_ARGUMENTS_5
#define OH_ARGUMENTS_7 p7, OH_ARGUMENTS_6
#define OH_ARGUMENTS_8 p8, OH_ARGUMENTS_7

#endif
