# SPDX-License-Identifier: MIT
# Each call of the driver that onehop makes after its set-up fails once, or is the end of its process, or a stop: every
# result is right, or the program has an error, or its stream waits and the error is there; nobody is told of an error
# that concerns it not, and all memory comes back. test/e2e/sweep.c has the points and how they are judged.
#
# `make check` takes each function of each pattern once and others at random (the seed is printed; OH_SEED repeats it);
# OH_FAULT_POINTS=all takes all (scripts/check --full).
. "$abs_top_srcdir/test/e2e/lib.sh"

seed=${OH_SEED:-$RANDOM}
echo "# OH_SEED=$seed"
points=${OH_FAULT_POINTS:-250}
[ "$points" != all ] || points=0
export ONEHOP_DEBUG=INFO
unset SIMNODE_REPORT
LD_PRELOAD=$plugin "$abs_top_builddir/test/e2e/sweep" --scratch "$meeting" --points "$points" --seed "$seed" \
    ${OH_FAULT_JOBS:+--only "${OH_FAULT_JOBS// /,}"} >"$out" 2>&1
status=$?
grep '^#' "$out"
[ "$status" = 0 ]
tap_point $? "$(grep -oE '[0-9]+ of [0-9]+ points:.*' "$out")" "$(grep -v '^#' "$out" | tail -n 20)"
# A GPU that takes its time for the write that stops replays: the error must not reach the program before that.
SIMNODE_MEMSET_2D_US=40000 LD_PRELOAD=$plugin "$abs_top_builddir/test/e2e/sweep" --scratch "$meeting" \
    --point mixed:fail:on:cuStreamWaitEvent:2 >"$out" 2>&1
tap_point $? "a replay after a call that has failed, with a slow GPU" "$(tail -n 20 "$out")"
tap_done
