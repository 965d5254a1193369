/* SPDX-License-Identifier: MIT */
/*
 * cases.h - the cases, in the order in which they run
 *
 * X(name, function cf_case_<...>, only with onehop, what it shows). "Only with onehop": NCCL's contract does not
 * promise it; the case is skipped where onehop is not loaded.
 */
#ifndef TEST_CONFORMANCE_CASES_H_
#define TEST_CONFORMANCE_CASES_H_

#include "test/conformance/conformance.h"

#define CF_CASES(X)                                                                                                    \
    X("sum", sum, false, "all types, all families of inputs")                                                          \
    X("prod", prod, false, "")                                                                                         \
    X("min", min, false, "NaN only where there is nothing else")                                                       \
    X("max", max, false, "")                                                                                           \
    X("avg", avg, false, "integers: truncated toward zero")                                                            \
    X("premul-host", premul_host, false, "ncclRedOpCreatePreMulSum, a factor of its own on each rank")                 \
    X("premul-device", premul_device, false, "the factor in device memory")                                            \
    X("counts", counts, false, "none, few, primes, powers of two and their neighbours")                                \
    X("count-zero", count_zero, false, "with NULL buffers")                                                            \
    X("table-ends", table_ends, false, "where onehop changes its algorithm, one element less and more")                \
    X("largest-served", largest_served, true, "and one element over")                                                  \
    X("alignment", alignment, false, "each buffer at every element of 16 bytes")                                       \
    X("arguments", arguments, false, "errors and their codes")                                                         \
    X("foreign-op", foreign_op, false, "a user's op on another communicator")                                          \
    X("group", group, false, "several allreduces")                                                                     \
    X("group-nested", group_nested, false, "")                                                                         \
    X("group-empty", group_empty, false, "")                                                                           \
    X("group-5000", group_5000, false, "more calls than a launch queue holds")                                         \
    X("group-communicators", group_communicators, false, "three communicators in one group")                           \
    X("group-mixed", group_mixed, false, "with broadcast, send and receive")                                           \
    X("group-simulate", group_simulate, false, "ncclGroupSimulateEnd launches nothing")                                \
    X("group-error", group_error, false, "a bad call: nothing is launched")

#define CF_DECLARE(name_, run_, needs_onehop_, what_) void cf_case_##run_(struct cf_worker *worker);
CF_CASES(CF_DECLARE)
#undef CF_DECLARE

#endif
