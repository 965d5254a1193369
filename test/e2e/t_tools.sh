# SPDX-License-Identifier: MIT
# The step `tools` of scripts/check-gpu on the simulated node, as far as it goes there, beside an nvidia-smi that says what
# it is told; and that the step notices what it is for.
. "$abs_top_srcdir/test/e2e/lib.sh"

# (`topo --measure` may be done before it can be interrupted: simulated GPUs copy little.)
build=$abs_top_builddir
prefix=$scratch/prefix bin=$scratch/bin
mkdir -p "$prefix/bin" "$prefix/lib" "$bin"
ln -s "$build/src/tools/onehop" "$prefix/bin"
ln -s "$plugin" "$prefix/lib"
export SIMNODE_TOPOLOGY=h200x2 ONEHOP_LIBRARY=$plugin
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS-}"
unset ONEHOP_DEBUG ONEHOP_STATS

# 4 MiB of memory when asked first, then as $scratch/held says; the matrix in the form of nvidia-smi.
cat >"$bin/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in
*memory.used*)
    if [ -e "$NVIDIA_SMI_HELD.asked" ]; then cat "$NVIDIA_SMI_HELD"; else printf '4\n4\n'; fi
    touch "$NVIDIA_SMI_HELD.asked"
    ;;
"topo -m")
    printf '\t\033[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n'
    printf 'GPU0\t X \t%s\tNODE\t0-55,112-167\t0\t\tN/A\nGPU1\t%s\t X \tSYS\t56-111,168-223\t1\t\tN/A\n' \
        "${NVIDIA_SMI_LINKS-NV18}" "${NVIDIA_SMI_LINKS-NV18}"
    printf 'NIC0\tNODE\tSYS\t X \n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n'
    ;;
esac
END
chmod +x "$bin/nvidia-smi"
export NVIDIA_SMI_HELD=$scratch/held OH_TOOLS_ROUNDS=20

# check_gpu: sets $status, fills $out; the log of the step is $scratch/logs/tools.log.
check_gpu() {
    rm -rf "${scratch:?}/logs" "$NVIDIA_SMI_HELD.asked"
    PATH=$bin:$PATH limit=280 run_limited bash "$abs_top_srcdir/scripts/check-gpu" --prefix "$prefix" --build "$build" \
        --gpus 2 --out "$scratch/logs" tools
}

printf '4\n4\n' >"$NVIDIA_SMI_HELD"
check_gpu
cat "$scratch/logs/tools.log" >>"$out"
[ "$status" = 0 ] && grep -q '^ok    tools' "$out" && grep -q ' 0 wrong' "$out" && ! grep -q '^not ok' "$out" &&
    ! grep '# SKIP' "$out" | grep -qv 'it is always done before'
tap_point $? "all of it passes" "$(cat "$out")"

# A GPU that still holds memory afterwards, and a matrix of other links.
printf '4\n900\n' >"$NVIDIA_SMI_HELD"
NVIDIA_SMI_LINKS=NV12 check_gpu
[ "$status" = 1 ] && grep -q '^not ok .* the GPUs are free again' "$scratch/logs/tools.log" &&
    grep -q '^not ok .* link counts' "$scratch/logs/tools.log" && grep -q '^FAIL  tools: not ok' "$out"
tap_point $? "what is not well is told" "$(cat "$out")"
tap_done
