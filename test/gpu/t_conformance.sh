# SPDX-License-Identifier: MIT
# t_conformance.sh [STEP...] - NCCL's contract and random calls, on GPUs. Steps: conformance conformance-stock verify one-queue sanitize soak-stock soak programs.
. "$(dirname "$0")/lib.sh"

# conform STEP LIMIT SETTING... -- ARGUMENT...: onehop-conformance, and what it counted.
conform() {
    local name=$1 limit=$2 settings=()
    shift 2
    while [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    step "$name" "$limit" env LD_LIBRARY_PATH="$libraries" "${settings[@]}" \
        "$build/test/conformance/onehop-conformance" --ranks "$(seq -s , 2 "$gpus")" "${@:2}"
    note "$(awk -v name="$name" '/^ok/ { ok++ } /^not ok/ { bad++ } / checks, / {
        for (i = 2; i <= NF; i++) { if ($i == "checks,") c += $(i - 1)
            if ($i == "served") s += $(i + 1)
            if ($i == "fallbacks") h += $(i + 1) } }
        END { printf "%-24s %d cases, %d failed, %d checks, served %d, fallbacks %d", name, ok + bad,
            bad, c, s, h }' "$out/$name.log")"
    grep -h '^not ok' -A 1 "$out/$name.log" | head -n 20 >&2
}

# soaked LOG: over all jobs, calls and communicators, the largest growth of host memory in KiB, in KiB a communicator, of
# GPU memory, and of descriptors, threads or mappings; failures.
soaked() {
    sed -n 's/^# soak: //p' "$out/$1.log" | awk '{
        calls += $3; made += $5; graphs += $7; replays += $9; failures += $11
        for (i = 12; i <= NF; i++) {
            if ($i == "in") since = $(i + 1)
            if ($(i + 1) == "KiB" && $(i + 3) == "host" && $i > host) host = $i
            if ($(i + 1) == "KiB" && $(i + 3) == "GPU" && $i > gpu) gpu = $i
            if ($(i + 1) ~ /^(descriptors|threads|mappings),?$/ && $i > kept) kept = $i
        }
        if (since > 0 && host / since > each) each = host / since
    } END { printf "%d %d %d %d %d %d %d %d %d\n", calls, made, graphs, replays, failures, host, each + 1, gpu, kept }'
}

# soak_run NAME SECONDS LIBRARY ARGUMENT...: onehop-conformance --soak with a library preloaded, or without one.
soak_run() {
    local name=$1 seconds=$2 preload=$3 row
    shift 3
    step "$name" $((seconds + 300)) env ${preload:+LD_PRELOAD="$preload"} \
        LD_LIBRARY_PATH="$libraries" "$build/test/conformance/onehop-conformance" \
        --soak "$seconds" --ranks "$gpus" $full "$@"
    read -ra row <<<"$(soaked "$name")"
    note_of "$name" '%s calls, %s communicators, %s graphs, %s replays, %s failures; grown by %s KiB, of GPU memory by %s KiB, %s handles' \
        "${row[0]}" "${row[1]}" "${row[2]}" "${row[3]}" "${row[4]}" "${row[5]}" "${row[7]}" "${row[8]}"
}

# What stock NCCL keeps, which is not held against onehop. For as long: some of it comes late.
step_soak_stock() {
    soak_run soak-stock "$soak_seconds" '' --allow 1000000000,0,1000000000,1000000
}

# Random rounds. Where soak-stock has left no figures in --out, that comes first.
step_soak() {
    local row allow
    grep -qs '^# soak: ' "$out/soak-stock.log" || step_soak_stock
    if ! grep -qs '^# soak: ' "$out/soak-stock.log"; then
        bad "soak: stock NCCL has left no figures"
        return
    fi
    read -ra row <<<"$(soaked soak-stock)"
    allow=8192,$((row[6] * 3 / 2)),$((row[7] * 3 / 2 + 2048)),$((row[8] + 8))
    soak_run soak "$soak_seconds" "$library" --expect-served --allow "$allow"
}

# sanitized NAME TOOL COMMAND...: a command under compute-sanitizer, and what that has found.
sanitized() {
    local name=$1 tool=$2
    shift 2
    step "$name" 400 compute-sanitizer --tool "$tool" --report-api-errors no --target-processes all --error-exitcode 9 "$@"
    note_of "$name" '%s' "$(grep -ho 'ERROR SUMMARY.*\|RACECHECK SUMMARY.*' "$out/$name.log" |
        sort | uniq -c | tr -s ' \n' ' ')"
}

# A part of the conformance test under memcheck, and the kernels of virtual ranks under racecheck.
step_sanitize() {
    if ! command -v compute-sanitizer >/dev/null; then
        skip sanitize no compute-sanitizer
        return
    fi
    sanitized memcheck memcheck env LD_PRELOAD="$library" LD_LIBRARY_PATH="$libraries" \
        "$build/test/conformance/onehop-conformance" --ranks 2 --modes threads --patience 20 --expect-served \
        --cases sum,min,avg,alignment,group,group-together,graph-modes,largest-served
    sanitized racecheck racecheck "$build/test/gpu/virtual_ranks" -n 2,3,4 -c 30 -p 1
}

# NCCL's contract, with onehop in front.
step_conformance() {
    conform conformance 900 LD_PRELOAD="$library" -- $full --expect-served
}

# And NCCL alone: the test is of the contract.
step_conformance_stock() {
    conform conformance-stock 900 -- $full
}

# NCCL makes every call, too: no right result differs, and one that another stream writes to does.
step_verify() {
    conform verify 900 LD_PRELOAD="$library" ONEHOP_VERIFY=1 ONEHOP_VERIFY_FATAL=1 ONEHOP_STATS=1 -- $full
    note_of verify '%s' "$(sed -n 's/.* \(verified=[0-9]*\) \(differing=[0-9]*\).*/\1 \2/p' "$out/verify.log" | awk -F '[= ]' \
        '{ v += $2; d += $4 } END { printf "%d calls verified, %d differ", v, d }')"
    have_torch verify-differing || return
    step verify-differing 120 env LD_PRELOAD="$library" ONEHOP_VERIFY=1 "${torchrun[@]}" "$top/test/gpu/torch_verify.py"
    grep -q "WARN .* differs from NCCL's: element" "$out/verify-differing.log" || bad "verify-differing: no result was found to differ"
}

# Streams that share a hardware queue.
step_one_queue() {
    CUDA_DEVICE_MAX_CONNECTIONS=1 conform one-queue 400 LD_PRELOAD="$library" -- $full \
        --cases stream,group,graph --expect-served
}

# Random programs, the same with stock NCCL and with onehop. A seed that fails with stock NCCL is no valid program.
step_programs() {
    local name seeds=40 ranks=$((gpus < 4 ? gpus : 4))
    [ -z "$quick" ] || seeds=10
    for name in programs-stock programs; do
        step $name 900 env LD_LIBRARY_PATH="$real_libraries" "$build/test/programs/onehop-programs" --plain --ranks $ranks \
            --count $seeds --limit 60 $([ $name = programs-stock ] || printf -- '--plugin %s' "$library")
        note_of $name '%s of %s seeds are right; others: %s' "$(grep -c '^ok seed' "$out/$name.log")" \
            $seeds "$(sed -n 's/^FAILED seed \([0-9]*\),.*/\1/p' "$out/$name.log" | tr '\n' ' ')"
    done
}

run_steps "conformance conformance-stock verify one-queue sanitize soak-stock soak programs" "$@"
