# SPDX-License-Identifier: MIT
# Orders of a few calls (sim_turns) in which onehop could deadlock, give a wrong number or raise a false alarm: right with
# stock NCCL, which shows that they are valid, and with onehop.
. "$abs_top_srcdir/test/e2e/lib.sh"

turns=$abs_top_builddir/test/e2e/sim_turns
export SIMNODE_NCCL_BACKGROUND=1 SIMNODE_NCCL_DELAY_US=2000

# expect_onehop CASE NAME [COUNT...]: the case with onehop; it serves, or there are these counts.
expect_onehop() {
    local counts=("${@:3}")
    [ $# -gt 2 ] || counts=('2+:served by onehop')
    expect_counts "$2" "${counts[@]}" -- run_limited env LD_PRELOAD="$plugin" timeout "$limit" "$turns" "$1"
}

# expect_both CASE NAME [COUNT...]: the same, and the case with stock NCCL.
expect_both() {
    expect_counts "$2, stock NCCL" -- run_limited timeout "$limit" "$turns" "$1"
    expect_onehop "$@"
}

expect_both replay "a communicator is destroyed behind a replay, and the process ends: the other rank gets the data"
ONEHOP_GRAPH_MIXING=0 expect_both replay "the same where replays are not ordered with other calls"
expect_both pending "a non-blocking communicator is destroyed behind calls, and the process ends: the other rank gets the data"
SIMNODE_NCCL_DELAY_US=300000 expect_both behind "NCCL launches a call of a communicator that onehop does not know late: the order is the same on all ranks"
expect_both fallback "a communicator falls back in a group, and NCCL launches its call in the background: onehop launches the others"
expect_both destroy "communicators are destroyed in a group behind calls, and the process ends: the others get the data"
expect_both finalize "the same, finalized"
# No valid program.
ONEHOP_CHECK_CALLS=1 expect_onehop differ "calls of one communicator of a group differ: no wrong result of the other"
SIMNODE_NCCL_VERSION=22907 expect_both stranger "ranks of two jobs are no communicator, whatever has no key" 0:FAIL
expect_both moved "a variable that NCCL has set to a handle is used for another one before the group's end: all are served" \
    '4:served by onehop'
touch "$scratch/stats"
ONEHOP_INVARIANT=1 ONEHOP_STATS_FILE=$scratch/stats expect_both strange "calls that onehop does not know" \
    '2+:served by onehop' '1:WARN not invariant: .* does not know: it was suspended, or made by'
[ "$(grep -c '"nranks":0,.*"fallback":2,.*"reason":"suspended, or made by' "$scratch/stats")" = 1 ]
tap_point $? "... are counted unless NCCL rejects them, and the reason has ncclCommSuspend" "$(cat "$scratch/stats")"
ONEHOP_COMMS=size=3 expect_onehop strange "a communicator's name cannot break a line of the log" \
    '2:falls back to NCCL: ONEHOP_COMMS leaves it out: 2 ranks, name "of.turns"$' '2:stats: .* name "of.turns"$'
export ONEHOP_MAX_BYTES=64K
SIMNODE_NCCL_DELAY_US=300000 expect_both reject "NCCL rejects calls and ncclCommFinalize while it launches a call: calls go on"
# NCCL is no measure where two threads use what one of them frees. Freed memory is filled, so that a use of it is seen.
expect_onehop abort "a thread waits in ncclCommFinalize, and another one aborts: an error, and NCCL is not called"
expect_onehop quit "the same in ncclCommDestroy: the communicator ends once"
SIMNODE_NCCL_DELAY_US=1500000 MALLOC_PERTURB_=165 expect_onehop fallen "another thread aborts a communicator that has fallen back in a group while NCCL launches it: NCCL is not asked for its state"
SIMNODE_NCCL_DELAY_US=1500000 expect_onehop cut "another thread aborts a communicator of a group that waits for NCCL: the other one's call is made, or fails"
MALLOC_PERTURB_=165 expect_onehop abandon "the same while NCCL waits: onehop uses nothing that the abort has freed" 0:FAIL
SIMNODE_NCCL_ANSWER_US=1000000 MALLOC_PERTURB_=165 expect_onehop asked "a thread asks for the state of a communicator, and another one aborts: onehop uses nothing that the abort has freed" 0:FAIL
MALLOC_PERTURB_=165 expect_onehop orphan "a group splits a communicator that another thread aborts before its end: onehop uses nothing that the abort has freed" 0:FAIL
expect_no_files
SIMNODE_QUEUE=4 expect_onehop replace "a launch blocks, and another thread aborts and makes a communicator, for which the call does not count"
expect_onehop suspend "a thread waits in ncclCommSuspend, and another one aborts: an error"
expect_onehop pause "ncclCommSuspend in a group with calls of the communicator is refused, whatever call is the last" 0:FAIL
MALLOC_ARENA_MAX=1 expect_onehop revoke "the same in ncclCommRevoke: onehop changes nothing that the abort has freed" 0:FAIL
SIMNODE_NCCL_EARLY_ROOT=1 expect_both root "the root of NCCL's broadcast ends the communicator before the other rank calls: no error"
expect_both shrink "ranks shrink to others than before: each of these communicators is served" '6:served by onehop'
SIMNODE_NCCL_LAZY=1 expect_both group "a thread waits in ncclGroupEnd, and another one aborts or revokes: an error" 0:FAIL
MALLOC_PERTURB_=165 expect_onehop between "the same before ncclGroupEnd: onehop uses nothing that the abort has freed"
# NCCL is no measure: none of its ranks launches the group, which connects all communicators before.
expect_onehop beside "the same: the other communicators of the group fail, on all ranks"
expect_both refuse "a group with a call of a communicator that is revoked: NCCL's error, and nothing of it runs"
expect_both shared "a rank leaves, while a call of another communicator waits on the stream: no error"
expect_both unknown "the same; onehop does not know the second communicator"
expect_both late "the same behind a call that NCCL launches in the background: no error"
SIMNODE_NCCL_DELAY_US=300000 expect_both send "a rank leaves that a send of a group does not need: no error"
SIMNODE_NCCL_DELAY_US=300000 SIMNODE_NCCL_ANSWER_US=20000 expect_both stale "a thread reads an old answer of ncclCommGetAsyncError: it says nothing of what has begun since, and onehop serves the split" \
    '4:served by onehop'
expect_both create "a group makes a non-blocking communicator: NCCL's and onehop's calls of it are executed"
SIMNODE_NCCL_VERSION=22907 expect_onehop grown "a communicator that has grown ends in a group, without a call, and so does the process" 0:FAIL
expect_no_files
SIMNODE_NCCL_LAZY=1 expect_both self "one rank sends to itself in the first group: its NCCL waits for no other rank" \
    '4:served by onehop'
expect_both last "a non-blocking communicator is finalized in the group of its last calls, which NCCL launches in the background"
expect_both partner "NCCL has launched a group in the background: one of its communicators tells it for all, whose streams may end"
SIMNODE_NCCL_DELAY_US=200 expect_both watched "a thread notes that NCCL has launched a call, while another thread is told so and ends the stream"
CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_CUMEM_ENABLE=0 expect_both queue "a rank is late to a first call that another rank has left to NCCL: it does not wait for that rank's set-up"
tap_done
