# SPDX-License-Identifier: MIT
# t_faults.sh [STEP...] - ranks and processes that end, on GPUs (doc/faults.md). Steps: abort killed watchdog peer-failure faults.
. "$(dirname "$0")/lib.sh"

place= # of the step faults, in shared memory
trap '[ -z "$place" ] || rm -rf -- "${place:?}"' EXIT

# step_watchdog: a rank is killed and PyTorch's watchdog, or ONEHOP_TRAP_AFTER, ends the others: no later than with stock
# NCCL, and with an error.
step_watchdog() {
    have_torch watchdog || return
    local program=$top/test/gpu/torch_killed.py stock ours name
    step watchdog-stock 120 python3 "$program" watchdog "$gpus"
    step watchdog 120 env LD_PRELOAD="$library" ONEHOP_DEBUG=INFO python3 "$program" watchdog "$gpus"
    step watchdog-trap 120 env LD_PRELOAD="$library" ONEHOP_DEBUG=INFO ONEHOP_TRAP_AFTER=2 python3 "$program" graph "$gpus"
    for name in watchdog-stock watchdog watchdog-trap; do
        note "$name: $(grep -h 'survivors ended' "$out/$name.log")"
    done
    stock=$(sed -n 's/^survivors ended \([0-9.]*\) s.*/\1/p' "$out/watchdog-stock.log")
    ours=$(sed -n 's/^survivors ended \([0-9.]*\) s.*/\1/p' "$out/watchdog.log")
    awk -v ours="${ours:-999}" -v stock="${stock:-0}" 'BEGIN { exit !(ours <= stock + 1) }' ||
        bad "watchdog: later than with stock NCCL"
    grep -q 'NCCL error' "$out/watchdog.log" || bad "watchdog: no clear error"
}

# failure_wanted NAME: whether this row is to be run.
failure_wanted() {
    [ -z "$rows" ] || [[ ,$rows, = *",${1#peer-failure-},"* ]]
}

# failure_limits LOG: what took longer than doc/faults.md says, of the lines "rank 0: noticed after 106 ms"; a kill is noticed
# within 200 ms. Of an abort and a revocation onehop tells what NCCL took: its own part is 0.1 s at most, and the whole a
# second, unless NCCL alone takes longer.
failure_limits() {
    awk -v killed="$(case $1 in peer-failure-kill-*) echo 1 ;; esac)" 'BEGIN {
            limit["noticed"] = killed ? 200 : 2000; limit["left"] = 100; limit["aborted"] = limit["revoked"] = 1000 }
        NR == FNR && /: (aborted|revoked) in [0-9]+ ms, of which NCCL took [0-9]+$/ {
            how = $(NF - 8); whole = $(NF - 6)
            if (whole - $NF > 100) print how, whole, "ms, without NCCL", whole - $NF, "ms, limit 100"
            if ($NF + 100 > limit[how]) limit[how] = $NF + 100 }
        NR == FNR { next }
        /^rank [0-9]+: [a-z]+ [a-z]+ [0-9]+ ms$/ && $3 in limit && $5 > limit[$3] { print $3, $5, "ms, limit", limit[$3] }' \
        "$out/$1.log" "$out/$1.log" | sort | uniq | head -n 3
}

# failure_told NAME: what the ranks of a row took at most, or why it was skipped; false then.
failure_told() {
    note_of "$1" '%s' "$(grep -ho '\(noticed\|left\|aborted\|revoked\|shrunk\) [a-z]* [0-9]* ms' "$out/$1.log" |
        sort | uniq -c | sort -rn | awk '{ $1 = ""; if ($4 > m[$2]) m[$2] = $4 }
            END { for (k in m) printf "%s at most %d ms  ", k, m[k] }'; sed -n 's/.*, of which NCCL took \([0-9]*\)$/\1/p' "$out/$1.log" |
            sort -n | awk 'END { if (NR) printf "(NCCL itself %d)", $1 }')"
    if grep -q 'skipped, ' "$out/$1.log"; then
        note_of "$1" '%s' "$(grep -m 1 -o 'skipped, .*' "$out/$1.log")"
        return 1
    fi
}

# failure_step SCENARIO WARNINGS SETTING...: a row of doc/faults.md, by the program of test/e2e/t_peer_failure.sh. failure_name:
# other than the scenario's; counts: the sizes of calls.
failure_step() {
    local name=peer-failure-${failure_name:-$1} warnings=$2 scenario=$1 found late
    shift 2
    failure_wanted "$name" || return 0
    step "$name" 90 env LD_LIBRARY_PATH="$real_libraries" LD_PRELOAD="$library" ONEHOP_DEBUG=INFO "$@" \
        "$build/test/e2e/sim_app" --timeout 60 --nranks "$gpus" --counts "${counts:-1000,500}" --scenario "$scenario" \
        --victim $((gpus - 1)) --log "$out/$name.log"
    found=$(grep -c 'onehop: .* WARN ' "$out/$name.log")
    failure_told "$name" || return 0
    [ "$found" = "$warnings" ] || bad "$name: $found warnings, expected $warnings"
    late=$(failure_limits "$name")
    [ -z "$late" ] || bad "$name: $(tr '\n' ';' <<<"$late")"
    grep -q 'served by onehop' "$out/$name.log" || bad "$name: not served"
}

# failure_stock SCENARIO: the same with stock NCCL alone, for what its ncclCommAbort takes. (Not abort-replay, which does not
# come to its end: doc/faults.md.)
failure_stock() {
    local name=peer-failure-stock-$1
    failure_wanted "$name" || return 0
    step "$name" 90 env LD_LIBRARY_PATH="$real_libraries" "$build/test/e2e/sim_app" --timeout 60 --nranks "$gpus" \
        --counts 1000,500 --scenario "$1" --victim $((gpus - 1)) --log "$out/$name.log"
    failure_told "$name" || return 0
}

# fault_step NAME PATTERN SETTING... -- ARGUMENT...: a job of sim_app under a fault of the machine. It must end well, say
# what PATTERN has, and leave no file.
fault_step() {
    local name=faults-$1 pattern=$2 settings=() left
    shift 2
    while [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    place=$(mktemp -d /dev/shm/onehop-check.XXXXXX) || { bad "$name: no folder in /dev/shm"; return; }
    step "$name" 60 env LD_LIBRARY_PATH="$real_libraries" LD_PRELOAD="$library" ONEHOP_DEBUG=INFO \
        ONEHOP_SHM_DIR="$place" "${settings[@]}" "$build/test/e2e/sim_app" --timeout 50 --nranks "$gpus" --counts 1,5000 \
        "${@:2}"
    grep -qE "$pattern" "$out/$name.log" || bad "$name: no line has: $pattern"
    left=$(ls -A "$place")
    [ -z "$left" ] || bad "$name: left in shared memory: $left"
    rm -rf -- "${place:?}"
    place=
}

# Rows of doc/faults.md about set-ups and the end of processes. What must fail inside the driver, or by the n-th call of a
# function, needs the simulated libraries.
step_faults() {
    local served='served by onehop' descriptors
    fault_step exit "$served" -- --scenario exit --rounds 3
    fault_step fork "$served" -- --scenario fork --rounds 4
    fault_step fork-busy "$served" -- --scenario fork-busy --victim $((gpus - 1))
    fault_step exec "$served" -- --scenario exec --rounds 2
    ! grep -qE -- '-> .*/onehop-' "$out/faults-exec.log" ||
        bad "faults-exec: the new program has descriptors of onehop's"
    fault_step nowhere 'falls back to NCCL: .*cannot open the shared memory' ONEHOP_SHM_DIR=/nowhere --
    fault_step nothing-can-be-made 'falls back to NCCL: .*cannot open the shared memory' ONEHOP_SHM_DIR=/proc/self --
    for descriptors in 40 80 160; do # as few as stock NCCL can do with, wherever that is
        env LD_LIBRARY_PATH="$real_libraries" timeout -k 5 40 "$build/test/e2e/sim_app" --timeout 30 --nranks "$gpus" \
            --descriptors $descriptors >"$out/faults-descriptors-$descriptors-stock.log" 2>&1 || continue
        fault_step descriptors-$descriptors 'served by onehop|falls back to NCCL' -- --descriptors $descriptors
    done
}

# A rank that never comes; the others abort.
step_abort() {
    have_torch abort || return
    step abort 120 env LD_PRELOAD="$library" ONEHOP_DEBUG=INFO ONEHOP_STATS=1 \
        python3 "$top/test/gpu/torch_killed.py" absent "$gpus"
    served abort
}

# A rank that is killed; the others abort, and begin again in the same processes.
step_killed() {
    have_torch killed || return
    step killed 120 env LD_PRELOAD="$library" ONEHOP_DEBUG=INFO python3 "$top/test/gpu/torch_killed.py" abort "$gpus"
    grep -q 'served by onehop' "$out/killed.log" || bad "killed: not served"
    [ "$(grep -c "onehop: .* WARN .*rank $((gpus - 1)) (pid" "$out/killed.log")" = $((gpus - 1)) ] ||
        bad "killed: not every survivor has said who is gone, once"
    note_of killed '%s' "$(grep -ho 'free [0-9.]* s after the call' "$out/killed.log" | sort |
        tail -n 1)"
}

# Ranks that are killed, stopped, absent or wrong.
step_peer_failure() {
    rm -f "$out"/peer-failure-*.log
    survivors=$((gpus - 1))
    failure_step kill-call $survivors
    failure_step kill-fault $survivors
    failure_step kill-replay $survivors
    failure_step kill-destroy $survivors
    failure_step kill-trap $((2 * survivors)) ONEHOP_TRAP_AFTER=1
    failure_step kill-idle $survivors
    failure_step kill-poll $survivors
    counts=1000,100000 failure_step kill-large $survivors ONEHOP_MAX_BYTES=8K
    failure_step kill-init 0
    failure_step kill-attach 0
    failure_step kill-revoke $survivors
    failure_step kill-shrink $survivors
    failure_step exit-last 0
    failure_step quit-last 0
    failure_step destroy-first 0
    failure_step exit-call $survivors
    failure_step quit-call $survivors
    failure_step abort-peer $survivors
    counts=1000,100000 failure_step abort-large $survivors ONEHOP_MAX_BYTES=8K
    failure_step reset-call "$gpus"
    failure_step reset-idle $survivors
    failure_step abort-init 0
    failure_step abort-setup 0
    failure_step abort-call 0
    failure_step abort-replay 0
    failure_step abort-idle 0
    failure_step revoke-call 0
    failure_step revoke-replay 0
    failure_step shrink-call 0
    failure_step shrink-replay 0
    failure_step stop-long 1 ONEHOP_STALL_SECONDS=2
    failure_name=stop-silent failure_step stop-long 0
    failure_step absent 1 ONEHOP_STALL_SECONDS=2
    failure_step timeout "$gpus" ONEHOP_STALL_SECONDS=0 ONEHOP_TIMEOUT_SECONDS=1
    failure_step mismatch "$gpus" ONEHOP_CHECK_CALLS=1
    failure_step mismatch-type "$gpus" ONEHOP_CHECK_CALLS=1
    failure_step mismatch-op "$gpus" ONEHOP_CHECK_CALLS=1
    failure_step differ 1 ONEHOP_STALL_SECONDS=2
    failure_stock kill
    failure_stock abort-call
    failure_stock abort-idle
    for row in ${rows//,/ }; do
        [ -e "$out/peer-failure-$row.log" ] || bad "peer-failure: no row $row"
    done
}

run_steps "abort killed watchdog peer-failure faults" "$@"
