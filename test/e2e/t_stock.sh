# SPDX-License-Identifier: MIT
# What onehop must leave to NCCL, and jobs in which not every rank has it.
. "$abs_top_srcdir/test/e2e/lib.sh"

# expect_passed_on NAME: the communicator is served, but all calls of the last run went to NCCL.
expect_passed_on() {
    run_first "$@"
    [ "$status" = 0 ] && [ "$(count_of 'served by onehop')" -gt 0 ] && [ "$(sum_of served)" = 0 ] &&
        [ "$(sum_of fallback)" -gt 0 ] && [ "$(sum_of fallback)" = "$(report_of nccl_allreduce)" ]
    tap_point $? "$1: goes to NCCL" "$(diagnosis)"
}

work=(--counts 1,333,20000 --batch 3)
ONEHOP_MAX_BYTES=64K run_app --nranks 2 --counts 16383,16384,16385 --types f32
[ "$status" = 0 ] && [ "$(sum_of served)" = 4 ] && [ "$(sum_of fallback)" = 2 ] &&
    [ "$(report_of nccl_allreduce)" = 2 ]
tap_point $? "ONEHOP_MAX_BYTES: the limit is served, one element more is not" "$(diagnosis)"
run_app --nranks 2 --counts 8388607,8388608,8388609 --types f32
[ "$status" = 0 ] && [ "$(sum_of served)" = 4 ] && [ "$(report_of nccl_allreduce)" = 2 ]
tap_point $? "the table's limit of 2 ranks, and one element more" "$(diagnosis)"
ONEHOP_MAX_BYTES=0 expect_right "ONEHOP_MAX_BYTES=0" -- run_app --nranks 2 "${work[@]}"
expect_passed_on "a large message" -- run_app --nranks 3 --counts 1048577
run_app --nranks 2 --counts 0,0
[ "$status" = 0 ] && [ "$(report_of kernels_launched)" = 0 ]
tap_point $? "count 0 starts nothing" "$(diagnosis)"

export ONEHOP_SHM_DIR=$meeting
expect_stock "one rank without the plugin" "3 of 4 ranks" -- run_app --nranks 4 --rank-env 2:LD_PRELOAD "${work[@]}"
expect_stock "rank 0 without the plugin" "1 of 2 ranks" -- run_app --nranks 2 --rank-env 0:LD_PRELOAD "${work[@]}"
expect_stock "one rank with ONEHOP_DISABLE=1" "3 of 4 ranks" \
    -- run_app --nranks 4 --rank-env 1:ONEHOP_DISABLE=1 "${work[@]}"
ONEHOP_DISABLE=1 run_app --nranks 4 "${work[@]}"
[ "$status" = 0 ] && [ "$(count_of '^onehop')" = 0 ] && [ "$(report_of nccl_allreduce)" = 12 ]
tap_point $? "ONEHOP_DISABLE=1: silent, all stock" "$(diagnosis)"

expect_no_files

host0=$meeting/0 host1=$meeting/1
mkdir "$host0" "$host1"
run_app --nranks 4 "${work[@]}" \
    --rank-env 0:ONEHOP_SHM_DIR="$host0" --rank-env 1:ONEHOP_SHM_DIR="$host0" \
    --rank-env 2:ONEHOP_SHM_DIR="$host1" --rank-env 3:ONEHOP_SHM_DIR="$host1"
expect_stock "two hosts" "2 of 4 ranks"
run_app --nranks 4 --make split --split-colors 0,0,1,1 "${work[@]}" \
    --rank-env 0:ONEHOP_SHM_DIR="$host0" --rank-env 1:ONEHOP_SHM_DIR="$host0" \
    --rank-env 2:ONEHOP_SHM_DIR="$host1" --rank-env 3:ONEHOP_SHM_DIR="$host1"
[ "$status" = 0 ] && [ "$(count_of 'nranks 4: falls back')" = 4 ] && [ "$(count_of 'nranks 2: served')" = 4 ] &&
    [ "$(sum_of served)" = 12 ]
tap_point $? "two hosts: communicators within a host are served" "$(diagnosis)"
rmdir "$host0" "$host1"
tap_point $? "nothing is left on either host"
expect_stock "a rank without shared memory" "rank" \
    -- run_app --nranks 2 --rank-env 1:ONEHOP_SHM_DIR=/nowhere/at/all "${work[@]}"
tap_done
