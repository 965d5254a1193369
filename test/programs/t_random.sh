# SPDX-License-Identifier: MIT
# Random NCCL programs (onehop-programs) on the simulated node: those of some seeds with stock NCCL, which shows that they are
# valid, and of more with onehop. OH_PROGRAM_SEEDS: how many (scripts/check --full: 2000). OH_PROGRAM_PATIENCE multiplies time
# limits.
. "$abs_top_srcdir/test/e2e/lib.sh"

seeds=${OH_PROGRAM_SEEDS:-120}
programs=$abs_top_builddir/test/programs/onehop-programs
batches=4 # at a time: ranks pause more than they compute
unset ONEHOP_DEBUG ONEHOP_STATS SIMNODE_REPORT
export SIMNODE_TOPOLOGY=h200x4
if [ -n "${OH_SANITIZERS-}" ]; then
    export OH_PROGRAM_PATIENCE=$((${OH_PROGRAM_PATIENCE:-1} * 6))
    # Programs load a function's address from their own tables while onehop stores another one there: each is one word.
    printf 'race:write_word\nrace:oh_real_add\n' >"$scratch/suppressions"
    export TSAN_OPTIONS="suppressions=$scratch/suppressions ${TSAN_OPTIONS-}"
fi

# run_seeds COUNT ARGUMENT...: seeds 1 to COUNT. Fills $out; $failed: seeds that failed.
run_seeds() {
    local batch pids=()
    for ((batch = 1; batch <= batches; batch++)); do
        "$programs" --seed $batch --step $batches --count $((($1 + batches - 1) / batches)) "${@:2}" >"$out.$batch" 2>&1 &
        pids+=($!)
    done
    wait "${pids[@]}"
    cat "$out".[1-9] >"$out"
    failed=$(sed -n 's/^FAILED seed \([0-9]*\).*/\1/p' "$out" | tr '\n' ' ')
    [ "$(grep -cE '^(ok|FAILED) seed' "$out")" -ge "$1" ] || failed+='and some have not run'
}

run_seeds $((seeds / 4)) --shrink 0
tap_empty "${failed:+$failed
$(grep -v '^ok' "$out" | head -n 60)}" "seeds 1 to $((seeds / 4)), stock NCCL"
run_seeds "$seeds" --plugin "$plugin" --shrink 20
tap_empty "${failed:+$failed
$(grep -v '^ok' "$out" | head -n 120)}" "seeds 1 to $seeds, onehop"
tap_done
