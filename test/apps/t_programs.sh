# SPDX-License-Identifier: MIT
# C programs on the simulated node, with onehop and without: the same results, allreduces served, the rest with NCCL.
. "$abs_top_srcdir/test/e2e/lib.sh"

apps=$abs_top_builddir/test/apps

# run_program PRELOAD COMMAND...: sets $status, fills $out (also with what goes to stderr) and $out.results.
run_program() {
    local preload=$1
    shift
    status=0
    rm -f "$scratch"/report.*
    env ${preload:+LD_PRELOAD="$preload"} timeout -k 5 $limit "$@" >"$out.results" 2>"$out" || status=$?
    cat "$out.results" >>"$out"
}

# What NCCL was asked for, but allreduces and what belongs to making communicators.
other_calls() {
    cat "$scratch"/report.* | grep -E '^nccl_(all(gather|toall)|broadcast|reduce|reducescatter|send|recv) ' |
        awk '{ calls[$1] += $2 } END { for (name in calls) print name, calls[name] }' | sort
}

run_program "$plugin" "$apps/allreduce_all" 3000 20
expect_served "one process with all GPUs"
grep -q '^8 GPUs, 20 sums of 3000 elements: 0 wrong$' "$out.results"
tap_point $? "its sums are right" "$(diagnosis)"
run_program '' "$apps/allreduce_all" 3000 20
expect_right "the same, without onehop"

for ranks in 2 4 8; do
    export SIMNODE_TOPOLOGY=h200x$ranks
    run_program '' "$apps/sparse_collectives"
    expect_right "sparse gradients, $ranks ranks, without onehop"
    cp "$out.results" "$scratch/stock"
    stock=$(other_calls) reductions=$(report_of nccl_allreduce)
    run_program "$plugin" "$apps/sparse_collectives"
    expect_served "sparse gradients, $ranks ranks"
    tap_empty "$(diff "$scratch/stock" "$out.results")" "the same values"
    [ "$(sum_of served)" = "$reductions" ] && [ "$reductions" -gt 0 ]
    tap_point $? "every allreduce is counted ($reductions)" "$(diagnosis "$reductions allreduces")"
    [ "$(grep -c ' [1-9]' <<<"$stock")" -ge 4 ] && [ "$(other_calls)" = "$stock" ]
    tap_point $? "everything else goes to NCCL, call by call" "without:
$stock
with onehop:
$(other_calls)"
done

if ! find_mpirun; then
    tap_skip "a program with MPI" "$no_mpirun"
elif ! mpi_program "$scratch"; then
    tap_skip "a program with MPI" "$no_mpi_program"
else
    export SIMNODE_TOPOLOGY=h200x4
    run_program "$plugin" "${mpirun[@]}" -n 4 "$scratch/allreduce_mpi" 2000 20
    expect_served "a program with MPI"
    grep -q '^4 ranks, 20 sums of 2000 elements: 0 wrong$' "$out.results"
    tap_point $? "its sums are right" "$(diagnosis)"
    run_program '' "${mpirun[@]}" -n 4 "$scratch/allreduce_mpi" 2000 20
    expect_right "the same, without onehop"
fi
tap_done
