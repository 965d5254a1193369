# SPDX-License-Identifier: MIT
# Order between the calls of a communicator on streams, and in graphs, that nothing else orders.
. "$abs_top_srcdir/test/e2e/lib.sh"

sim_app=$app
app=$abs_top_builddir/test/gpu/graph_mixing
export SIMNODE_DELAY_US=200
seed=$((RANDOM + 1))
mix=(--delay 300 --seed "$seed")

expect_served "graphs and eager calls on three streams (seed $seed)" \
    -- run_app "${mix[@]}" --ranks 2 --rounds 60 --structure
expect_served "the same of threads (seed $seed)" -- run_app "${mix[@]}" --ranks 3 --threads --rounds 40 --structure
ONEHOP_ALGO=twoshot expect_served "the same in two hops (seed $seed)" twoshot \
    -- run_app "${mix[@]}" --ranks 2 --rounds 30 --structure modes turns children
ONEHOP_TRIGGER=1 expect_served "the same, where all kernels trigger (seed $seed)" \
    -- run_app "${mix[@]}" --ranks 2 --rounds 20 --structure modes early chains
for function in cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetParams_v2 cuGraphNodeGetDependencies_v2; do
    SIMNODE_CALLER=libonehop.so SIMNODE_FAIL=$function run_app "${mix[@]}" --ranks 2 --rounds 10 modes early
    expect_counts "without $function kernels do not overlap" served=1+ 0:WARN
done
ONEHOP_MAX_BYTES=100 expect_right "the same, with fallbacks" \
    -- run_app "${mix[@]}" --ranks 2 --rounds 30 modes turns destroy
expect_right "the same, without onehop" -- run_stock "${mix[@]}" --ranks 2 --rounds 30 modes turns destroy

# Halves are served, wholes fall back.
ONEHOP_MAX_BYTES=8K SIMNODE_DELAY_US=1000 run_app "${mix[@]}" --ranks 2 --rounds 100 relay
expect_counts "data passed on between onehop and NCCL by the order of calls alone (seed $seed)" served=1+ fallback=1+
expect_right "the same, without onehop" -- run_stock "${mix[@]}" --ranks 2 --rounds 100 relay

for variable in ONEHOP_GRAPH_MIXING NCCL_GRAPH_MIXING_SUPPORT; do
    export $variable=0
    expect_counts "$variable=0: no event nodes in graphs" status=1+ '1+:FAIL rank .* 0 wait and 0 record nodes' \
        -- run_app --ranks 2 --rounds 0 --structure modes
    unset $variable
done

# Calls that go in parts, whose blocks wait for one another across ranks: all of a kernel must run at a time, as on a GPU.
ONEHOP_ALGO=oneshot SIMNODE_BLOCK_THREADS=1 SIMNODE_DELAY_US=0 expect_served "chains of large calls (seed $seed)" \
    -- run_app "${mix[@]}" --rounds 20 --ranks 2 --floats 3000000 chains

app=$sim_app
# One hardware queue for all streams of a GPU: what is behind a call that waits for its peers waits too.
export CUDA_DEVICE_MAX_CONNECTIONS=1 SIMNODE_DELAY_US=500
one=(--counts 10,5000 --batch 8 --iterations 2 --collectives $kinds)
expect_served "one connection: three communicators on three streams" \
    -- run_app --nranks 4 "${one[@]}" --comms 3 --streams 3
expect_served "one connection: in groups, four GPUs of a thread" \
    -- run_app --nranks 4 --local 4 "${one[@]}" --comms 3 --streams 3 --group 8
ONEHOP_MAX_BYTES=4K expect_right "one connection: groups and graphs that are part onehop, part NCCL" \
    -- run_app --nranks 3 "${one[@]}" --comms 2 --streams 2 --group 6 --graph 4
app=$abs_top_builddir/test/gpu/graph_mixing
expect_served "one connection: graphs and eager calls on three streams" \
    -- run_app "${mix[@]}" --ranks 2 --rounds 30 modes turns branches
tap_done
