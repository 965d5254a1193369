# SPDX-License-Identifier: MIT
# A soak on the simulated node: random rounds of calls, graphs, streams and communicators that come and go, checked, and
# nothing grows. OH_SOAK_SECONDS: for how long, over all three modes (scripts/check --full: 300 with AddressSanitizer).
. "$abs_top_srcdir/test/e2e/lib.sh"

seconds=${OH_SOAK_SECONDS:-6}
unset ONEHOP_DEBUG ONEHOP_STATS
export SIMNODE_TOPOLOGY=h200x4 ONEHOP_SHM_DIR=$shm SIMNODE_NCCL_BACKGROUND=1 SIMNODE_NCCL_DELAY_US=100
# Arenas of threads that come and go would hide what is kept in what malloc has not given back.
export MALLOC_ARENA_MAX=1
options=(--patience 4 --allow 2048,0,2048,0)
if [ -n "${OH_SANITIZERS-}" ]; then
    # A sanitizer keeps what was freed for a while; less of it, and memory that is lost is found at the end.
    export ASAN_OPTIONS="quarantine_size_mb=8:$ASAN_OPTIONS"
    options=(--patience 12 --allow 65536,0,2048,64)
    # ThreadSanitizer keeps what it knows of each address.
    [[ $OH_SANITIZERS != *thread* ]] || options=(--patience 12 --allow 1000000000,0,2048,1000000)
fi

# soak PRELOAD SECONDS ARGUMENT...: sets $status, fills $out.
soak() {
    limit=$(($2 + 600)) run_with "$1" "$conformance" --soak "$2" "${options[@]}" "${@:3}"
    grep '^# s' "$out"
}

# soak_is_clean RANKS MODE SECONDS
soak_is_clean() {
    soak "$plugin" "$3" --ranks "$1" --modes "$2" --expect-served
    tap_point "$status" "$1 ranks, $2: nothing is wrong, nothing grows" "status $status
$(grep -v '^# soak' "$out" | tail -n 40)"
}

soak_is_clean 3 processes $((seconds / 3))
soak_is_clean 2 threads $((seconds / 3))
soak_is_clean 4 group $((seconds / 3))
expect_no_files

# That it sees what is wrong: NCCL with one wrong bit in each result.
SIMNODE_NCCL_WRONG=1 soak '' 1 --ranks 2 --modes group
[ "$status" = 1 ] && grep -q '^not ok 1 ' "$out"
tap_point $? "wrong results are found" "$(tail -n 5 "$out")"
tap_done
