# SPDX-License-Identifier: MIT
# Calls of the driver that fail, bad settings, uneven timing. (Ranks that die: t_peer_failure.sh.)
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--counts 1,5000 --batch 2)

# Set-up fails on one rank: all fall back.
kind=allreduce
for function in cuIpcOpenMemHandle_v2 cuIpcGetMemHandle cuMemHostRegister_v2 cuLibraryLoadData cuLibraryGetKernel \
    cuMemsetD32Async; do
    expect_stock "$function fails on one rank, $kind" "rank 2" \
        -- run_work --nranks 4 --rank-env 2:SIMNODE_FAIL=$function --collectives $kind
    kind=$(sed "s/.*$kind,*//; s/,.*//; s/^$/allreduce/" <<<$kinds)
done
expect_stock "the second cuIpcOpenMemHandle fails on one rank" "rank 1" \
    -- run_work --nranks 4 --rank-env 1:SIMNODE_FAIL=cuIpcOpenMemHandle_v2:2
# Not the calls that the application and NCCL make. (A driver that cannot be opened at all: test/unit/t_driver.c.)
SIMNODE_CALLER=libonehop.so expect_stock "onehop cannot use the driver on one rank" "rank 3: cuInit" \
    -- run_work --nranks 4 --rank-env 3:SIMNODE_FAIL=cuInit
SIMNODE_FAIL=cuIpcOpenMemHandle_v2 expect_stock "CUDA IPC is refused on every rank" "rank" -- run_work --nranks 4
SIMNODE_FAIL=cuCtxEnablePeerAccess expect_stock "peer access is refused within a process" "rank" \
    -- run_work --nranks 4 --local 4

# Bad settings: one line, with the name, the value and what is accepted; then the default. (Others: test/unit/t_env.c.)
# expect_warned SETTING ACCEPTED [PROCESSES]: rank 0 alone reads most of them.
expect_warned() {
    expect_counts "$1: one warning that names the setting and what is accepted" "${3-1}:WARN" "${3-1}:WARN .*$1.*$2"
}
ONEHOP_MAX_BYTES=banana expect_served "ONEHOP_MAX_BYTES=banana" -- run_work --nranks 2
expect_warned ONEHOP_MAX_BYTES=banana "0 to 1G"
for value in ring allreduce,, broadcast,x; do
    ONEHOP_COLLECTIVES=$value expect_served "ONEHOP_COLLECTIVES=$value" -- run_work --nranks 2 --collectives allreduce,allgather
    expect_warned "ONEHOP_COLLECTIVES=$value" "all, or a list of allreduce, allgather, reducescatter, broadcast" 2
done
ONEHOP_COLLECTIVES=all expect_served "ONEHOP_COLLECTIVES=all" -- run_work --nranks 2 --collectives $kinds
# Whether calls attach is a rank's own affair; rank 0 says which kinds are served.
ONEHOP_COLLECTIVES=allreduce run_work --nranks 2 --rank-env 1:ONEHOP_COLLECTIVES=broadcast --iterations 4 \
    --collectives allreduce,broadcast --batch 4
expect_counts "ranks with other lists: the same calls are served, of rank 0's kind" even broadcast=0 nccl_broadcast=16 \
    reducescatter=0
ONEHOP_DEBUG=NONE ONEHOP_STATS=0 ONEHOP_MAX_BYTES=-1 expect_counts "ONEHOP_DEBUG=NONE says nothing" 0:onehop: \
    -- run_work --nranks 2

# A large call is two kernels. When the second cannot be launched, the call fails, and the process can go on and end.
large=(--nranks 2 --counts 4400000 --types f32 --batch 1)
ONEHOP_ALGO=twoshot expect_served "a call of two kernels, in a graph" twoshot -- run_app "${large[@]}" --graph 2
SIMNODE_CALLER=libonehop.so SIMNODE_FAIL=cuLaunchKernelEx:2 ONEHOP_ALGO=twoshot \
    expect_counts "a call whose second kernel cannot be launched fails" status=1 '1+:WARN .*launching a call' \
    '1+:allreduce gave 1, expected 0' -- run_app "${large[@]}"

# Timing: kernels and copies start late, differently on every rank.
for seed in 1 2 3; do
    SIMNODE_DELAY_US=2000 SIMNODE_SEED=$seed expect_served "random delays, seed $seed" \
        -- run_app --nranks 4 --counts 3,5000 --batch 8 --iterations 3 --seed $seed --streams 2 --collectives $kinds
done
SIMNODE_DELAY_US=1000 expect_served "random delays, graphs, two ranks a process" \
    -- run_app --nranks 4 --local 2 --counts 3,5000 --batch 4 --graph 10 --collectives allgather,broadcast

# The epoch wraps around: first epoch close to the end, in every algorithm.
for algorithm in auto oneshot twoshot; do
    ONEHOP_INIT_EPOCH=4294967293 ONEHOP_ALGO=$algorithm expect_served "the epoch wraps around, $algorithm" \
        -- run_app --nranks 3 --counts 3,5000,70000 --types f32,i32 --batch 6 --iterations 3
    ONEHOP_INIT_EPOCH=4294967293 ONEHOP_ALGO=$algorithm expect_served "... of all kinds" \
        -- run_app --nranks 3 --counts 3,5000 --collectives $kinds --batch 8 --iterations 2
done

# A rank whose context has fewer multiprocessors, as a share of MPS: all ranks have its grids.
for sms in 8 1; do
    expect_served "a rank with $sms SMs" -- run_app --nranks 3 --counts 3,5000,60000 --batch 3 \
        --rank-env 1:SIMNODE_SMS=$sms --collectives allreduce,reducescatter
    expect_counts "... all ranks have smaller grids" \
        "3:room for 2048 threads on each of $sms SMs, for [0-9]+ blocks in all: grids are smaller"
done

expect_no_files
tap_done
