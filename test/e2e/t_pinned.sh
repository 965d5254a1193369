# SPDX-License-Identifier: MIT
# Programs that pin NCCL's order of sums: NCCL keeps every call, on every rank, and the reason names the way to onehop's.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--nranks 3 --counts 1,5000,300000 --batch 2)
# What programs set in their deterministic modes (doc/integrations.md).
vllm=(NCCL_LAUNCH_MODE=GROUP NCCL_COLLNET_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_P2P_NET_DISABLE=1 NCCL_MIN_NCHANNELS=1
    NCCL_MAX_NCHANNELS=1 NCCL_PROTO=Simple NCCL_ALGO=allreduce:tree NCCL_NTHREADS=1 NCCL_SOCKET_NTHREADS=1)
sglang=(NCCL_ALGO=allreduce:tree NCCL_MIN_NCHANNELS=8 NCCL_MAX_NCHANNELS=8)
reason='NCCL_ALGO=[A-Za-z:]* pins NCCL.s order of sums; ONEHOP_INVARIANT=1 pins onehop.s'

# work_with SETTING... [-- ARGUMENT...]: run_work with these variables.
work_with() {
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        local -x "$1"
        shift
    done
    run_work "${@:2}"
}

expect_stock "vLLM's variables" "$reason" -- work_with "${vllm[@]}"
expect_stock "SGLang's variables" "$reason" -- work_with "${sglang[@]}"
expect_stock "SGLang's variables, one thread" "$reason" -- work_with "${sglang[@]}" -- --local 3
for algorithm in Tree Ring CollnetDirect CollnetChain; do
    NCCL_ALGO=$algorithm expect_stock "Megatron-LM with $algorithm" "$reason" -- run_work
done
NCCL_ALGO=^NVLS expect_served "Megatron-LM with ^NVLS" -- run_work
expect_stock "on one rank" "rank 2: $reason" -- run_work --rank-env 2:NCCL_ALGO=Ring
echo NCCL_ALGO=ring >"$scratch/nccl.conf"
NCCL_CONF_FILE=$scratch/nccl.conf expect_stock "in nccl.conf" "$reason" -- run_work
NCCL_CONF_FILE=$scratch/nccl.conf ONEHOP_PINNED=serve expect_served "ONEHOP_PINNED=serve" -- run_work
NCCL_CONF_FILE=$scratch/nccl.conf ONEHOP_PINNED=serve expect_stock "ONEHOP_PINNED=serve, not on one rank" "rank 1: $reason" \
    -- run_work --rank-env 1:ONEHOP_PINNED=forward
NCCL_ALGO=Tree expect "the statistics have the reason" 0 "^onehop: 0 of [0-9]+ collective calls served" "fallbacks: .*$reason" \
    -- run_limited "$onehop" run --stats -- "$app" --timeout $limit "${work[@]}"

# NCCL's protocol and channels leave its order open.
NCCL_PROTO=Simple expect_served "NCCL_PROTO=Simple" -- run_work
NCCL_MIN_NCHANNELS=32 NCCL_MAX_NCHANNELS=32 expect_served "as many channels at least as at most" -- run_work
tap_done
