# SPDX-License-Identifier: MIT
# t_torch.sh [STEP...] - PyTorch with onehop. Steps: torch own-gpu mixed.
. "$(dirname "$0")/lib.sh"

torch_step() {
    local name=$1
    shift
    step "$name" 240 env LD_PRELOAD="$library" ONEHOP_DEBUG=INFO ONEHOP_STATS=1 \
        bash -c 'torchrun "$@"' torchrun "$top/test/gpu/torch_allreduce.py" "$@"
    served "$name"
}

step_torch() {
    have_torch torch || return
    torch_step torch $quick
}

step_own_gpu() {
    have_torch own-gpu || return
    torch_step own-gpu --own-gpu --quick
}

# One rank without onehop: everything on stock NCCL, and right.
step_mixed() {
    have_torch mixed || return
    step mixed 120 env ONEHOP_DEBUG=INFO bash -c 'torchrun --no-python "$@"' torchrun bash -c \
        '[ "$RANK" = 1 ] || export LD_PRELOAD="$1"; exec python3 "$2" --quick' mixed "$library" \
        "$top/test/gpu/torch_allreduce.py"
    grep -q 'falls back to NCCL: onehop is present' "$out/mixed.log" ||
        bad "mixed: no line says why it fell back"
}

run_steps "torch own-gpu mixed" "$@"
