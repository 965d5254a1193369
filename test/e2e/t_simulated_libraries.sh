# SPDX-License-Identifier: MIT
# The simulated NCCL by itself, without onehop: what the other tests compare with must be right.
. "$abs_top_srcdir/test/e2e/lib.sh"

export ONEHOP_SHM_DIR=$meeting

types=i8,u8,i32,u32,i64,u64,f16,f32,f64,bf16,e4m3,e5m2
for op in sum prod max min avg; do
    expect_right "all types, $op" -- run_stock --nranks 3 --types $types --op $op --counts 1,1000 --batch 8
done
expect_right "a user-made op" -- run_stock --nranks 2 --op premul --counts 10,1000
expect_right "messages of several pieces" \
    -- run_stock --nranks 4 --counts 300000,70000 --types f32,f16 --in-place both --batch 2
expect_right "other collectives, processes" -- run_stock --nranks 4 --counts 100 --mix --iterations 3
expect_right "other collectives, one thread" -- run_stock --nranks 4 --local 4 --counts 100 --mix
for make in config nonblocking scalable split family; do
    expect_right "communicators by $make" \
        -- run_stock --nranks 4 --make $make --comms 2 --counts 5,500 --split-colors 0,1,0,1 --split-keys 3,2,1,0
done
expect_right "communicators by shrink" -- run_stock --nranks 4 --make shrink --counts 5,500 --split-colors 0,-1,0,0
SIMNODE_NCCL_VERSION=22902 expect_right "communicators by grow" \
    -- run_stock --nranks 4 --make grow --counts 5,500 --split-colors 0,0,-1,-1 --split-keys 0,1,0,0
for make in split shrink; do
    SIMNODE_NCCL_DELAY_US=20000 expect_right "non-blocking, by $make" \
        -- run_stock --nranks 4 --make $make --nonblocking --jitter 1000 --counts 5,500 --split-colors 0,0,0,-1
done
expect_right "two processes of two threads" -- run_stock --nranks 4 --local 2 --threads --counts 5,500
expect_right "ncclCommInitAll" -- run_stock --nranks 4 --local 4 --make all --counts 5,500 --group 2 --batch 4
expect_right "graphs" -- run_stock --nranks 2 --graph 20 --streams 2 --batch 4 --counts 10,3000
for name in group-simulate group-error arguments; do
    run_with '' "$conformance" --ranks 2 --modes processes --cases $name
    expect_right "$name"
done
expect_right "many rounds" -- run_stock --nranks 2 --scenario churn --rounds 20
expect_right "abort after a rank has died" -- run_stock --nranks 3 --scenario kill --victim 1
tap_done
