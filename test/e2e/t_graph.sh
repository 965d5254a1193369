# SPDX-License-Identifier: MIT
# Graph capture, beside the cases graph-* of t_conformance.sh: replayed many times, by each algorithm, in part by NCCL.
. "$abs_top_srcdir/test/e2e/lib.sh"

expect_served "100 replays between eager calls" -- run_app --nranks 4 --counts 10,5000 --batch 2 --graph 100
for algorithm in oneshot twoshot; do
    ONEHOP_ALGO=$algorithm expect_served "replays of $algorithm" $algorithm \
        -- run_app --nranks 2 --counts 3,40000 --types bf16,i32 --in-place --batch 4 --graph 20
done
expect_served "two streams, two communicators in a graph" \
    -- run_app --nranks 3 --counts 10,5000 --batch 4 --graph 20 --streams 2 --comms 2
ONEHOP_MAX_BYTES=4K expect_counts "a graph that is part onehop, part NCCL" served=1+ nccl_allreduce=1+ \
    -- run_app --nranks 2 --counts 1000,2000 --batch 4 --graph 20
ONEHOP_INIT_EPOCH=4294967250 expect_served "the epoch wraps around between replays" \
    -- run_app --nranks 4 --counts 10,5000,40000 --batch 3 --graph 30
for local in 1 2; do
    SIMNODE_DELAY_US=3000 run_app --nranks 4 --local $local --scenario drop --counts 5000
    expect_served "call, graph and communicator destroyed while they run, $local ranks a process"
done
tap_done
