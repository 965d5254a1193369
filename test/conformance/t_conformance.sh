# SPDX-License-Identifier: MIT
# NCCL's contract on the simulated node, by onehop-conformance: with the plugin, and against the simulated NCCL alone.
# Quick cases with fresh random inputs; the seed is in the log. `onehop-conformance --seed N --cases NAME` repeats one.
. "$abs_top_srcdir/test/e2e/lib.sh"

unset ONEHOP_DEBUG ONEHOP_STATS
export ONEHOP_SHM_DIR=$shm
patience=2 # the machine may be busy with other things
[ -z "${OH_SANITIZERS-}" ] || patience=6

# conform NAME TOPOLOGY PRELOAD ARGUMENT...: one point; what failed, and with which seed, is its diagnosis.
conform() {
    limit=$((300 * patience)) SIMNODE_TOPOLOGY=$2 run_with "$3" "$conformance" --patience $patience "${@:4}"
    tap_point "$status" "$1: $(count_of '^ok') cases" "status $status
$(grep -e '^not ok' -A 1 -e '# seed' "$out" | head -n 60)
$(tail -n 3 "$out")"
    grep '^# seed' "$out" | head -n 1
}

conform "simulated NCCL alone" h200x4 '' --ranks 3 --modes processes
conform "simulated NCCL alone, threads, one thread with groups" h200x4 '' --ranks 4 --modes threads,group --cases comm,group
SIMNODE_NCCL_VERSION=22902 conform "simulated NCCL alone, communicators that grow" h200x4 '' --ranks 4 \
    --modes processes,threads --cases comm-grow,comm-shrink
SIMNODE_NCCL_VERSION=22907 conform "simulated NCCL without the flaw of one rank" h200x4 '' --ranks 2 --cases comm-alone
conform "simulated NCCL without fp8" a100x4-direct '' --ranks 4 --modes processes --cases sum,min,moved
conform "onehop without fp8" a100x4-direct "$plugin" --ranks 4 --modes processes --cases sum,min,moved --expect-served
SIMNODE_NCCL_VERSION=22902 conform "onehop, communicators that grow" h200x4 "$plugin" --ranks 2,3,4 \
    --cases comm-grow,comm-shrink --expect-served
ONEHOP_MAX_BYTES=64K conform "onehop, the cap and one element over" h200x4 "$plugin" --ranks 2,4 --modes processes \
    --cases largest-served --full
CUDA_DEVICE_MAX_CONNECTIONS=1 conform "onehop, one hardware queue" h200x4 "$plugin" --ranks 2 \
    --cases stream,group,graph --expect-served
ONEHOP_COLLECTIVES=allreduce conform "onehop serves allreduce, NCCL the others" h200x4 "$plugin" --ranks 2,3 \
    --modes processes --cases stream,graph-mixed,graph-others
conform "onehop, processes" h200x4 "$plugin" --ranks 2,3,4 --modes processes --expect-served
conform "onehop, threads" h200x4 "$plugin" --ranks 2,3 --modes threads --expect-served
conform "onehop, one thread with groups" h200x4 "$plugin" --ranks 4 --modes group --expect-served
conform "onehop, eight ranks" h200x8 "$plugin" --ranks 8 --modes processes --expect-served \
    --types float32,bfloat16,int8 --cases counts,alignment,group
conform "onehop, eight ranks, all types" h200x8 "$plugin" --ranks 8 --modes processes --expect-served \
    --cases sum,prod,min,max,avg,moved
# NCCL makes every call, too, in orders of its own: a right result that is reported fails its communicator.
export ONEHOP_VERIFY=1 ONEHOP_VERIFY_FATAL=1 SIMNODE_NCCL_RING=1
conform "verified, processes" h200x4 "$plugin" --ranks 3 --modes processes --expect-served \
    --cases sum,prod,min,max,avg,premul-host,premul-device,moved,counts,stream-chain,stream-group,graph-modes
conform "verified, two ranks" h200x4 "$plugin" --ranks 2 --modes threads --expect-served \
    --cases sum,prod,min,max,avg,premul-host,moved,graph-modes,group-together
conform "verified, one thread with groups" h200x4 "$plugin" --ranks 4 --modes group --expect-served \
    --cases premul-host,moved,group,group-nested,group-simulate,group-error,graph-modes,stream-group
unset ONEHOP_VERIFY ONEHOP_VERIFY_FATAL SIMNODE_NCCL_RING
# Every allreduce in one order, and each row of batches up to the largest.
export ONEHOP_INVARIANT=1
conform "invariant, processes" h200x4 "$plugin" --ranks 3 --modes processes --expect-served \
    --cases sum,counts,alignment,group,comm-makers,comm-split,stream-group,graph-mixed
conform "invariant, one thread with groups" h200x4 "$plugin" --ranks 2 --modes group --expect-served \
    --cases sum,counts,group,group-nested,group-together
SIMNODE_NCCL_VERSION=22902 conform "invariant, communicators that grow" h200x4 "$plugin" --ranks 4 \
    --cases comm-grow,comm-shrink --expect-served
NCCL_ALGO=allreduce:tree NCCL_MAX_NCHANNELS=1 conform "invariant, 4,096 rows" h200x4 "$plugin" --ranks 2 \
    --modes processes --cases bits-rows --full --expect-served
conform "invariant, rows of 4 to 8 ranks" h200x8 "$plugin" --ranks 4,5,6,7,8 --modes processes --cases bits-rows \
    --expect-served
unset ONEHOP_INVARIANT
# NCCL launches the calls of non-blocking communicators in the background, each rank in its own time.
export SIMNODE_NCCL_BACKGROUND=1 SIMNODE_NCCL_DELAY_US=100
background=stream-nonblocking,stream-late,stream-group-nonblocking,comm-makers,comm-pollers
conform "onehop, calls launched in the background" h200x4 "$plugin" --ranks 2 --cases $background
ONEHOP_COLLECTIVES=allreduce conform "... and NCCL serves all but allreduce" h200x4 "$plugin" --ranks 3 --cases $background
expect_no_files
tap_done
