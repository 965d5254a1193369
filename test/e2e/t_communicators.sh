# SPDX-License-Identifier: MIT
# Communicators in more layouts than those of t_conformance.sh, whose cases comm-* make them in every way; growing; their ends.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--counts 1,333,20000 --types f32,bf16 --batch 6 --iterations 2)
expect_served "two processes, each with four ranks in a thread" -- run_work --nranks 8 --local 4
expect_served "two processes, each with two threads" -- run_work --nranks 4 --local 2 --threads --make config
expect_served "one visible GPU for each process" -- run_work --nranks 4 --own-gpu
expect_served "two visible GPUs for each process" -- run_work --nranks 4 --local 2 --own-gpu
expect_served "two communicators in turn" -- run_work --nranks 4 --comms 2
expect_served "two communicators at once" -- run_work --nranks 4 --comms 2 --streams 2
expect_served "two communicators at once, one thread" -- run_work --nranks 4 --local 4 --comms 2 --streams 2

expect_counts "split: the child is served, its parent, which has no call, is not set up" '4:served by onehop' \
    kernels_launched=1+ -- run_work --nranks 4 --make split --split-keys 3,2,1,0
expect_served "split that reverses the order"
expect_served "split in two that mix" \
    -- run_work --nranks 8 --make split --split-colors 0,1,0,1,0,1,1,0 --split-keys 9,0,1,5,1,1,1,0
expect_served "parent and children in turn, one rank without colour" \
    -- run_work --nranks 4 --make family --comms 3 --split-colors 0,0,-1,0 --split-keys 1,1,0,0
expect_served "split in one thread" -- run_work --nranks 4 --local 4 --make split --split-colors 1,0,1,0
expect_counts "split: a rank alone falls back" '1:falls back to NCCL: .*single rank' \
    -- run_work --nranks 4 --make split --split-colors 0,0,0,1

expect_served "by scalable, two ranks a process" -- run_work --nranks 4 --local 2 --make scalable
expect_counts "shrink: what is left is served" '3:nranks 3: served by onehop' \
    -- run_work --nranks 4 --make shrink --split-colors 0,-1,0,0
expect_served "shrink"
expect_served "shrunk three times" -- run_work --nranks 4 --make shrink --comms 3 --split-colors -1,0,0,0
expect_served "shrink, two ranks a process" -- run_work --nranks 4 --local 2 --make shrink --split-colors 0,0,-1,-1
expect_served "split with splitShare" -- run_work --nranks 4 --make split --split-keys 0,3,1,2 --seed 3

# Growing: one of the parent's ranks has the unique id, the others learn where to meet from it.
export SIMNODE_NCCL_VERSION=22902
for root in 1,0,0,0 0,1,0,0 1,1,0,0; do
    expect_served "grow from two ranks to four, ids $root" \
        -- run_work --nranks 4 --make grow --split-colors 0,0,-1,-1 --split-keys $root
done
expect_served "grow, two ranks a process, one of them new" \
    -- run_work --nranks 4 --local 2 --make grow --split-colors 0,0,0,-1 --split-keys 0,0,1,0
grown=(--nranks 4 --make grow --split-colors 0,0,-1,-1 --split-keys 0,1,0,0)
SIMNODE_NCCL_DELAY_US=10000 expect_counts "non-blocking grow: the same calls served on all ranks" served=1+ even \
    -- run_work "${grown[@]}" --nonblocking --jitter 2000 --iterations 40
for rank in 0 1 3; do # of the parent, that with the id, new
    expect_counts "grow, rank $rank without onehop: falls back at once, with the reason" served=0 \
        '3:nranks 4: falls back to NCCL: .*onehop is present on this host for' \
        -- run_work "${grown[@]}" --rank-env $rank:ONEHOP_DISABLE=1
done
why='(cannot open the shared memory|present on this host for)'
for n in 1 2 3 4; do
    plugin=$faulty_plugin SIMNODE_CALLER=libonehop.so \
        expect_counts "grow, mmap $n fails on a rank that learns the id: all are served, or fall back with the reason" even \
        "3:nranks 3: (served by onehop|falls back to NCCL: .*$why)" -- run_work --nranks 3 --make grow \
        --split-colors 0,0,-1 --split-keys 1,0,0 --rank-env 1:SIMNODE_FAIL=mmap:$n
done
expect_counts "grow, a rank that learns the id from another refuses: all fall back, with the reason" served=0 \
    '4:nranks 4: falls back to NCCL: .*the program asks for the zero-CTA policy' \
    -- run_work "${grown[@]}" --rank-env 0:NCCL_CTA_POLICY=2
unset SIMNODE_NCCL_VERSION

# leftovers LIMIT: what is left at the end of the last run, more than LIMIT communicators' worth.
leftovers() {
    local what each
    for what in ipc_open:0 streams_live:0 graphs_live:0 graph_execs_live:0 user_objects_live:0 host_live:1 \
        events_live:4 mem_live_bytes:$((36 << 20)); do
        each=$(($1 * ${what#*:}))
        [ "$(report_of "${what%:*}")" -le "$each" ] || echo "${what%:*} $(report_of "${what%:*}"), allowed $each"
    done
}

# Of each pair of GPUs NVML is asked three questions (NVLink, read, write), by each of its two ranks, once a process.
SIMNODE_TOPOLOGY=h200x4 SIMNODE_TRACE=$scratch/trace expect_served "five rounds with a trace" \
    -- run_app --nranks 4 --scenario churn --rounds 5 --counts 1000
asked=$(grep -c nvmlDeviceGetP2PStatus "$scratch/trace")
[ "$asked" = 36 ]
tap_point $? "what does not change is asked once: $asked questions about six pairs" "36 expected"

for local in 1 2; do
    expect_served "50 rounds, $local ranks a process" \
        -- run_app --nranks 2 --local $local --scenario churn --rounds 50 --counts 1000
    expect_counts "50 rounds: every communicator is served" '100:served by onehop'
    # Of two processes, the one that ends its last communicator first cannot wait for the other to be done with it.
    tap_empty "$(leftovers $((2 - local)))" "50 rounds: no memory, handle, stream, event or graph is left"
done
expect_no_files
# Selected communicators: by size, by name, by host; equally on all ranks.
work=(--nranks 4 --counts 1,5000 --batch 2)
ONEHOP_COMMS=size=2-3,4 expect_served "ONEHOP_COMMS: the size" -- run_work
ONEHOP_COMMS=size=2 expect_stock "ONEHOP_COMMS: another size" 'ONEHOP_COMMS leaves it out: 4 ranks, name ""' -- run_work
ONEHOP_COMMS=size=2 expect_counts "ONEHOP_COMMS: splits have sizes of their own" '4:nranks 2: served' \
    '0:nranks 4: served' -- run_work --make split --split-colors 0,0,1,1
ONEHOP_COMMS='name=test-*' expect_served "ONEHOP_COMMS: the name" -- run_work --make config
ONEHOP_COMMS='name=^test-*' expect_stock "ONEHOP_COMMS: not that name" 'leaves it out: 4 ranks, name "test-config"' \
    -- run_work --make config
ONEHOP_COMMS="host=$(uname -n)" expect_served "ONEHOP_COMMS: the host" -- run_work
expect_stock "ONEHOP_COMMS on one rank" 'ONEHOP_COMMS leaves it out' -- run_work --rank-env 2:ONEHOP_COMMS=size=8
ONEHOP_COMMS=four expect_served "ONEHOP_COMMS that is none" -- run_work
expect_counts "ONEHOP_COMMS that is none: a warning" '4:WARN ONEHOP_COMMS=four is not accepted'
ONEHOP_COMMS=size=8 ONEHOP_INVARIANT=1 expect_counts "ONEHOP_COMMS: what is left out is not asked to be invariant" \
    '0:not invariant' '0:invariant=' -- run_work
tap_done
