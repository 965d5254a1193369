# SPDX-License-Identifier: MIT
# Groups, streams, and calls that must reach NCCL untouched.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--nranks 4 --counts 1,333,20000 --types f32,bf16 --batch 6 --iterations 2)
run_app "${work[@]}" --group 3
expect_served "three calls in a group"
run_app "${work[@]}" --group 6 --nested
expect_served "nested groups"
run_app "${work[@]}" --group 6 --comms 3
expect_served "three communicators in a group"
run_app "${work[@]}" --group 6 --comms 2 --streams 3
expect_served "communicators and streams in a group"
run_app "${work[@]}" --group 6 --local 4 --comms 2
expect_served "one thread, two communicators in a group"
run_app "${work[@]}" --local 4 --threads --group 3
expect_served "four threads, each with groups"
run_app "${work[@]}" --streams 2
expect_served "two streams on one communicator"
run_app "${work[@]}" --streams 4 --local 2
expect_served "four streams on one communicator, two ranks a process"

run_app "${work[@]}" --mix
[ "$status" = 0 ] && [ "$(sum_of handed_back)" = 0 ] && [ "$(report_of nccl_broadcast)" -gt 0 ] &&
    [ "$(report_of nccl_send)" -gt 0 ]
tap_point $? "broadcast, allgather, reducescatter, send and receive between" "$(diagnosis)"

# Half of these calls are above the limit: groups in which onehop and NCCL each serve a part.
ONEHOP_MAX_BYTES=4K run_app --nranks 4 --counts 1000,2000 --batch 8 --group 4 --iterations 3
[ "$status" = 0 ] && [ "$(sum_of served)" = "$(report_of nccl_allreduce)" ] && [ "$(sum_of served)" -gt 0 ]
tap_point $? "a group that is part onehop, part NCCL" "$(diagnosis)"
ONEHOP_MAX_BYTES=4K run_app --nranks 4 --counts 1000,2000 --batch 8 --streams 2 --comms 2 --iterations 3
[ "$status" = 0 ] && [ "$(sum_of served)" = "$(report_of nccl_allreduce)" ] && [ "$(sum_of served)" -gt 0 ]
tap_point $? "onehop and NCCL in turn on two streams" "$(diagnosis)"

for local in 1 2; do
    for scenario in simulate group-error arguments; do
        run_app --nranks 2 --local $local --scenario $scenario --counts 1000
        [ "$status" = 0 ] && [ "$(sum_of served)" -gt 0 ]
        tap_point $? "$scenario, $local ranks a process" "$(diagnosis)"
        ONEHOP_MAX_BYTES=100 run_app --nranks 2 --local $local --scenario $scenario --counts 1000
        [ "$status" = 0 ] && [ "$(sum_of served)" = 0 ]
        tap_point $? "$scenario, $local ranks a process, calls for NCCL" "$(diagnosis)"
    done
done
tap_done
