# SPDX-License-Identifier: MIT
# What must not hang, what must be told, and what must not be taken for a fault: rows of the table in doc/faults.md.
. "$abs_top_srcdir/test/e2e/lib.sh"

export ONEHOP_SHM_DIR=$shm
work=(--nranks 3 --counts 1000 --log "$out")

# What doc/faults.md promises, in ms, times the slack of a loaded machine. Here kernels are threads, many more than there
# are processors: how soon they leave says little.
slack=8
[ -z "${OH_SANITIZERS-}" ] || slack=30
too_slow() {
    awk -v slack=$slack 'BEGIN { limit["noticed"] = 200; limit["left"] = 2500; limit["aborted"] = limit["revoked"] = 1000 }
        /^rank [0-9]+: [a-z]+ [a-z]+ [0-9]+ ms$/ && $3 in limit && $5 > slack * limit[$3]' "$out"
}

# expect_told NAME LINES PATTERN: the run was right and in time, so many warnings were given, and each has the pattern.
expect_told() {
    run_first "$@"
    [ "$status" = 0 ] && [ "$(count_of 'served by onehop')" -gt 0 ] && [ "$(count_of ' WARN ')" = "$2" ] &&
        [ "$(count_of " WARN .*$3")" = "$2" ] && [ -z "$(too_slow)" ]
    tap_point $? "$1" "$(diagnosis "$2 warnings: $3")"
}

# scenario NAME VICTIM [ARGUMENT...]
scenario() {
    run_work --scenario "$1" --victim "$2" "${@:3}"
}

# of KIND [ROOT]: what the kind is called in lines, with 1000 floats; use KIND [ROOT]: calls are of this kind from here on.
of() {
    case $1 in
    allreduce) echo "a sum of 1000 x float32" ;;
    allgather) echo "an all-gather of 1000 x float32" ;;
    reducescatter) echo "a reduce-scatter, sum of 1000 x float32" ;;
    broadcast) echo "a broadcast from ${2-0} of 1000 x float32" ;;
    esac
}
use() {
    work=(--nranks 3 --counts 1000 --log "$out" --collectives "$1" --root "${2-0}")
    departed="rank 1 \\(pid [0-9]+, [0-9]+ calls, the last $(of "$@"), oneshot"
    # (On a loaded machine a rank may not have been seen waiting yet.)
    waits="waits for [0-9]+ s in call 2, $(of "$@"), oneshot, for .*rank 2 \\(pid [0-9]+, 1 calls"
}

# A rank is killed. Each of the others says so once: who, which process, and its last call.
use allgather
expect_told "killed in a call: the others get an error, wait on, abort, and make a new communicator" 2 "$departed" \
    -- scenario kill-call 1
use reducescatter
expect_told "killed in a graph's replay: likewise" 2 "$departed" -- scenario kill-replay 1
expect_told "the same after ncclCommSuspend" 2 "$departed" -- scenario kill-suspended 1
for end in destroy finalize; do
    use $([ $end = destroy ] && echo broadcast 1 || echo allreduce)
    expect_told "killed in a call, the others $end the communicator: an error, kernels leave" 2 "$departed" \
        -- scenario kill-$end 1
done
ONEHOP_TRAP_AFTER=1 scenario kill-trap 1
[ "$status" = 0 ] && [ "$(count_of " WARN .*$departed")" = 2 ] && [ "$(count_of ' WARN .*ONEHOP_TRAP_AFTER is over')" = 2 ]
tap_point $? "killed in a call, ONEHOP_TRAP_AFTER=1: the others' kernels trap" "$(diagnosis)"
expect_told "killed between calls, another follows: an error" 2 "$departed" -- scenario kill-idle 1
use broadcast
expect_told "killed between calls: no error before another call, which is refused" 2 "$departed" -- scenario kill-poll 1
use reducescatter
SIMNODE_NCCL_LAZY=1 ONEHOP_MAX_BYTES=16K expect_told "killed in a call that NCCL serves: an error" 2 "$departed" \
    -- run_work --counts 1000,100000 --scenario kill-large --victim 1
use allreduce
SIMNODE_NCCL_LAZY=1 ONEHOP_MAX_BYTES=8K run_work --counts 1000,100000 --scenario abort-large --victim 1
expect_told "a rank aborts, the others wait for it in a call that NCCL serves: an error" 2 "$departed"
expect_right "killed in a call, without onehop: the others abort" -- run_stock --nranks 3 --scenario kill --victim 1
use broadcast 2
expect_told "ended by SIGSEGV in a call: likewise" 2 "$departed" -- scenario kill-fault 1
expect_told "killed before a communicator is made: the others abort it, and make another" 0 '' -- scenario kill-init 1
expect_told "killed in a set-up in the background: likewise" 0 '' -- scenario kill-attach 1

expect_told "killed in a call, two ranks a process: likewise" 2 'rank [23] \(pid' \
    -- run_app --nranks 4 --local 2 --counts 1000 --scenario kill-call --victim 2 --collectives reducescatter
ONEHOP_ALGO=twoshot expect_told "killed in a call, rank 0, twoshot: likewise" 2 'rank 0 \(pid' \
    -- run_app --nranks 3 --counts 300000 --scenario kill-call --victim 0
scenario kill-setup 1 --rank-env 1:SIMNODE_KILL=cuIpcOpenMemHandle_v2:1
[ "$status" = 0 ] && [ "$(count_of "falls back to NCCL: (a rank's process has ended|rank [02]: the memory of rank 1 )")" = 2 ]
tap_point $? "killed in set-up: the others fall back at once, and make a new communicator" "$(diagnosis)"

# Another thread aborts.
for state in call replay idle; do
    case $state in
    call) use broadcast ;;
    replay) use allgather ;;
    *) use allreduce ;;
    esac
    expect_told "aborted by another thread, $state: returns, and a new communicator works" 0 '' \
        -- scenario abort-$state 2
done
SIMNODE_QUEUE=8 expect_told "aborted by another thread, while a launch blocks: likewise" 0 '' -- scenario abort-launch 2

use reducescatter
scenario abort-first 1 --nranks 2
expect_told "aborted by another thread, while the first call waits: it returns an error, and a new communicator works" 0 ''

expect_told "aborted by another thread, while NCCL makes it: likewise" 0 '' -- scenario abort-init 1
expect_told "aborted by another thread, in the set-up: likewise" 0 '' -- scenario abort-setup 1
expect_counts "... and the set-up was under way" '2+:falls back to NCCL: it was ended before its ranks had agreed'

# Revoked, and shrunk with the abort flag: later calls get NCCL's answer, the child is served.
for state in call replay idle; do
    case $state in
    call) use allgather ;;
    replay) use broadcast ;;
    *) use reducescatter ;;
    esac
    expect_told "revoked, $state: kernels leave, NCCL refuses calls, a new communicator works" 0 '' \
        -- scenario revoke-$state 1
    expect_counts "shrunk with the abort flag, $state: the child is served" '2:nranks 2: served by onehop' \
        -- scenario shrink-$state 1
    expect_told "shrunk with the abort flag, $state: kernels leave" 0 ''
done
expect_told "killed in a call, the others revoke: NCCL refuses calls" 2 "$departed" -- scenario kill-revoke 1
expect_counts "killed in a call, the others shrink: the child is served" '2:nranks 2: served by onehop' \
    -- scenario kill-shrink 1
expect_told "killed in a call, the others shrink: they were told" 2 "$departed"

expect_told "a rank aborts, the others wait for it: an error" 2 "$departed; it has aborted" -- scenario abort-peer 1

# A rank is stopped; it never makes its call; for too long.
use allgather
ONEHOP_STALL_SECONDS=1 expect_told "stopped: one report; all go on, with right results" 1 "$waits" \
    -- scenario stop 2 --rounds 3
use broadcast
ONEHOP_STALL_SECONDS=2 expect_told "stopped for 5 s: one report; all go on, with right results" 1 "$waits" \
    -- scenario stop-long 2
expect_told "stopped for 5 s, where reports come after 60: nothing is said; likewise" 0 '' -- scenario stop-long 2
ONEHOP_STALL_SECONDS=1 expect_told "absent in a broadcast: one report; abort works" 1 "$waits" -- scenario absent 2
use broadcast 2
ONEHOP_STALL_SECONDS=1 expect_told "absent, the root of a broadcast: likewise" 1 "$waits" -- scenario absent 2
use reducescatter
ONEHOP_STALL_SECONDS=1 expect_told "absent: one report; abort works" 1 "$waits" -- scenario absent 2
ONEHOP_STALL_SECONDS=0 ONEHOP_TIMEOUT_SECONDS=1 scenario timeout 2
expect_told "timeout: an error on every rank, also on the absent one" 3 'now return ncclRemoteError'
[ "$(count_of ' WARN .*for .*rank 2 \(pid .*ONEHOP_TIMEOUT_SECONDS is over')" -ge 1 ]
tap_point $? "timeout: it is said for whom a rank has waited" "$(diagnosis)"

# Calls that do not match.
for counts in 1000,500 1000,3000000; do
    run_app --nranks 3 --counts $counts --scenario mismatch --victim 1 --rank-env 0:ONEHOP_CHECK_CALLS=1
    mine='a sum of 1000 x float32 on rank [02]' theirs="a sum of ${counts#*,} x float32 on rank 1"
    [ "$status" = 0 ] && [ "$(count_of " WARN .*call 2 is ($mine and $theirs|$theirs and $mine):")" -ge 1 ]
    tap_point $? "mismatch of $counts: both sides' arguments, an error on every rank" "$(diagnosis)"
done
# differ WHAT KIND THEIRS: a call of kind KIND and, on rank 1, THEIRS.
differ() {
    local mine theirs="$3 on rank 1"
    mine="$(of "$2") on rank [02]"
    run_app --nranks 3 --counts 1000 --collectives "$2" --root 0 --scenario "mismatch-$1" --victim 1 --rank-env 0:ONEHOP_CHECK_CALLS=1
    expect_counts "mismatch of $1, $2: likewise" "1+: WARN .*call 2 is ($mine and $theirs|$theirs and $mine):"
}
differ type allreduce 'a sum of 1000 x int32'
differ type allgather 'an all-gather of 1000 x int32'
differ op reducescatter 'a reduce-scatter, max of 1000 x float32'
differ root broadcast "$(of broadcast 1)"
differ kind allreduce "$(of broadcast)"
differ kind allgather "$(of broadcast)"
differ kind broadcast "$(of allreduce)"
ONEHOP_STALL_SECONDS=1 run_app --nranks 3 --counts 1000,500 --log "$out" --scenario differ --victim 1
mine='a sum of 1000 x float32, oneshot on rank [02]' theirs='a sum of 500 x float32, oneshot on rank 1'
expect_told "mismatch of 1000,500 without ONEHOP_CHECK_CALLS: the report tells it, abort works" 1 \
    "the calls differ: call 2 is ($mine and $theirs|$theirs and $mine)"
ONEHOP_CHECK_CALLS=1 expect_served "ONEHOP_CHECK_CALLS=1 and calls that match" \
    -- run_app --nranks 3 --counts 1,1000,5000 --collectives $kinds --batch 12 --iterations 12 --graph 3
expect_counts "ONEHOP_CHECK_CALLS=1 and calls that match: no warning" '0: WARN '

use allreduce
# A rank ends early, without ncclCommDestroy.
expect_told "ends after its last call: no fault" 0 '' -- scenario exit-last 1
expect_told "ends, and another call follows: an error" 2 "$departed" -- scenario exit-call 1
expect_told "ends by _exit after its last call: no fault" 0 '' -- scenario quit-last 1
use broadcast
expect_told "ends by _exit, and another call follows: an error" 2 "$departed" -- scenario quit-call 1

# ncclCommDestroy waits for calls that are on the GPU, so that the process may end. (The others' parts are needed twice.)
expect_told "the same in a replay after ncclCommSuspend" 0 '' -- run_app --nranks 3 --counts 300000 --scenario destroy-suspended --victim 1
ONEHOP_ALGO=twoshot expect_told "the others destroy and end while a call waits for this rank: right" 0 '' \
    -- run_app --nranks 3 --counts 300000 --scenario destroy-first --victim 1

# A rank resets its device: its memory and its handles are gone, and another context has the old one's handle.
scenario reset-call 1
expect_told "a device is reset, a call follows: an error there, and on the others" 3 \
    '(launching a call: CUDA_ERROR_CONTEXT_IS_DESTROYED: calls now return ncclUnhandledCudaError|rank 1 failed the communicator)'
expect_told "a device is reset, the communicator aborted: an error on the others" 2 "$departed; it has aborted" \
    -- scenario reset-abort 1

expect_told "a device is reset, the process ends: an error on the others" 2 "$departed" -- scenario reset-idle 1

expect_no_files
tap_done
