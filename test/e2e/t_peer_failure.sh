# SPDX-License-Identifier: MIT
# What must not hang, what must be told, and what must not be taken for a fault: rows of the table in doc/faults.md.
. "$abs_top_srcdir/test/e2e/lib.sh"

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

# told SCENARIO VICTIM KIND[:ROOT] LINES PATTERN NAME [ARGUMENT...]: expect_told of such a run. DEPARTED at the head of the
# pattern is the line about victim 1, which has departed; WAITS the one about ranks that wait for victim 2.
told() {
    local pattern=$5
    use ${3/:/ }
    [ "${5#DEPARTED}" = "$5" ] || pattern=$departed${5#DEPARTED}
    [ "$5" != WAITS ] || pattern=$waits
    expect_told "$6" "$4" "$pattern" -- scenario "$1" "$2" "${@:7}"
}

# A rank is killed. Each of the others says so once: who, which process, and its last call.
told kill-call 1 allgather 2 DEPARTED "killed in a call: the others get an error, wait on, abort, and make a new communicator"
told kill-replay 1 reducescatter 2 DEPARTED "killed in a graph's replay: likewise"
told kill-suspended 1 reducescatter 2 DEPARTED "the same after ncclCommSuspend"
told kill-destroy 1 broadcast:1 2 DEPARTED "killed in a call, the others destroy the communicator: an error, kernels leave"
told kill-finalize 1 allreduce 2 DEPARTED "killed in a call, the others finalize the communicator: an error, kernels leave"
ONEHOP_TRAP_AFTER=1 expect_counts "killed in a call, ONEHOP_TRAP_AFTER=1: the others' kernels trap" "2: WARN .*$departed" \
    '2: WARN .*ONEHOP_TRAP_AFTER is over' -- scenario kill-trap 1
told kill-idle 1 allreduce 2 DEPARTED "killed between calls, another follows: an error"
told kill-poll 1 broadcast 2 DEPARTED "killed between calls: no error before another call, which is refused"
SIMNODE_NCCL_LAZY=1 ONEHOP_MAX_BYTES=16K told kill-large 1 reducescatter 2 DEPARTED \
    "killed in a call that NCCL serves: an error" --counts 1000,100000
SIMNODE_NCCL_LAZY=1 ONEHOP_MAX_BYTES=8K told abort-large 1 allreduce 2 DEPARTED \
    "a rank aborts, the others wait for it in a call that NCCL serves: an error" --counts 1000,100000
expect_right "killed in a call, without onehop: the others abort" -- run_stock --nranks 3 --scenario kill --victim 1
told kill-fault 1 broadcast:2 2 DEPARTED "ended by SIGSEGV in a call: likewise"
told kill-init 1 broadcast:2 0 '' "killed before a communicator is made: the others abort it, and make another"
told kill-attach 1 broadcast:2 0 '' "killed in a set-up in the background: likewise"
expect_told "killed in a call, two ranks a process: likewise" 2 'rank [23] \(pid' \
    -- run_app --nranks 4 --local 2 --counts 1000 --scenario kill-call --victim 2 --collectives reducescatter
ONEHOP_ALGO=twoshot expect_told "killed in a call, rank 0, twoshot: likewise" 2 'rank 0 \(pid' \
    -- run_app --nranks 3 --counts 300000 --scenario kill-call --victim 0
expect_counts "killed in set-up: the others fall back at once, and make a new communicator" \
    "2:falls back to NCCL: (a rank's process has ended|rank [02]: the memory of rank 1 )" \
    -- scenario kill-setup 1 --rank-env 1:SIMNODE_KILL=cuIpcOpenMemHandle_v2:1

# Another thread aborts.
told abort-call 2 broadcast 0 '' "aborted by another thread, call: returns, and a new communicator works"
told abort-replay 2 allgather 0 '' "aborted by another thread, replay: returns, and a new communicator works"
told abort-idle 2 allreduce 0 '' "aborted by another thread, idle: returns, and a new communicator works"
SIMNODE_QUEUE=8 told abort-launch 2 allreduce 0 '' "aborted by another thread, while a launch blocks: likewise"
told abort-first 1 reducescatter 0 '' \
    "aborted by another thread, while the first call waits: it returns an error, and a new communicator works" --nranks 2
told abort-init 1 reducescatter 0 '' "aborted by another thread, while NCCL makes it: likewise"
told abort-setup 1 reducescatter 0 '' "aborted by another thread, in the set-up: likewise"
expect_counts "... and the set-up was under way" '2+:falls back to NCCL: it was ended before its ranks had agreed'

# Revoked, and shrunk with the abort flag: later calls get NCCL's answer, the child is served.
for row in call:allgather replay:broadcast idle:reducescatter; do
    state=${row%:*} kind=${row#*:}
    told revoke-$state 1 $kind 0 '' "revoked, $state: kernels leave, NCCL refuses calls, a new communicator works"
    told shrink-$state 1 $kind 0 '' "shrunk with the abort flag, $state: kernels leave"
    expect_counts "shrunk with the abort flag, $state: the child is served" '2:nranks 2: served by onehop'
done
told kill-revoke 1 reducescatter 2 DEPARTED "killed in a call, the others revoke: NCCL refuses calls"
told kill-shrink 1 reducescatter 2 DEPARTED "killed in a call, the others shrink: they were told"
expect_counts "killed in a call, the others shrink: the child is served" '2:nranks 2: served by onehop'
told abort-peer 1 reducescatter 2 'DEPARTED; it has aborted' "a rank aborts, the others wait for it: an error"

# A rank is stopped; it never makes its call; for too long.
told stop-long 2 broadcast 0 '' "stopped for 5 s, where reports come after 60: nothing is said; all go on, with right results"
export ONEHOP_STALL_SECONDS=1
told stop 2 allgather 1 WAITS "stopped: one report; all go on, with right results" --rounds 3
ONEHOP_STALL_SECONDS=2 told stop-long 2 broadcast 1 WAITS "stopped for 5 s: one report; all go on, with right results"
told absent 2 broadcast 1 WAITS "absent in a broadcast: one report; abort works"
told absent 2 broadcast:2 1 WAITS "absent, the root of a broadcast: likewise"
told absent 2 reducescatter 1 WAITS "absent: one report; abort works"
ONEHOP_STALL_SECONDS=0 ONEHOP_TIMEOUT_SECONDS=1 told timeout 2 reducescatter 3 'now return ncclRemoteError' \
    "timeout: an error on every rank, also on the absent one"
expect_counts "timeout: it is said for whom a rank has waited" \
    '1+: WARN .*for .*rank 2 \(pid .*ONEHOP_TIMEOUT_SECONDS is over'
unset ONEHOP_STALL_SECONDS

# Calls that do not match.
for counts in 1000,500 1000,3000000; do
    mine='a sum of 1000 x float32 on rank [02]' theirs="a sum of ${counts#*,} x float32 on rank 1"
    expect_counts "mismatch of $counts: both sides' arguments, an error on every rank" \
        "1+: WARN .*call 2 is ($mine and $theirs|$theirs and $mine):" \
        -- run_app --nranks 3 --counts $counts --scenario mismatch --victim 1 --rank-env 0:ONEHOP_CHECK_CALLS=1
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

# A rank ends early, without ncclCommDestroy.
told exit-last 1 allreduce 0 '' "ends after its last call: no fault"
told exit-call 1 allreduce 2 DEPARTED "ends, and another call follows: an error"
told quit-last 1 allreduce 0 '' "ends by _exit after its last call: no fault"
told quit-call 1 broadcast 2 DEPARTED "ends by _exit, and another call follows: an error"

# ncclCommDestroy waits for calls that are on the GPU, so that the process may end. (The others' parts are needed twice.)
expect_told "the same in a replay after ncclCommSuspend" 0 '' -- run_app --nranks 3 --counts 300000 --scenario destroy-suspended --victim 1
ONEHOP_ALGO=twoshot expect_told "the others destroy and end while a call waits for this rank: right" 0 '' \
    -- run_app --nranks 3 --counts 300000 --scenario destroy-first --victim 1

# A rank resets its device: its memory and its handles are gone, and another context has the old one's handle.
told reset-call 1 broadcast 3 \
    '(launching a call: CUDA_ERROR_CONTEXT_IS_DESTROYED: calls now return ncclUnhandledCudaError|rank 1 failed the communicator)' \
    "a device is reset, a call follows: an error there, and on the others"
told reset-abort 1 broadcast 2 'DEPARTED; it has aborted' "a device is reset, the communicator aborted: an error on the others"
told reset-idle 1 broadcast 2 DEPARTED "a device is reset, the process ends: an error on the others"

expect_no_files
tap_done
