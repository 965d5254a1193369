# SPDX-License-Identifier: MIT
# t_torch.sh [STEP...] - PyTorch with onehop. Steps: torch own-gpu mixed invariant nccl-bits.
. "$(dirname "$0")/lib.sh"

torch_step() {
    local name=$1
    shift
    step "$name" 240 env LD_PRELOAD="$library" ONEHOP_DEBUG=INFO ONEHOP_STATS=1 \
        "${torchrun[@]}" "$top/test/gpu/torch_allreduce.py" "$@"
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
    step mixed 120 env ONEHOP_DEBUG=INFO "${torchrun[@]}" --no-python bash -c \
        '[ "$RANK" = 1 ] || export LD_PRELOAD="$1"; exec python3 "$2" --quick' mixed "$library" \
        "$top/test/gpu/torch_allreduce.py"
    grep -q 'falls back to NCCL: onehop is present' "$out/mixed.log" ||
        bad "mixed: no line says why it fell back"
}

# Each row of a batch in one order at every size, with what vLLM's batch-invariant mode sets.
step_invariant() {
    have_torch invariant || return
    step invariant 240 env NCCL_ALGO=allreduce:tree NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=1 NCCL_MAX_NCHANNELS=1 \
        NCCL_NTHREADS=1 NCCL_NVLS_ENABLE=0 "$prefix/bin/onehop" run --invariant --stats -- \
        "${torchrun[@]}" "$top/test/gpu/torch_invariant.py" $quick
    served invariant
    grep -q '^onehop: invariant: yes$' "$out/invariant.log" ||
        bad "invariant: $(grep -m 1 '^onehop: invariant' "$out/invariant.log" || echo "no line says so")"
    note_of invariant '%s' "$(grep -m 1 '^ok: \|^FAIL: ' "$out/invariant.log")"
}

# The bits of results against those of stock NCCL: equal with two GPUs, in ulps with more.
step_nccl_bits() {
    have_torch nccl-bits || return
    step nccl-bits-stock 120 "${torchrun[@]}" "$top/test/gpu/torch_bits.py" --save "$out/nccl-bits.pt" $quick
    step nccl-bits 120 env LD_PRELOAD="$library" ONEHOP_STATS=1 ONEHOP_INVARIANT=1 \
        "${torchrun[@]}" "$top/test/gpu/torch_bits.py" --compare "$out/nccl-bits.pt" $quick
    rm -f "$out/nccl-bits.pt"
    served nccl-bits
    note_of nccl-bits '%s' "$(grep -m 1 '^ok: \|^FAIL: [0-9]' "$out/nccl-bits.log")"
    note "$(grep ', by ' "$out/nccl-bits.log" | sed 's/^/nccl-bits                /')"
}

run_steps "torch own-gpu mixed invariant nccl-bits" "$@"
