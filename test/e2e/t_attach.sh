# SPDX-License-Identifier: MIT
# Communicators are set up at their first calls, and served from a call on that all ranks agree on. A rank that switched
# at another call than the others would wait for ever, or give other results.
. "$abs_top_srcdir/test/e2e/lib.sh"

# --- what a communicator costs that has no call

idle() {
    REACH_IDLE=1 SIMNODE_TRACE=$scratch/trace.$1 run_ranks env ${2:+LD_PRELOAD="$2"} "$linked" -- linked
    sort "$scratch/trace.$1" >"$scratch/sorted.$1"
}
idle stock ''
idle ours "$plugin"
expect_counts "four communicators without a call" '4:stats: rank'
tap_empty "$([ -s "$scratch/sorted.stock" ] || echo "no call"; diff "$scratch/sorted.stock" "$scratch/sorted.ours")" "the driver and NVML are called as without onehop"

expect_served "64 communicators, of which four have calls" '8:served by onehop' \
    -- run_app --nranks 2 --comms 64 --batch 4 --iterations 3 --counts 1000 --collectives $kinds \
    --rank-env "0:SIMNODE_TRACE=$scratch/many"
[ "$(grep -c cuIpcGetMemHandle "$scratch/many")" = 4 ]
tap_point $? "they have the memory of four" "$(diagnosis)"

# --- first calls

expect_served "the first call is in a capture" -- run_app --nranks 3 --graph 10 --iterations 0 --counts 1000 --batch 3 \
    --collectives allgather
expect_served "the first call is in a capture, four GPUs of a thread" \
    -- run_app --nranks 4 --local 4 --graph 5 --iterations 0 --counts 1000 --batch 3 --collectives broadcast
expect_served "ncclCommInitAll, one thread" \
    -- run_app --nranks 4 --local 4 --make all --counts 1000,333 --batch 3 --iterations 3 --collectives reducescatter
expect_served "ranks up to 0.4 s apart" \
    -- run_app --nranks 3 --counts 1000 --batch 2 --iterations 2 --jitter 400000 --collectives broadcast,allgather
# One background thread clears the memory of all three: each step is short, but not all of them together.
SIMNODE_COPY_2D_US=900000 expect_served "the set-up takes 2.7 s, no step of it more than one" \
    -- run_app --nranks 3 --local 3 --threads --counts 1000 --batch 2 --collectives allreduce
for kind in ${kinds//,/ }; do
    expect_counts "the first call is of kind $kind" $kind=4+ served=6 fallback=0 \
        -- run_app --nranks 2 --counts 1000 --collectives $kind,allreduce,$kind --batch 3
done

# So late that the first call goes to NCCL, which connects in it. What follows is served, also in a capture right then.
for seed in 1 2; do
    SIMNODE_NCCL_LAZY=1 run_app --nranks 3 --graph 4 --iterations 1 --counts 1000 --batch 1 --jitter 3500000 --seed $seed \
        --collectives "$([ $seed = 1 ] && echo allreduce || echo broadcast)"
    [ "$status" = 0 ] && [ "$(sum_of fallback)" -le 3 ] && [ "$(sum_of served)" -ge 3 ] && [ -z "$(uneven_ranks)" ]
    tap_point $? "ranks up to 3.5 s apart, then a capture ($(sum_of fallback) calls before): served" "$(diagnosis)"
done

# NCCL had other work before: its last call tells where onehop's first one comes in.
expect_counts "other collectives before and between: right, and served" served=1+ even \
    -- run_cases --ranks 4 --cases stream-change,stream-mixed

# --- communicators that nobody waits for

export SIMNODE_NCCL_DELAY_US=20000

# Passed when the last run was right, and on all ranks the same calls were served, and at least LEAST (default 1).
# expect_late NAME [LEAST]
expect_late() {
    local name=$1
    run_first "${@:2}"
    set -- "$1" "${asked[@]}"
    late_switches=$((late_switches + $(count_of 'from call ([2-9]|[1-9][0-9])')))
    expect_counts "$name: the same calls served on all ranks ($(sum_of served), $(sum_of fallback) before)" served="${2:-1}+" \
        even '0:falls back to NCCL' fallback="$(report_of nccl_calls)"
}

late_switches=0
# The pause is long enough for the set-up; jitter puts the switch among the calls.
pause=400
[ -z "${OH_SANITIZERS-}" ] || pause=5000
work=(--counts 1,333,20000 --types f32,bf16 --batch 6 --iterations 25 --pause $pause)
mixed=(--counts 1,5000 --types bf16 --collectives $kinds --batch 8)
seeds=(1 2 3)
for seed in "${seeds[@]}"; do
    [ $seed = 1 ] && some=() || some=("${mixed[@]}")
    run_work --nranks 4 --make nonblocking --jitter 3000 --seed $seed --pause 0 --iterations 40 "${some[@]}"
    expect_late "non-blocking, ranks late at random, seed $seed" 0 # on a slow machine all may be over by then
done
expect_late "two ranks a process, grouped" \
    -- run_work --nranks 4 --local 2 --make nonblocking --jitter 2000 "${mixed[@]}"
expect_late "four threads" \
    -- run_work --nranks 4 --local 4 --threads --make nonblocking --jitter 2000 --collectives reducescatter
expect_late "groups" -- run_work --nranks 3 --make nonblocking --group 4 --nested --jitter 1000 "${mixed[@]}"
expect_late "three communicators on two streams" \
    -- run_work --nranks 4 --make nonblocking --comms 3 --streams 2 --jitter 1000
expect_late "graphs" -- run_work --nranks 3 --make nonblocking --graph 20 --jitter 1000 "${mixed[@]}"
expect_late "one rank waits for NCCL, the others do not" \
    -- run_work --nranks 4 --make nonblocking --rank-env 1:NCCL_COMM_BLOCKING=1 --jitter 1000
[ "$late_switches" -gt 0 ]
tap_point $? "the switch fell after calls had been made ($late_switches times)" "never"

# The first use of a communicator is in a capture: what was captured stays with NCCL, at every replay, on every rank.
expect_late "first use in a capture" \
    -- run_app --nranks 3 --make nonblocking --graph 10 --iterations 0 --counts 1000 --batch 3 --pause $pause \
    --collectives allgather

for local in 1 2; do
    run_app --nranks 4 --local $local --make split --nonblocking --split-colors 0,0,0,0 --split-keys 3,2,1,0 \
        --jitter 2000 "${work[@]}"
    expect_late "non-blocking split, $local ranks a process"
done
expect_late "non-blocking shrink" \
    -- run_work --nranks 4 --make shrink --nonblocking --split-colors 0,-1,0,0 --jitter 2000

# A rank on which it cannot work: all fall back, while calls go on.
expect_stock "a rank cannot open its peers' memory" "rank 2" \
    -- run_work --nranks 4 --make nonblocking --jitter 1000 --rank-env 2:SIMNODE_FAIL=cuIpcOpenMemHandle_v2 "${mixed[@]}"
# The other three know it when NCCL's barrier has passed.
expect_stock "a rank without onehop" "present on this host for 3 of 4" \
    -- run_work --nranks 4 --make nonblocking --rank-env 2:ONEHOP_DISABLE=1 "${mixed[@]}"

# It ends before the set-up does.
expect_right "ended at any time" \
    -- run_app --nranks 2 --make nonblocking --scenario churn --rounds 40 --jitter 1000 --counts 1000 --collectives broadcast
tap_empty "$(uneven_ranks)" "ended at any time: the same calls served on all ranks"
expect_no_files
# A rank that cannot meet the others: its calls come before the set-up has found that out, or after.
bad=0
for seed in 1 2 3 4 5 6 7 8; do
    run_app --nranks 2 --make nonblocking --rank-env 1:ONEHOP_SHM_DIR=/nowhere --counts 1,333 --batch 3 --seed $seed
    [ "$status" = 0 ] && [ "$(sum_of served)" = 0 ] || bad=$((bad + 1))
done
tap_point $bad "a rank without shared memory: right, and all fall back" "$(diagnosis)"
tap_done
