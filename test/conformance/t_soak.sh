# SPDX-License-Identifier: MIT
# A soak on the simulated node: random rounds of calls, graphs, streams and communicators that come and go, checked, and
# nothing grows. OH_SOAK_SECONDS: for how long, over all three modes (scripts/check --full: 300 with AddressSanitizer).
. "$abs_top_srcdir/test/hygiene/tap.sh"

program=$abs_top_builddir/test/conformance/onehop-conformance
plugin=$abs_top_builddir/.libs/libonehop.so
seconds=${OH_SOAK_SECONDS:-6}
scratch=$(mktemp -d)
meeting=$(mktemp -d /dev/shm/onehop-test.XXXXXX)
trap 'rm -rf "$scratch" "$meeting"' EXIT
export LD_LIBRARY_PATH=$abs_top_builddir/test/simnode/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SIMNODE_TOPOLOGY=h200x4
export ONEHOP_SHM_DIR=$meeting
# Arenas of threads that come and go would hide what is kept in what malloc has not given back.
export MALLOC_ARENA_MAX=1
options=(--patience 4 --allow 2048,0,2048,0)
if [ -n "${OH_SANITIZERS-}" ]; then
    # A sanitizer keeps what was freed for a while; less of it, and memory that is lost is found at the end.
    export ASAN_OPTIONS="quarantine_size_mb=8:$ASAN_OPTIONS"
    options=(--patience 12 --allow 65536,0,2048,64)
fi

# soak PRELOAD SECONDS ARGUMENT...: sets $status, fills the log.
soak() {
    local preload=$1 seconds=$2
    shift 2
    status=0
    LD_PRELOAD=$preload timeout -k 5 $((seconds + 600)) "$program" --soak "$seconds" "${options[@]}" "$@" \
        >"$scratch/out" 2>&1 || status=$?
    grep '^# s' "$scratch/out"
}

# soak_is_clean RANKS MODE SECONDS
soak_is_clean() {
    soak "$plugin" "$3" --ranks "$1" --modes "$2" --expect-served
    tap_point "$status" "$1 ranks, $2: nothing is wrong, nothing grows" "status $status
$(grep -v '^# soak' "$scratch/out" | tail -n 40)"
}

soak_is_clean 3 processes $((seconds / 3))
soak_is_clean 2 threads $((seconds / 3))
soak_is_clean 4 group $((seconds / 3))
tap_empty "$(ls -A "$meeting")" "nothing is left in shared memory"

# That it sees what is wrong: NCCL with one wrong bit in each result.
SIMNODE_NCCL_WRONG=1 soak '' 1 --ranks 2 --modes group
[ "$status" = 1 ] && grep -q '^not ok 1 ' "$scratch/out"
tap_point $? "wrong results are found" "$(tail -n 5 "$scratch/out")"
tap_done
