/* SPDX-License-Identifier: MIT */
/* ranks.pml - what all models share: N ranks, two or three, and what holds for all of them, or for any */
#ifndef N
#define N 2
#endif
#if N > 2
#define ALL_OF(test) (test(0) && test(1) && test(2))
#define ANY_OF(test) (test(0) || test(1) || test(2))
#else
#define ALL_OF(test) (test(0) && test(1))
#define ANY_OF(test) (test(0) || test(1))
#endif
