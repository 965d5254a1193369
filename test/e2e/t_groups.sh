# SPDX-License-Identifier: MIT
# Groups, streams, and calls that must reach NCCL untouched.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--nranks 4 --counts 1,333,20000 --types f32,bf16 --batch 6 --iterations 2)
expect_served "three calls in a group" -- run_work --group 3
expect_served "nested groups" -- run_work --group 6 --nested
expect_served "three communicators in a group" -- run_work --group 6 --comms 3
expect_served "three communicators in a group, in another order on each rank" -- run_work --group 6 --comms 3 --scramble
expect_served "communicators and streams in a group" -- run_work --group 6 --comms 2 --streams 3
expect_served "one thread, two communicators in a group" -- run_work --group 6 --local 4 --comms 2
expect_served "four threads, each with groups" -- run_work --local 4 --threads --group 3
expect_served "two streams on one communicator" -- run_work --streams 2
expect_served "four streams on one communicator, two ranks a process" -- run_work --streams 4 --local 2

run_work --mix
expect_counts "broadcast, allgather, reducescatter, send and receive between" fallback=0 nccl_broadcast=1+ nccl_send=1+

# Half of these calls are above the limit: groups in which onehop and NCCL each serve a part.
ONEHOP_MAX_BYTES=4K run_app --nranks 4 --counts 1000,2000 --batch 8 --group 4 --iterations 3
expect_counts "a group that is part onehop, part NCCL" served="$(report_of nccl_allreduce)" served=1+
ONEHOP_MAX_BYTES=4K run_app --nranks 4 --counts 1000,2000 --batch 8 --streams 2 --comms 2 --iterations 3
expect_counts "onehop and NCCL in turn on two streams" served="$(report_of nccl_allreduce)" served=1+

# A launch into a full queue blocks: one thread must not fill the queue of one GPU before the others have their part.
flood=(--scenario slices --group 5000 --rounds 1 --counts 20000)
ONEHOP_ALGO=twoshot expect_served "5,000 calls in a group on each of four GPUs of a thread" twoshot \
    -- run_app --nranks 4 --local 4 "${flood[@]}"
launches=$(report_of kernels_launched)
[ "$launches" -gt 0 ] && [ "$launches" -le 628 ] # 4 ranks, 32 calls in a launch
tap_point $? "5,000 calls are $launches launches of two-shot on four GPUs" "$(diagnosis)"
SIMNODE_QUEUE=64 expect_served "the same, many calls to a launch" oneshot -- run_app --nranks 4 --local 4 "${flood[@]}"
launches=$(report_of kernels_launched)
[ "$launches" -gt 0 ] && [ "$launches" -le 628 ] # 4 ranks, 32 calls in a launch
tap_point $? "5,000 calls are $launches launches on four GPUs" "$(diagnosis)"
for type in f32 i32; do
    expect_served "eight calls of 256 KiB in a group, $type" twoshot \
        -- run_app --nranks 4 --counts 65537 --types $type --offsets 1:3 --batch 8 --group 8 --iterations 3
    expect_counts "they are one launch on each rank, $type" kernels_launched=12 served=96
done
expect_served "5,000 calls on three streams, in a group in a group" \
    -- run_app --nranks 2 "${flood[@]}" --streams 3 --nested
expect_served "60 calls, some of which go together" oneshot \
    -- run_app --nranks 3 --scenario slices --group 60 --rounds 4 --counts 100003 --types bf16
for op in "max i8" "avg i32" "premul f32"; do
    expect_served "60 calls, $op" \
        -- run_app --nranks 3 --scenario slices --group 60 --rounds 2 --counts 10007 --types "${op#* }" --op "${op% *}"
done
expect_served "allreduces in one group with other collectives, send and receive" \
    -- run_app --nranks 2 --local 2 --scenario together --rounds 3 --counts 700
ONEHOP_MAX_BYTES=4K expect_right "the same, allreduces fall back" \
    -- run_app --nranks 3 --scenario together --rounds 3 --counts 7001

for local in 1 2; do
    captured=(--nranks 2 --local $local --streams 2 --comms 2 --scenario captured --rounds 2 --counts 1000,2000)
    run_app "${captured[@]}"
    expect_counts "a group of captured streams and others comes to nothing, $local ranks a process" served=1+ fallback=0
    ONEHOP_MAX_BYTES=4K expect_right "the same, part onehop, part NCCL, $local ranks a process" \
        -- run_app "${captured[@]}"
    expect_right "the same, without onehop, $local ranks a process" -- run_stock "${captured[@]}"
done

for mode in processes group; do
    for name in group-simulate group-error arguments; do
        expect_counts "$name, $mode" served=1+ -- run_cases --ranks 2 --modes $mode --cases $name
        ONEHOP_MAX_BYTES=1 expect_counts "$name, $mode, calls for NCCL" served=0 \
            -- run_cases --ranks 2 --modes $mode --cases $name
    done
done
tap_done
