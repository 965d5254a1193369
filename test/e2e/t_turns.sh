# SPDX-License-Identifier: MIT
# Orders of a few calls (sim_turns) in which onehop could deadlock, give a wrong number or raise a false alarm: right with
# stock NCCL, which shows that they are valid, and with onehop.
. "$abs_top_srcdir/test/e2e/lib.sh"

turns=$abs_top_builddir/test/e2e/sim_turns
export SIMNODE_NCCL_BACKGROUND=1 SIMNODE_NCCL_DELAY_US=2000

# expect_right CASE NAME [NAME=VALUE...]: the case, also with stock NCCL; onehop serves its communicators, unless asked for.
expect_right() {
    if [ "$1" != differ ] && [ "$1" != abort ] && [ "$1" != suspend ]; then # no valid program; with NCCL two threads use what one has freed
        run_limited timeout "$limit" "$turns" "$1"
        judge "$status" "$2, stock NCCL"
    fi
    run_limited env LD_PRELOAD="$plugin" "${@:3}" timeout "$limit" "$turns" "$1"
    [ "$status" = 0 ] && { [ "$1" = stranger ] || [ "$1" = group ] || [ "$(count_of 'served by onehop')" -ge 2 ]; }
    judge $? "$2"
}

expect_right replay "a communicator is destroyed behind a replay, and the process ends: the other rank gets the data"
expect_right replay "the same where replays are not ordered with other calls" ONEHOP_GRAPH_MIXING=0
expect_right pending "a non-blocking communicator is destroyed behind calls, and the process ends: the other rank gets the data"
SIMNODE_NCCL_DELAY_US=300000 expect_right behind "NCCL launches a call of a communicator that onehop does not know late: the order is the same on all ranks"
expect_right fallback "a communicator falls back in a group, and NCCL launches its call in the background: onehop launches the others"
expect_right destroy "communicators are destroyed in a group behind calls, and the process ends: the others get the data"
expect_right finalize "the same, finalized"
expect_right differ "calls of one communicator of a group differ: no wrong result of the other" ONEHOP_CHECK_CALLS=1
SIMNODE_NCCL_VERSION=22907 expect_right stranger "ranks of two jobs are no communicator, whatever has no key"
expect_right moved "a variable that NCCL has set to a handle is used for another one before the group's end"
[ "$(count_of 'served by onehop')" = 4 ]
judge $? "onehop serves all of these communicators"
touch "$scratch/stats"
expect_right strange "calls that onehop does not know" ONEHOP_INVARIANT=1 ONEHOP_STATS_FILE="$scratch/stats"
[ "$(count_of 'WARN not invariant: .* does not know: it was suspended, or made by')" = 1 ] &&
    [ "$(grep -c '"nranks":0,.*"fallback":2,.*"reason":"suspended, or made by' "$scratch/stats")" = 1 ]
judge $? "... are counted unless NCCL rejects them, and the reason has ncclCommSuspend" "$(cat "$scratch/stats")"
run_limited env LD_PRELOAD="$plugin" ONEHOP_COMMS=size=3 timeout "$limit" "$turns" strange
[ "$status" = 0 ] && [ "$(count_of 'falls back to NCCL: ONEHOP_COMMS leaves it out: 2 ranks, name "of.turns"$')" = 2 ] &&
    [ "$(count_of 'stats: .* name "of.turns"$')" = 2 ]
judge $? "a communicator's name cannot break a line of the log"
export ONEHOP_MAX_BYTES=64K
SIMNODE_NCCL_DELAY_US=300000 expect_right reject "NCCL rejects ncclCommFinalize: calls go on"
expect_right abort "a thread waits in ncclCommFinalize, and another one aborts: an error, and NCCL is not called"
SIMNODE_NCCL_DELAY_US=1500000 run_limited env LD_PRELOAD="$plugin" timeout "$limit" "$turns" cut
judge "$status" "another thread aborts a communicator of a group that waits for NCCL: the other one's call is made, or fails"
# As in the case before, NCCL is no measure. Freed memory is filled, so that a use of it is seen.
run_limited env LD_PRELOAD="$plugin" MALLOC_PERTURB_=165 timeout "$limit" "$turns" abandon
judge "$status" "the same while NCCL waits: onehop uses nothing that the abort has freed"
expect_right suspend "the same in ncclCommSuspend"
run_limited env LD_PRELOAD="$plugin" MALLOC_ARENA_MAX=1 timeout "$limit" "$turns" revoke
judge "$status" "the same in ncclCommRevoke: onehop changes nothing that the abort has freed"
SIMNODE_NCCL_EARLY_ROOT=1 expect_right root "the root of NCCL's broadcast ends the communicator before the other rank calls: no error"
expect_right shrink "ranks shrink to others than before"
[ "$(count_of 'served by onehop')" = 6 ]
judge $? "each of these communicators is served"
SIMNODE_NCCL_LAZY=1 expect_right group "a thread waits in ncclGroupEnd, and another one aborts or revokes: an error"
run_limited env LD_PRELOAD="$plugin" MALLOC_PERTURB_=165 timeout "$limit" "$turns" between
judge "$status" "the same before ncclGroupEnd: onehop uses nothing that the abort has freed"
# NCCL is no measure: none of its ranks launches the group, which connects all communicators before.
run_limited env LD_PRELOAD="$plugin" timeout "$limit" "$turns" beside
judge "$status" "the same: the other communicators of the group fail, on all ranks"
expect_right refuse "a group with a call of a communicator that is revoked: NCCL's error, and nothing of it runs"
expect_right shared "a rank leaves, while a call of another communicator waits on the stream: no error"
expect_right unknown "the same; onehop does not know the second communicator"
expect_right late "the same behind a call that NCCL launches in the background: no error"
SIMNODE_NCCL_DELAY_US=300000 expect_right send "a rank leaves that a send of a group does not need: no error"
SIMNODE_NCCL_DELAY_US=300000 SIMNODE_NCCL_ANSWER_US=20000 expect_right stale "a thread reads an old answer of ncclCommGetAsyncError: it says nothing of what has begun since"
[ "$(count_of 'served by onehop')" = 4 ]
judge $? "onehop serves the split, too"
expect_right create "a group makes a non-blocking communicator: NCCL's and onehop's calls of it are executed"
SIMNODE_NCCL_VERSION=22907 run_limited env LD_PRELOAD="$plugin" timeout "$limit" "$turns" grown
judge "$status" "a communicator that has grown ends in a group, without a call, and so does the process"
expect_no_files
SIMNODE_NCCL_LAZY=1 expect_right self "one rank sends to itself in the first group: its NCCL waits for no other rank"
[ "$(count_of 'served by onehop')" = 4 ]
judge $? "onehop serves both communicators"
expect_right partner "NCCL has launched a group in the background: one of its communicators tells it for all, whose streams may end"
SIMNODE_NCCL_DELAY_US=200 expect_right watched "a thread notes that NCCL has launched a call, while another thread is told so and ends the stream"
CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_CUMEM_ENABLE=0 expect_right queue "a rank is late to a first call that another rank has left to NCCL: it does not wait for that rank's set-up"
tap_done
