# SPDX-License-Identifier: MIT
# Groups, streams, and calls that must reach NCCL untouched.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--nranks 4 --counts 1,333,20000 --types f32,bf16 --batch 6 --iterations 2)
mixed=(--counts 1,333,7000 --types bf16 --collectives $kinds --batch 12)
expect_served "three calls in a group" -- run_work --group 3
expect_served "nested groups" -- run_work --group 12 --nested "${mixed[@]}"
expect_served "three communicators in a group" -- run_work --group 6 --comms 3 --collectives broadcast
expect_served "three communicators in a group, in another order on each rank" \
    -- run_work --group 12 --comms 3 --scramble "${mixed[@]}"
expect_served "communicators and streams in a group" -- run_work --group 12 --comms 2 --streams 3 "${mixed[@]}"
expect_served "one thread, two communicators in a group" -- run_work --group 12 --local 4 --comms 2 "${mixed[@]}"
expect_served "four threads, each with groups" -- run_work --local 4 --threads --group 3 --collectives reducescatter
expect_served "two streams on one communicator" -- run_work --streams 2 "${mixed[@]}"
expect_served "four streams on one communicator, two ranks a process" -- run_work --streams 4 --local 2 --collectives allgather
expect_served "broadcasts from all ranks, many to a launch" \
    -- run_app --nranks 4 --counts 1,17,333,4000 --types bf16,f64 --collectives broadcast --batch 32 --group 32
expect_counts "they are one launch on each rank" kernels_launched=4 broadcast=128

# Half of these calls are above the limit: groups in which onehop and NCCL each serve a part.
ONEHOP_MAX_BYTES=4K run_app --nranks 4 --counts 1000,2000 --batch 8 --group 4 --iterations 3 --collectives allreduce,broadcast
expect_counts "a group that is part onehop, part NCCL" served="$(report_of nccl_calls)" served=1+
ONEHOP_MAX_BYTES=4K run_app --nranks 4 --counts 1000,2000 --batch 8 --streams 2 --comms 2 --iterations 3
expect_counts "onehop and NCCL in turn on two streams" served="$(report_of nccl_allreduce)" served=1+
ONEHOP_COLLECTIVES=reducescatter,broadcast expect_counts "a group of which onehop serves two kinds" \
    reducescatter=16 broadcast=16 served=32 kind=32 nccl_allreduce=16 nccl_allgather=16 \
    -- run_app --nranks 4 --counts 1000 --types f32,bf16 --batch 8 --group 8 --iterations 2 --collectives $kinds

# A launch into a full queue blocks: one thread must not fill the queue of one GPU before the others have their part.
flood=(--counts 4,5 --batch 5000 --group 5000)
expect_few_launches() { # expect_few_launches NAME: 4 ranks, 32 calls in a launch
    launches=$(report_of kernels_launched)
    [ "$launches" -gt 0 ] && [ "$launches" -le 628 ]
    tap_point $? "5,000 calls are $launches launches of $1 on four GPUs" "$(diagnosis)"
}
ONEHOP_ALGO=twoshot expect_served "5,000 calls in a group on each of four GPUs of a thread" twoshot \
    -- run_app --nranks 4 --local 4 "${flood[@]}"
expect_few_launches two-shot
SIMNODE_QUEUE=64 expect_served "the same, many calls to a launch" oneshot -- run_app --nranks 4 --local 4 "${flood[@]}"
expect_few_launches one-shot
for type in f32 i32; do
    expect_served "eight calls of 256 KiB in a group, $type" twoshot \
        -- run_app --nranks 4 --counts 65537 --types $type --offsets 1:3 --batch 8 --group 8 --iterations 3
    expect_counts "they are one launch on each rank, $type" kernels_launched=12 served=96
done
expect_served "5,000 calls on three streams, in a group in a group" \
    -- run_app --nranks 2 "${flood[@]}" --streams 3 --nested
expect_served "60 calls, some of which go together" oneshot \
    -- run_app --nranks 3 --counts 1666,1667 --types bf16 --offsets 0:0,2:2,4:4,6:6,1:1 --batch 60 --group 60 --iterations 4

# By onehop, by NCCL, and in part by each.
for mode in processes group; do
    for name in group-simulate group-error group-captured arguments; do
        expect_counts "$name, $mode" served=1+ -- run_cases --ranks 2 --modes $mode --cases $name
        ONEHOP_MAX_BYTES=1 expect_counts "$name, $mode, calls for NCCL" served=0 \
            -- run_cases --ranks 2 --modes $mode --cases $name
    done
    ONEHOP_MAX_BYTES=4K expect_counts "group-captured, $mode, one of two calls for NCCL" served=1+ fallback=1+ \
        -- run_cases --ranks 2 --modes $mode --cases group-captured
done
tap_done
