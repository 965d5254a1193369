# SPDX-License-Identifier: MIT
# Graph capture, beside the cases graph-* of t_conformance.sh: replayed many times, by each algorithm, in part by NCCL.
. "$abs_top_srcdir/test/e2e/lib.sh"

expect_served "100 replays between eager calls" -- run_app --nranks 4 --counts 10,5000 --batch 2 --graph 100
expect_served "replays of all kinds" \
    -- run_app --nranks 4 --counts 10,5000 --collectives $kinds --in-place --batch 16 --graph 20
for algorithm in oneshot twoshot; do
    ONEHOP_ALGO=$algorithm expect_served "replays of $algorithm" $algorithm \
        -- run_app --nranks 2 --counts 3,40000 --types bf16,i32 --in-place --batch 4 --graph 20
done
expect_served "two streams, two communicators in a graph" \
    -- run_app --nranks 3 --counts 10,5000 --batch 4 --graph 20 --streams 2 --comms 2 --collectives allgather,broadcast
ONEHOP_MAX_BYTES=4K expect_counts "a graph that is part onehop, part NCCL" served=1+ nccl_allreduce=1+ nccl_broadcast=1+ \
    -- run_app --nranks 2 --counts 1000,2000 --batch 4 --graph 20 --collectives allreduce,broadcast
ONEHOP_COLLECTIVES=broadcast expect_counts "a graph of which onehop serves one kind" broadcast=1+ nccl_allgather=1+ \
    allgather=0 nccl_broadcast=0 -- run_app --nranks 2 --counts 1000 --batch 4 --graph 5 --collectives broadcast,allgather
ONEHOP_INIT_EPOCH=4294967250 expect_served "the epoch wraps around between replays" \
    -- run_app --nranks 4 --counts 10,5000,40000 --batch 3 --graph 30 --collectives reducescatter,broadcast
tap_done
