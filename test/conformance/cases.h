/* SPDX-License-Identifier: MIT */
/*
 * cases.h - the cases, in the order in which they run
 *
 * X(name, function cf_case_<...>, when it runs, what it shows).
 */
#ifndef TEST_CONFORMANCE_CASES_H_
#define TEST_CONFORMANCE_CASES_H_

#include "test/conformance/conformance.h"

#define CF_CASES(X)                                                                                                    \
    X("sum", sum, CF_ALWAYS, "all types, all families of inputs")                                                      \
    X("prod", prod, CF_ALWAYS, "")                                                                                     \
    X("min", min, CF_ALWAYS, "NaN only where there is nothing else")                                                   \
    X("max", max, CF_ALWAYS, "")                                                                                       \
    X("avg", avg, CF_ALWAYS, "integers: truncated toward zero")                                                        \
    X("premul-host", premul_host, CF_ALWAYS, "ncclRedOpCreatePreMulSum, a factor of its own on each rank")             \
    X("premul-device", premul_device, CF_ALWAYS, "the factor in device memory")                                        \
    X("moved", moved, CF_ALWAYS, "all-gather and broadcast: all types, every bit as it was sent")                      \
    X("counts", counts, CF_ALWAYS, "none, few, primes, powers of two and their neighbours")                            \
    X("count-zero", count_zero, CF_ALWAYS, "with NULL buffers")                                                        \
    X("table-ends", table_ends, CF_ALWAYS, "where onehop changes its algorithm, one element less and more")            \
    X("largest-served", largest_served, CF_ONEHOP, "and one element over")                                             \
    X("alignment", alignment, CF_ALWAYS, "each buffer at every element of 16 bytes")                                   \
    X("arguments", arguments, CF_ALWAYS, "errors and their codes")                                                     \
    X("foreign-op", foreign_op, CF_ALWAYS, "a user's op on another communicator")                                      \
    X("group", group, CF_ALWAYS, "several calls")                                                                      \
    X("group-nested", group_nested, CF_ALWAYS, "")                                                                     \
    X("group-together", group_together, CF_ALWAYS, "large calls of one type and op")                                   \
    X("group-uneven", group_uneven, CF_ALWAYS, "broadcasts from all ranks, of other lengths: an uneven gather")        \
    X("group-empty", group_empty, CF_ALWAYS, "")                                                                       \
    X("group-5000", group_5000, CF_ALWAYS, "more calls than a launch queue holds")                                     \
    X("group-communicators", group_communicators, CF_ALWAYS, "three communicators in one group")                       \
    X("group-simulate", group_simulate, CF_ALWAYS, "ncclGroupSimulateEnd launches nothing")                            \
    X("group-error", group_error, CF_ALWAYS, "a bad call: nothing is launched")                                        \
    X("group-captured", group_captured, CF_ALWAYS, "of captured streams and others: nothing is launched")              \
    X("comm-makers", comm_makers, CF_ALWAYS, "ncclCommInitRank, Config (blocking or not), Scalable, All")              \
    X("comm-split", comm_split, CF_ALWAYS, "parts, other orders, ranks without a colour, shared resources")            \
    X("comm-pollers", comm_pollers, CF_ALWAYS, "non-blocking splits that several threads wait for")                    \
    X("comm-alone", comm_alone, CF_ALWAYS,                                                                             \
      "communicators of one rank; NCCL before 2.29.7 may not multiply the last elements")                              \
    X("comm-shrink", comm_shrink, CF_ALWAYS, "")                                                                       \
    X("comm-grow", comm_grow, CF_ALWAYS, "NCCL 2.29.2 and later")                                                      \
    X("comm-many", comm_many, CF_ONEHOP, "many at once, ended in different orders by rank")                            \
    X("comm-finalize", comm_finalize, CF_ALWAYS, "calls under way when it is finalized")                               \
    X("stream-null", stream_null, CF_ALWAYS, "the legacy default stream")                                              \
    X("stream-per-thread", stream_per_thread, CF_ALWAYS, "the per-thread default stream")                              \
    X("stream-chain", stream_chain, CF_ALWAYS, "a result on one stream is the input on the next, by events")           \
    X("stream-group", stream_group, CF_ALWAYS, "one group over all streams")                                           \
    X("stream-mixed", stream_mixed, CF_ALWAYS, "allreduces and broadcasts in turn on two streams")                     \
    X("stream-change", stream_change, CF_ALWAYS, "many broadcasts on one stream, then an allreduce on another")        \
    X("stream-late", stream_late, CF_ALWAYS, "a broadcast under way while a non-blocking communicator is set up")      \
    X("graph-mixed", graph_mixed, CF_ALWAYS, "allreduces and broadcasts in turn on two streams of a capture")          \
    X("graph-others", graph_others, CF_ALWAYS, "a graph of broadcasts, and allreduces in turn on another stream")      \
    X("stream-nonblocking", stream_nonblocking, CF_ALWAYS, "the same of a non-blocking communicator")                  \
    X("stream-group-nonblocking", stream_group_nonblocking, CF_ALWAYS, "a group of two, on one stream")                \
    X("graph-modes", graph_modes, CF_ALWAYS, "the three capture modes, calls alone and in a group")                    \
    X("graph-two-streams", graph_two_streams, CF_ALWAYS, "two graphs of a communicator, unordered on two streams")     \
    X("graph-first-use", graph_first_use, CF_APART, "the first call of a communicator is captured")                    \
    X("graph-unused", graph_unused, CF_APART, "captured, never launched")                                              \
    X("graph-child", graph_child, CF_APART, "a captured graph as a node of another")                                   \
    X("graph-update", graph_update, CF_APART, "cuGraphExecUpdate with a second capture")                               \
    X("property", property, CF_ALWAYS, "random calls; each rank has its own alignment, place and stream")              \
    X("property-capture", property_capture, CF_ONEHOP, "and some ranks capture what others call")                      \
    X("bits-rows", bits_rows, CF_ONEHOP, "each row of a batch of any number of rows has the same bits")                \
    X("soak", soak, CF_SOAK, "anything, again and again; nothing grows")

#define CF_DECLARE(name_, run_, when_, what_) void cf_case_##run_(struct cf_worker *worker);
CF_CASES(CF_DECLARE)
#undef CF_DECLARE

/*
 * Calls for cases that are about something else: kinds, types, ops and places; from the eighteenth on with other
 * counts. The first two are allreduces; from the second on each kind is the first once.
 */
struct cf_spec cf_some_spec(int i);
struct cf_batch *cf_some_calls(struct cf_worker *worker, const struct cf_set *set, int items);
struct cf_batch *cf_some_calls_from(struct cf_worker *worker, const struct cf_set *set, int first, int items);

#endif
