# SPDX-License-Identifier: MIT
# lib.sh - what the tests on GPUs share. Sourced by t_*.sh, which speak TAP: a point is a command under a time limit, or a
# condition; a comment is a line for the table of scripts/check-gpu. Settings, as scripts/check-gpu exports them:
#   OH_GPU_PREFIX, OH_GPU_BUILD  an installed onehop, the tree it was built in
#   OH_GPU_COUNT, OH_GPU_OUT     how many GPUs, where logs go
#   OH_GPU_QUICK                 "--quick": less of everything
#   OH_GPU_ROWS                  of the step peer-failure these alone
#   OH_GPU_SOAK_SECONDS          how long the step soak takes
set -u
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$top/scripts/lib.sh"
. "$top/test/hygiene/tap.sh"
build=${OH_GPU_BUILD:-${abs_top_builddir-$top/build}}
prefix=${OH_GPU_PREFIX:-$build/build-gpu}
gpus=${OH_GPU_COUNT:-$(oh_gpus | tr ',' '\n' | grep -c .)}
out=${OH_GPU_OUT-}
quick=${OH_GPU_QUICK-}
rows=${OH_GPU_ROWS-}
soak_seconds=${OH_GPU_SOAK_SECONDS:-$([ -n "$quick" ] && echo 60 || echo 600)}
full=--full
[ -z "$quick" ] || full=
library=$prefix/lib/libonehop.so
[ "$gpus" -ge 2 ] || tap_skip_all "fewer than two GPUs"
[ -e "$library" ] || tap_skip_all "no $library (make check-gpu, or make install)"
[ -n "$out" ] || out=$(mktemp -d) || exit 2
export gpus

# run_steps "NAME..." [STEP...]: runs step_NAME for each step; without any, for each name.
run_steps() {
    local name names=("${@:2}")
    [ ${#names[@]} -gt 0 ] || read -ra names <<<"$1"
    for name in "${names[@]}"; do
        "step_${name//-/_}"
    done
    tap_done
}

# note TEXT...: lines for the table; note_of NAME FORMAT ARGUMENT...: one of a step; bad TEXT: a point that has not passed;
# skip NAME REASON: a step that cannot run here.
note() {
    printf '%s\n' "$@" | sed 's/^/# /'
}
note_of() {
    # shellcheck disable=SC2059
    note "$(printf "%-24s $2" "$1" "${@:3}")"
}
bad() {
    tap_point 1 "$*"
}
skip() {
    tap_skip "$(printf '%-24s' "$1")" "${*:2}"
}

# step NAME LIMIT COMMAND...: a point: the command succeeds under a time limit. Its output is in a log of that name.
step() {
    local name=$1 limit=$2 status start=$SECONDS
    shift 2
    oh_limited "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    if [ $status = 0 ]; then
        tap_point 0 "$(printf '%-24s %4d s' "$name" $((SECONDS - start)))"
    else
        tap_point 1 "$(printf '%-24s %4d s  %s' "$name" $((SECONDS - start)) "$(ending $status $limit)")"
    fi
    return $status
}

# ending STATUS LIMIT: how a step has ended. (timeout says 124, and 137 where SIGTERM was not enough.)
ending() {
    case $1 in
    124 | 137) echo "status $1, perhaps by its limit of $2 s" ;;
    *) echo "status $1" ;;
    esac
}

# served LOG: the served calls and fallbacks that the statistics in a log show.
served() {
    local line
    line=$(grep -h 'stats:' "$out/$1.log" |
        sed -n 's/.*nranks \([0-9]*\) served=\([0-9]*\) (\([^)]*\)) fallback=\([0-9]*\).*/\2 \4/p' |
        awk '{ s += $1; h += $2 } END { print s + 0, h + 0 }')
    note_of "$1" 'served %s, fallbacks %s' ${line}
    [ "${line%% *}" -gt 0 ] || bad "$1: no call was served"
}

# LD_LIBRARY_PATH for programs that open NCCL by its name, and, with the driver's folder in front as well, for those that
# are linked with the simulated libraries.
driver=$(oh_library_folder libcuda.so.1)
nccl=$(oh_nccl_folder python3)
libraries=$nccl${LD_LIBRARY_PATH:+${nccl:+:}$LD_LIBRARY_PATH}
real_libraries=${driver:+$driver:}$libraries

# Before a program of PyTorch: a process for each GPU.
torchrun=(python3 -m torch.distributed.run --standalone --nproc-per-node "$gpus")

# have_torch STEP: is there a python3 with PyTorch? Where not, the step is skipped.
have_torch() {
    [ -n "${torch_found-}" ] || { python3 -c 'import torch.distributed' 2>"$out/torch-import.log" && torch_found=yes; } ||
        torch_found=no
    [ $torch_found = yes ] || skip "$1" "$(tail -n 1 "$out/torch-import.log")"
    [ $torch_found = yes ]
}
