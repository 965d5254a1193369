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

for gpus in 2 4 8; do
    export SIMNODE_TOPOLOGY=h200x$gpus
    sends=$((gpus * (gpus - 1) * 20))
    for preload in '' "$plugin"; do
        run_program "$preload" "$apps/allreduce_all" 3000 20
        if [ -n "$preload" ]; then
            expect_served "one process with all GPUs, $gpus"
            [ "$(sum_of served)" = $((gpus * 20)) ]
            tap_point $? "every allreduce is counted" "$(diagnosis)"
        else
            expect_right "one process with all GPUs, $gpus, without onehop"
        fi
        grep -q "^$gpus GPUs, 20 sums of 3000 elements: 0 wrong\$" "$out.results"
        tap_point $? "sums and regions are right" "$(diagnosis)"
        [ "$(report_of nccl_send) $(report_of nccl_recv)" = "$sends $sends" ]
        tap_point $? "NCCL gets all $sends sends and receives" "$(diagnosis)"
    done
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

# As on a machine with GPUs: an installed onehop, and the build tree. (python3 comes before a sanitizer's runtime.)
export SIMNODE_TOPOLOGY=h200x2
mkdir -p "$scratch/prefix/lib" "$scratch/apps"
ln -s "$plugin" "$scratch/prefix/lib/libonehop.so"
others=(programs-in-c bindings)
[ -z "${OH_SANITIZERS-}" ] && command -v python3 >/dev/null || others=(programs-in-c)
status=0
NCCL_LIB=$stand_ins timeout -k 5 280 bash "$abs_top_srcdir/scripts/apps" --commit none --prefix "$scratch/prefix" \
    --build "$abs_top_builddir" --gpus 2 --out "$scratch/apps" "${others[@]}" >"$out" 2>&1 || status=$?
[ "$status" = 0 ] &&
    [ "$(grep -cE '^\| (cupy_allreduce|nccl4py_allreduce|psum) ' "$scratch/apps/apps.md")" = $((3 * ${#others[@]} - 3)) ]
tap_point $? "scripts/apps has the tables in its report" "$(diagnosis; cat "$scratch/apps"/*.{md,log})"
# 200 calls of the two GPUs of allreduce_all; without onehop the same sums.
sums='2 GPUs, 100 sums of 10000 elements: 0 wrong'
grep -q "^| allreduce_all | $sums | $sums | 200 | 0 | $sums |\$" "$scratch/apps/apps.md"
tap_point $? "and the program in C, which is right and served" "$(diagnosis; cat "$scratch/apps"/*.{md,log})"
tap_done
