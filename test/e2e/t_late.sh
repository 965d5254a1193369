# SPDX-License-Identifier: MIT
# Communicators that nobody waits for: set up in the background, served from a call on that all ranks agree on. A rank
# that switched at another call than the others would wait for ever, or give other results.
. "$abs_top_srcdir/test/e2e/lib.sh"

export SIMNODE_NCCL_DELAY_US=20000

# Passed when the last run was right, and on all ranks the same calls were served, and at least LEAST (default 1).
# expect_late NAME [LEAST]
expect_late() {
    local name=$1 good=1
    if [ "$status" = 0 ] && [ "$(sum_of served)" -ge "${2:-1}" ] && [ -z "$(uneven_ranks)" ] &&
        [ "$(count_of 'handed back to NCCL')" = 0 ] && [ "$(sum_of handed_back)" = "$(report_of nccl_allreduce)" ]; then
        good=0
    fi
    late_switches=$((late_switches + $(count_of 'from call ([2-9]|[1-9][0-9])')))
    tap_point $good "$name: the same calls served on all ranks ($(sum_of served), $(sum_of handed_back) before)" \
        "$(diagnosis)"
}

late_switches=0
# The pause is long enough for the set-up; jitter puts the switch among the calls.
pause=400
[ -z "${OH_SANITIZERS-}" ] || pause=5000
work=(--counts 1,333,20000 --types f32,bf16 --batch 6 --iterations 25 --pause $pause)
seeds=(1 2 3)
for seed in "${seeds[@]}"; do
    run_app --nranks 4 --make nonblocking --jitter 3000 --seed $seed "${work[@]}" --pause 0 --iterations 40
    expect_late "non-blocking, ranks late at random, seed $seed" 0 # on a slow machine all may be over by then
done
run_app --nranks 4 --local 2 --make nonblocking --jitter 2000 "${work[@]}"
expect_late "two ranks a process, grouped"
run_app --nranks 4 --local 4 --threads --make nonblocking --jitter 2000 "${work[@]}"
expect_late "four threads"
run_app --nranks 3 --make nonblocking --group 4 --nested --jitter 1000 "${work[@]}"
expect_late "groups"
run_app --nranks 4 --make nonblocking --comms 3 --streams 2 --jitter 1000 "${work[@]}"
expect_late "three communicators on two streams"
run_app --nranks 3 --make nonblocking --graph 20 --jitter 1000 "${work[@]}"
expect_late "graphs"
run_app --nranks 4 --make nonblocking --rank-env 1:NCCL_COMM_BLOCKING=1 --jitter 1000 "${work[@]}"
expect_late "one rank waits for NCCL, the others do not"
[ "$late_switches" -gt 0 ]
tap_point $? "the switch fell after calls had been made ($late_switches times)" "never"

# The first use of a communicator is in a capture: what was captured stays with NCCL, at every replay, on every rank.
run_app --nranks 3 --make nonblocking --graph 10 --iterations 0 --counts 1000 --batch 3 --pause $pause
expect_late "first use in a capture"

for local in 1 2; do
    run_app --nranks 4 --local $local --make split --nonblocking --split-colors 0,0,0,0 --split-keys 3,2,1,0 \
        --jitter 2000 "${work[@]}"
    expect_late "non-blocking split, $local ranks a process"
done
run_app --nranks 4 --make shrink --nonblocking --split-colors 0,-1,0,0 --jitter 2000 "${work[@]}"
expect_late "non-blocking shrink"

# A rank on which it cannot work: all hand back, while calls go on.
run_app --nranks 4 --make nonblocking --jitter 1000 --rank-env 2:SIMNODE_FAIL=cuIpcOpenMemHandle_v2 "${work[@]}"
expect_stock "a rank cannot open its peers' memory" "rank 2"
# The other three know it when NCCL's barrier has passed.
run_app --nranks 4 --make nonblocking --rank-env 2:ONEHOP_DISABLE=1 "${work[@]}"
expect_stock "a rank without onehop" "present on this host for 3 of 4"

# It ends before the set-up does.
export ONEHOP_SHM_DIR=$meeting
run_app --nranks 2 --make nonblocking --scenario churn --rounds 40 --jitter 1000 --counts 1000
expect_right "ended at any time"
tap_empty "$(uneven_ranks)" "ended at any time: the same calls served on all ranks"
expect_no_files
# A rank that cannot meet the others: its calls come before the set-up has found that out, or after.
bad=0
for seed in 1 2 3 4 5 6 7 8; do
    run_app --nranks 2 --make nonblocking --rank-env 1:ONEHOP_SHM_DIR=/nowhere --counts 1,333 --batch 3 --seed $seed
    [ "$status" = 0 ] && [ "$(sum_of served)" = 0 ] || bad=$((bad + 1))
done
tap_point $bad "a rank without shared memory: right, and all handed back" "$(diagnosis)"
tap_done
