# SPDX-License-Identifier: MIT
# t_kernels.sh [STEP...] - the kernels of any number of ranks, and graphs, on GPUs. Steps: virtual litmus graphs.
. "$(dirname "$0")/lib.sh"

# The kernels with random delays, which make does not build by itself.
step_litmus() {
    local calls=1500 programs=40
    if [ ! -x "$build/test/gpu/virtual_litmus" ]; then
        skip litmus "not built: make litmus (in $build)"
        return
    fi
    [ -z "$quick" ] || calls=400 programs=1
    step litmus-1 600 "$build/test/gpu/virtual_litmus" -c $calls -p $programs -l 120
    step litmus-all 600 "$build/test/gpu/virtual_litmus" -c $calls -p $programs -l 120 -g "$gpus"
}

# graph_step NAME LIBRARY ARGUMENT...: test/gpu/graph_mixing with a library preloaded, or without one.
graph_step() {
    local name=$1 preload=$2 rounds=4000
    shift 2
    [ -z "$quick" ] || rounds=400
    step "$name" 300 env ${preload:+LD_PRELOAD="$preload"} LD_LIBRARY_PATH="$libraries" \
        ONEHOP_DEBUG=INFO ONEHOP_STATS=1 "$build/test/gpu/graph_mixing" --ranks "$gpus" --rounds $rounds --seed $RANDOM "$@"
    [ -z "$preload" ] || served "$name"
}

# The kernels of 2 to 8 ranks, on one GPU and dealt out over all.
step_virtual() {
    calls=1500
    [ -z "$quick" ] || calls=300
    step virtual-1 400 "$build/test/gpu/virtual_ranks" -c $calls
    step virtual-all 400 "$build/test/gpu/virtual_ranks" -c $calls -g "$gpus"
}

# Graphs and eager calls of one communicator on streams that nothing orders.
step_graphs() {
    graph_step graphs "$library"
    graph_step graphs-threads "$library" --threads
    ONEHOP_MAX_BYTES=8K graph_step graphs-relay "$library" relay
    ONEHOP_ALGO=oneshot graph_step graphs-large "$library" --floats 3000000 --rounds 100 chains
    ONEHOP_ALGO=twoshot graph_step graphs-twoshot "$library" --structure chains early turns
    graph_step graphs-stock ''
}

run_steps "virtual litmus graphs" "$@"
