# SPDX-License-Identifier: MIT
# NCCL_NET_PLUGIN: how NCCL of several versions finds onehop, goes on without it as a network, and says nothing of it.
. "$abs_top_srcdir/test/e2e/lib.sh"

export LD_LIBRARY_PATH=$libs:$LD_LIBRARY_PATH
export NCCL_DEBUG=INFO
export SIMNODE_NCCL_LAZY=1 # as NCCL does: the first call returns when all ranks have come to it

run_pair() {
    run_ranks "$linked" -- linked
}

# expect_network NAME NETWORK SERVED: the job went well, on that network, without a warning.
expect_network() {
    run_first "$@"
    expect_counts "$1: network $2, $3 of 12 calls served, no warning" "4:NCCL INFO Using network $2" 0:WARN served="$3" \
        nccl_allreduce=$((12 - $3))
}

# By version: 2.19 to 2.32, and one that knows none of the plugin versions there are.
# Since 2.28.3 the plugin is told of each communicator that NCCL creates, and the first one is served, too, after a call.
for version in 21903 22203 22403 22602 22705 22803 22809 22907 23003 23007 23203; do
    served=6
    [ $version -lt 22803 ] || served=10
    SIMNODE_NCCL_VERSION=$version NCCL_NET_PLUGIN=onehop expect_network "NCCL $version" Socket $served -- run_pair
    expect_counts "NCCL $version: found, asked once, declined" '2:NET/Plugin: loaded onehop' \
        '2:Failed to initialize NET plugin onehop'
done
NCCL_NET_PLUGIN=onehop expect_counts "first calls of other kinds: one is NCCL's, the others are served" \
    fallback=2 nccl_broadcast=2 served=10 allgather=4 reducescatter=4 broadcast=2 \
    -- run_with '' "$app" --nranks 2 --counts 1000 --collectives broadcast,allgather,reducescatter --batch 3 --iterations 2
SIMNODE_NCCL_VERSION=29900 NCCL_NET_PLUGIN=onehop run_pair
expect_network "an NCCL that knows no version of this plugin" Socket 6
expect_counts "an NCCL that knows no version of this plugin: says so" '2:plugin onehop is unsupported'

# A network beside it, closed with the first communicator, whose name 2.28 and 2.29 forget: the second one goes without.
# list_pair VERSION BUILT_IN: so many communicators of the ranks are on NCCL's own network.
# NCCL asks the plugin that it has opened last for a profiler, unless it is given one.
list_pair() {
    SIMNODE_NCCL_VERSION=$1 NCCL_NET_PLUGIN=onehop,simnet NCCL_PROFILER_PLUGIN=libnccl-net-onehop.so run_pair
    expect_counts "NCCL $1: onehop and a network, two communicators in turn" "$((4 - $2)):Using network simnet" \
        "$2:Using network Socket" 0:WARN served=10 '2:NET/Plugin: loaded onehop'
}
list_pair 22803 2
expect_counts "NCCL 22803 looks for another plugin then" '2:could not find libnccl-net.so'
list_pair 22809 2
list_pair 22907 2
list_pair 23007 0

# Nobody tells onehop of communicators: the first one goes to NCCL.
NCCL_PROFILER_PLUGIN=none NCCL_NET_PLUGIN=onehop expect_network "NCCL_PROFILER_PLUGIN=none" Socket 6 -- run_pair
SIMNODE_NCCL_VERSION=23007 NCCL_NET_PLUGIN=onehop,simnet run_pair
expect_network "a network beside it, which NCCL asks for a profiler" simnet 6

for way in split shrink; do
    colors=0,0,0
    [ $way = split ] || colors=0,0,-1
    NCCL_NET_PLUGIN=onehop SIMNODE_NCCL_DELAY_US=20000 \
        expect_counts "$way of a non-blocking communicator that onehop has not seen made" served=1+ even 0:WARN \
        -- run_with '' "$app" --nranks 3 --make $way --nonblocking --split-colors $colors --counts 1000 --batch 3 --iterations 3
done

# An invariant communicator is served from its first call on: not the one that NCCL had made by then.
ONEHOP_INVARIANT=1 NCCL_NET_PLUGIN=onehop expect_counts \
    "ONEHOP_INVARIANT=1: the first communicator is NCCL's, the second onehop's, from the first call on" served=6 \
    nccl_allreduce=6 '2:WARN comm .*: not invariant, NCCL executes its allreduces: .*before onehop followed it' \
    2:invariant=yes 2:invariant=no -- run_pair

# Names and lists.
export SIMNODE_NCCL_VERSION=22705 # the first communicator goes to NCCL
NCCL_NET_PLUGIN=$libs/libnccl-net-onehop.so expect_network "full path" Socket 6 -- run_pair
NCCL_NET_PLUGIN=$libs/libonehop.so expect_network "full path of libonehop.so" Socket 6 -- run_pair
NCCL_NET_PLUGIN=libnccl-net-onehop.so expect_network "file name" Socket 6 -- run_pair
NCCL_NET_PLUGIN=onehop,simnet expect_network "in front of a real network" simnet 6 -- run_pair
NCCL_NET_PLUGIN=nowhere,onehop expect_network "behind a plugin that does not exist" Socket 6 -- run_pair
NCCL_NET_PLUGIN=simnet,onehop expect_network "behind a real network, where NCCL does not look" simnet 0 -- run_pair
NCCL_NET_PLUGIN=simnet expect_network "not named" simnet 0 -- run_pair
NCCL_NET_PLUGIN=none expect_network "NCCL_NET_PLUGIN=none" Socket 0 -- run_pair
NCCL_NET_PLUGIN=none LD_PRELOAD=$plugin run_pair
expect_network "NCCL_NET_PLUGIN=none, preloaded" Socket 12

# NCCL_NET: NCCL then asks only the network of that name, but opens all.
NCCL_NET=Socket NCCL_NET_PLUGIN=onehop expect_network "NCCL_NET=Socket" Socket 6 -- run_pair
NCCL_NET=simnet NCCL_NET_PLUGIN=onehop,simnet expect_network "NCCL_NET=simnet" simnet 6 -- run_pair
NCCL_NET=onehop NCCL_NET_PLUGIN=onehop expect_counts "NCCL_NET=onehop is NCCL's error: there is no such network" \
    status=1+ '1+:NCCL WARN Failed to initialize any NET plugin' -- run_pair

# One rank by each way: they meet all the same, and where a rank has none, all go to NCCL.
by_rank='settings=("$1" "$2"); shift 2; exec env "${settings[$2]}" "$@"' # SETTING0 SETTING1 PROGRAM RANK ARGUMENT...
run_ranks bash -c "$by_rank" by_rank "LD_PRELOAD=$plugin" NCCL_NET_PLUGIN=onehop "$linked" -- linked
expect_counts "one rank by preload, one by plugin" served=6 0:WARN
run_ranks bash -c "$by_rank" by_rank A=1 NCCL_NET_PLUGIN=onehop "$linked" -- linked
expect_counts "one rank without onehop, one by plugin" served=0 nccl_allreduce=12
expect_no_files
tap_done
