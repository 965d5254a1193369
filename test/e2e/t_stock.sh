# SPDX-License-Identifier: MIT
# What onehop must leave to NCCL, and jobs in which not every rank has it.
. "$abs_top_srcdir/test/e2e/lib.sh"

# expect_passed_on NAME: the communicator is served, but all calls of the last run went to NCCL.
expect_passed_on() {
    run_first "$@"
    expect_counts "$1: goes to NCCL" '1+:served by onehop' served=0 fallback=1+ fallback="$(report_of nccl_allreduce)"
}

work=(--counts 1,333,20000 --batch 3)
ONEHOP_MAX_BYTES=64K expect_counts "ONEHOP_MAX_BYTES: the limit is served, one element more is not" served=4 fallback=2 \
    nccl_allreduce=2 -- run_app --nranks 2 --counts 16383,16384,16385 --types f32
expect_counts "the table's limit of 2 ranks, and one element more" served=4 nccl_allreduce=2 \
    -- run_app --nranks 2 --counts 8388607,8388608,8388609 --types f32
ONEHOP_MAX_BYTES=0 expect_right "ONEHOP_MAX_BYTES=0" -- run_work --nranks 2
expect_passed_on "a large message" -- run_app --nranks 3 --counts 4194305
expect_counts "count 0 starts nothing" kernels_launched=0 -- run_app --nranks 2 --counts 0,0

expect_stock "one rank without the plugin" "3 of 4 ranks" -- run_work --nranks 4 --rank-env 2:LD_PRELOAD
expect_stock "rank 0 without the plugin" "1 of 2 ranks" -- run_work --nranks 2 --rank-env 0:LD_PRELOAD
expect_stock "one rank with ONEHOP_DISABLE=1" "3 of 4 ranks" -- run_work --nranks 4 --rank-env 1:ONEHOP_DISABLE=1
ONEHOP_DISABLE=1 expect_counts "ONEHOP_DISABLE=1: silent, all stock" '0:^onehop' nccl_allreduce=12 \
    -- run_work --nranks 4

expect_no_files

host0=$shm/0 host1=$shm/1
mkdir "$host0" "$host1"
hosts=(--nranks 4 --rank-env 0:ONEHOP_SHM_DIR="$host0" --rank-env 1:ONEHOP_SHM_DIR="$host0"
    --rank-env 2:ONEHOP_SHM_DIR="$host1" --rank-env 3:ONEHOP_SHM_DIR="$host1")
expect_stock "two hosts" "2 of 4 ranks" -- run_work "${hosts[@]}"
expect_counts "two hosts: communicators within a host are served" '4:nranks 4: falls back' '4:nranks 2: served' served=12 \
    -- run_work "${hosts[@]}" --make split --split-colors 0,0,1,1
rmdir "$host0" "$host1"
tap_point $? "nothing is left on either host"
expect_stock "a rank without shared memory" "rank" -- run_work --nranks 2 --rank-env 1:ONEHOP_SHM_DIR=/nowhere/at/all
tap_done
