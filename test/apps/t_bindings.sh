# SPDX-License-Identifier: MIT
# Python packages that bring a binding of NCCL, on the simulated node: by which way of loading their calls are served.
# Two GPUs in one process, two communicators, ten rounds on each: forty calls. doc/loading.md has what is counted here.
# PYTHON names a python3 that has the packages.
. "$abs_top_srcdir/test/e2e/lib.sh"

apps=$abs_top_srcdir/test/apps
python=${PYTHON-python3}
export LD_LIBRARY_PATH=$abs_top_builddir/.libs:$LD_LIBRARY_PATH # for libnccl-net-onehop.so
export SIMNODE_TOPOLOGY=h200x2 ONEHOP_SHM_DIR=$shm PYTHONDONTWRITEBYTECODE=1
[ -z "${OH_SANITIZERS-}" ] || tap_skip_all "a sanitizer's runtime would have to come first"
command -v "$python" >/dev/null || tap_skip_all "no $python"

# run SETTING... PROGRAM: sets $status, fills $out.
run() {
    status=0
    rm -f "$scratch"/report.*
    env "${@:1:$#-1}" timeout -k 5 $limit "$python" "$apps/${!#}.py" >"$out" 2>&1 || status=$?
}

# binding NAME PRELOAD PLUGIN AUDIT: the calls that must be served.
binding() {
    local program=$1_allreduce way served
    local -A wanted=([none]=0 [preload]=$2 [plugin]=$3 [audit]=$4)
    for way in none preload plugin audit; do
        case $way in
            none) run "$program" ;;
            preload) run LD_PRELOAD="$plugin" "$program" ;;
            plugin) run NCCL_NET_PLUGIN=onehop "$program" ;;
            audit) run LD_PRELOAD="$plugin" LD_AUDIT="$abs_top_builddir/.libs/libonehop-audit.so" "$program" ;;
        esac
        if [ "$status" = 77 ]; then
            tap_skip "$1, $way" "$(tail -n 1 "$out")"
            continue
        fi
        served=$(sum_of served)
        [ "$status" = 0 ] && [ "$(count_of ': 2 GPUs, 20 sums of 1000 elements: 0 wrong$')" = 1 ] &&
            [ "$served" = "${wanted[$way]}" ] && [ "$((served + $(report_of nccl_allreduce)))" = 40 ]
        tap_point $? "$1, $way: the sums are right, ${wanted[$way]} of 40 calls are served" "$(diagnosis)"
    done
}
binding cupy 40 20 40
binding nccl4py 40 0 40

# On a CPU psum needs no NCCL; that it comes out right shows that the program does.
run CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 psum
if [ "$status" = 77 ]; then
    tap_skip "psum, on a CPU" "$(tail -n 1 "$out")"
else
    [ "$status" = 0 ] && [ "$(count_of ': 4 devices .cpu., 20 sums of 1000 elements: 0 wrong$')" = 1 ]
    tap_point $? "psum, on a CPU" "$(diagnosis)"
fi
expect_no_files
tap_done
