# SPDX-License-Identifier: MIT
# Processes that end, fork, or become another program, with communicators alive or half made: nothing hangs, what forked
# goes on, and no name is left in shared memory, or the next process of the user takes it away.
. "$abs_top_srcdir/test/e2e/lib.sh"

export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0" # what such processes have allocated, they end with
work=(--counts 5000)

# run_app's job has ended well and left nothing.
# expect_end NAME
expect_end() {
    run_first "$@"
    [ "$status" = 0 ] && [ -z "$(ls -A "$shm")" ]
    tap_point $? "$1: ends well, nothing left" "$(ls -A "$shm")
$(diagnosis)"
}

for kind in "--nranks 3" "--nranks 4 --local 2" "--nranks 2 --local 2 --threads"; do
    expect_end "exit without destroying anything, $kind" -- run_work $kind --scenario exit --rounds 3
done
# The set-up is in the background, and has come as far as it has.
SIMNODE_NCCL_DELAY_US=2000 expect_end "exit in the middle of a set-up" \
    -- run_work --nranks 3 --make nonblocking --jitter 2000 --scenario exit --rounds 0
expect_end "exit while calls begin to be served" -- run_work --nranks 2 --make nonblocking --scenario exit --rounds 20

for kind in "--nranks 3" "--nranks 4 --local 2" "--nranks 2 --make nonblocking"; do
    ranks=${kind:9:1} served=0+
    [[ $kind = *nonblocking ]] || served=$ranks
    expect_counts "fork between calls, $kind: children end well, the parent goes on, and speaks for itself only" even \
        "$ranks:stats: rank" "$served:served by onehop" -- run_work $kind --scenario fork --rounds 6
    expect_no_files
done

expect_counts "fork while calls and replays are on the GPU: they end with right results" '3:served by onehop' even \
    '0: WARN ' -- run_work --nranks 3 --scenario fork-busy --victim 1
expect_no_files

expect_counts "exec between calls: the new program has no descriptor of onehop's" '3:served by onehop' '9+: -> ' \
    '0: -> (/memfd:(onehop|simnode)-|/dev/shm/|/dev/nvidia)' -- run_work --nranks 3 --scenario exec --rounds 2
expect_no_files

# A program that closes NCCL, with communicators alive or not: onehop has kept it open, so nothing hangs in the air.
close=(close:libnccl.so.2 close:libnccl.so.2 close:libnccl.so.2)
for mode in end KEEP; do
    run_ranks env LD_PRELOAD="$plugin" REACH_$mode=1 "$reach" -- "${close[@]}"
    expect_counts "dlclose of NCCL, three times, $mode: served" served=36 nccl_allreduce=0 '6:^reach: the library stays'
    expect_no_files
done

# Nothing can be done then: the process that comes next cleans up. All ranks at once, so that nobody is left to do it.
next_cleans_up() {
    local left
    left=$(ls -A "$shm" | wc -l)
    run_work --nranks 2
    [ "$status" = 0 ] && [ "$(count_of 'served by onehop')" = 2 ] && [ -z "$(ls -A "$shm")" ]
    tap_point $? "$1: $left left, the next job is served and leaves nothing" "$(ls -A "$shm"; diagnosis)"
    names=$((names + left))
}
names=0
run_work --nranks 2 --make nonblocking --scenario exec --rounds 0
next_cleans_up "exec in the middle of a set-up"

plugin=$faulty_plugin
export SIMNODE_CALLER=libonehop.so
for at in flock:1 ftruncate:1 posix_fallocate:1 mmap:1 cuMemAlloc_v2:1; do
    SIMNODE_KILL=$at expect_counts "killed at $at" status=1+ '1+:ended by signal 9' -- run_work --nranks 2
    next_cleans_up "killed at $at"
done
[ "$names" -gt 0 ]
tap_point $? "some were killed while the file had its name ($names)"

# exit() from a signal's handler that has interrupted onehop there, with a mutex locked or not: the end waits for no mutex that
# its own thread holds.
for at in flock:1 linkat:1 memfd_create:1 fcntl:1 unlink:1 read:1 readlink:1 gethostname:2 pthread_create:1; do
    SIMNODE_EXIT=$at expect_counts "a signal's handler exits at $at: the process ends" '0:served by onehop' \
        -- run_work --nranks 2
done
SIMNODE_EXIT=unlink:1 expect_counts "the communicator has its record" '2:stats: rank [01] nranks 2 served=0' -- run_work --nranks 2
tap_done
