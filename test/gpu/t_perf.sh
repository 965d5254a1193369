# SPDX-License-Identifier: MIT
# t_perf.sh [STEP...] - times of NCCL and onehop, on GPUs. Steps: perf perf-types patterns one-process windows symm profiler overlap straggler tune.
. "$(dirname "$0")/lib.sh"

# perf_step NAME ARGUMENT...: onehop perf, its numbers in NAME.csv, and its averages.
perf_step() {
    local name=$1
    shift
    step "$name" 400 env LD_LIBRARY_PATH="$libraries" "$prefix/bin/onehop" perf -g "$gpus" "$@" \
        --csv "$out/$name.csv"
    note "$(sed -n "s/^# Avg /$name: /p; s/^# floor: /$name: floor: /p" "$out/$name.log")"
}

# Was onehop the faster at every size where a rank came late by a millisecond or five?
straggler_is_faster() {
    cat "$out/straggler-stock.log" "$out/straggler.log" | awk '/ KiB, late by / { n++
            if ($1 == "stock:") { one[$2] = $(NF - 4); five[$2] = $(NF - 3) }
            else if (!($(NF - 4) < one[$2] && $(NF - 3) < five[$2])) bad = 1 }
        END { exit bad || n < 2 }'
}

# A table for this machine; then perf with it and with the shipped one, so that the two can be compared.
step_tune() {
    local table=$out/tuned.tuning sizes=(-b 1K -e 32M -d "bfloat16,float")
    step tune 120 env LD_LIBRARY_PATH="$libraries" "$prefix/bin/onehop" tune -n "$gpus" \
        -o "$table" || return
    ONEHOP_TUNING_FILE=$table perf_step tune-tuned "${sizes[@]}"
    ONEHOP_TUNING_FILE=none perf_step tune-shipped "${sizes[@]}"
    note_of tune '%s rows' "$(grep -cE '^ +[0-9]+[KMG]? +(oneshot|twoshot|nccl) .* us, stock' "$out/tune.log")"
}

step_perf() {
    perf_step perf -b 1K -e 64M -d bfloat16,float --floor
}

step_perf_types() {
    perf_step perf-types -b 1K -e 1M -f 32 -d all -o all --graph --floor
}

# Calls that nothing stands between; with a kernel between that touches no memory.
step_patterns() {
    for pattern in spin chain free; do
        perf_step "pattern-$pattern" -b 1K -e 16M -f 4 -d bfloat16 --floor --pattern $pattern
    done
}

# A thread for each GPU; groups of eight calls.
step_one_process() {
    perf_step one-process-threads -b 1K -e 16M -f 4 -d bfloat16 --layout threads
    perf_step one-process-threads-8 -b 1K -e 256K -f 4 -d bfloat16 --layout threads -m 8
    perf_step groups-8 -b 1K -e 256K -f 4 -d bfloat16 -m 8
}

# Beside NCCL's symmetric kernels, without NVLink multicast.
step_windows() {
    NCCL_NVLS_ENABLE=0 perf_step windows -b 1K -e 64M -d bfloat16 --compare all --floor
}

# PyTorch's symmetric memory, and all in one table.
step_symm() {
    have_torch symm || return
    step symm 300 "${torchrun[@]}" "$top/test/gpu/torch_symm.py" --csv "$out/symm.csv"
}

# Torch.profiler and HTA's pattern see onehop's kernels as communication.
step_profiler() {
    have_torch profiler || return
    step profiler 120 env LD_PRELOAD="$library" "${torchrun[@]}" "$top/test/gpu/torch_profile.py"
}

# A matmul beside allreduces of 1 MiB.
step_overlap() {
    have_torch overlap || return
    step overlap-stock 120 "${torchrun[@]}" "$top/test/gpu/torch_overlap.py"
    step overlap 120 env LD_PRELOAD="$library" "${torchrun[@]}" "$top/test/gpu/torch_overlap.py"
    step overlap-limited 120 env LD_PRELOAD="$library" NCCL_MAX_CTAS=8 "${torchrun[@]}" \
        "$top/test/gpu/torch_overlap.py" --name 'onehop, 8 CTAs'
    note "$(sed -n 's/^\(stock\|onehop[^:]*\): /overlap: \1: /p' "$out/overlap-stock.log" "$out/overlap.log" \
        "$out/overlap-limited.log")"
}

# A rank for which the others have waited.
step_straggler() {
    have_torch straggler || return
    step straggler-stock 120 "${torchrun[@]}" "$top/test/gpu/torch_straggler.py" --name stock
    step straggler 120 env LD_PRELOAD="$library" ONEHOP_STATS=1 "${torchrun[@]}" "$top/test/gpu/torch_straggler.py" --name onehop
    served straggler
    note "$(sed -n 's/^\(stock\|onehop\): /straggler: \1: /p' "$out/straggler-stock.log" "$out/straggler.log")"
    straggler_is_faster || bad "straggler: slower than stock NCCL"
}

run_steps "perf perf-types patterns one-process windows symm profiler overlap straggler tune" "$@"
