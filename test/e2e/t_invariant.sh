# SPDX-License-Identifier: MIT
# ONEHOP_INVARIANT=1: every allreduce of a communicator is onehop's, of any size, from the first on, whatever is set for
# NCCL; or none is, and every rank says so once. (The bits of rows in batches: bits-rows of onehop-conformance.)
. "$abs_top_srcdir/test/e2e/lib.sh"

export ONEHOP_INVARIANT=1
work=(--nranks 3 --counts 1,5000,300000 --types bf16,f32 --batch 2)

# --- served

expect_served "nothing else set" -- run_work
NCCL_ALGO=allreduce:tree NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=1 NCCL_MAX_NCHANNELS=1 NCCL_NTHREADS=1 \
    expect_served "vLLM's variables" -- run_work
NCCL_ALGO=allreduce:tree NCCL_MIN_NCHANNELS=8 NCCL_MAX_NCHANNELS=8 \
    expect_served "SGLang's variables, which are no limit of SMs" '0:grids are smaller' -- run_work
NCCL_MAX_CTAS=1 expect_served "NCCL_MAX_CTAS=1, which is one" '3:for 1 blocks in all: grids are smaller' \
    -- run_work --graph 2
expect_served "NCCL_MAX_CTAS=2 on one rank" -- run_work --rank-env 2:NCCL_MAX_CTAS=2
for cap in 0 4K; do
    ONEHOP_MAX_BYTES=$cap expect_served "ONEHOP_MAX_BYTES=$cap" -- run_work
done
for algorithm in oneshot twoshot; do
    ONEHOP_ALGO=$algorithm expect_served "ONEHOP_ALGO=$algorithm" $algorithm \
        -- run_app --nranks 4 --counts 1,17,4000001 --types f32 --offsets 1:3 --batch 1
done
printf 'onehop-tuning 1\n' >"$scratch/old" # a file that is refused: the shipped table
ONEHOP_TUNING_FILE=$scratch/old expect_served "no table of a file" -- run_work
printf '%s\n' 'onehop-tuning 3' table 'gpu *' 'ranks 3' 'driver *' 'nccl *' 'source no rows' reducescatter end >"$scratch/empty"
ONEHOP_TUNING_FILE=$scratch/empty expect_served "a table without rows for what reduces" \
    -- run_work --collectives allreduce,reducescatter
expect_served "one thread, groups" -- run_work --local 3 --group 4
expect_served "threads, two communicators, streams" -- run_work --local 3 --threads --comms 2 --streams 3
expect_served "in graphs" -- run_work --graph 2
expect_served "non-blocking communicators" -- run_work --make nonblocking
expect_served "splits" -- run_app --nranks 4 --make split --split-colors 0,0,1,1 --counts 1,5000 --batch 2
expect_served "beyond any table, in many parts" twoshot -- run_app --nranks 2 --counts 60000001 --types f32 --batch 1
expect_served "the same in one thread" twoshot -- run_app --nranks 2 --local 2 --counts 20000001 --types f32 --batch 1
# Ranks that are later than the patience of other communicators: NCCL waits for them in the first call, too.
late=(--nranks 3 --counts 100 --batch 1 --jitter 6000000 --seed 2) # rank 1 is some 5 s late
ONEHOP_STALL_SECONDS=1 expect_served "a rank that is late: who is waited for, and from the first call on" \
    '1:WARN comm .* rank 0 of 3: the first call waits for 1 s; ranks without a call: 1' \
    '3:at every size .invariant. from call 1 on' -- run_app "${late[@]}"
NCCL_RUNTIME_CONNECT=0 expect_served "a rank that is late where NCCL does not wait" -- run_app "${late[@]}"

# --- not served

# expect_variant NAME REASON -- COMMAND...: the reason is on every rank, once at WARN, and in the statistics.
expect_variant() {
    local ranks
    run_first "$@"
    ranks=$(count_of 'falls back to NCCL')
    expect_stock "$1: each rank warns once" "$2" "$ranks:stats: .* invariant=no reason: " \
        "$ranks:WARN comm .*: not invariant, NCCL executes its allreduces: .*$2"
}
NCCL_P2P_DISABLE=1 expect_variant "NCCL_P2P_DISABLE=1" "NCCL_P2P_DISABLE=1" -- run_work
NCCL_CTA_POLICY=2 expect_variant "zero-CTA policy" "zero-CTA policy" -- run_work
SIMNODE_TOPOLOGY=pcie-only expect_variant "no NVLink" "not joined by NVLink" -- run_app --nranks 4 --counts 1,5000
expect_stock "not on one rank: the others warn" "ONEHOP_INVARIANT is (1 here and 0 on rank 1|0 here and 1 on rank [02])" \
    '2:WARN comm .*: not invariant' -- run_work --rank-env 1:ONEHOP_INVARIANT=0

# Calls of other kinds are no sums, or sums that nobody has promised anything of.
ONEHOP_COLLECTIVES=allreduce,allgather expect_counts "NCCL serves other kinds" allreduce=9 allgather=3 fallback=6 kind=6 0:WARN \
    '3:stats: .* invariant=yes' -- run_app --nranks 3 --counts 5000 --batch 6 \
    --collectives allreduce,broadcast,allgather,allreduce,reducescatter,allreduce
ONEHOP_COLLECTIVES=broadcast expect_counts "NCCL serves allreduces before the ranks have agreed" fallback=18 \
    '3:WARN comm .*: not invariant, NCCL executes its allreduces: [a-z]' -- run_app --nranks 3 --counts 5000 --batch 6
# So it is where such calls come first: no allreduce is NCCL's.
foreign_first=(--types f32 --batch 6 --collectives broadcast,broadcast,allreduce)
for kind in "--nranks 3 --counts 5000" "--nranks 3 --counts 5000 --group 3" "--nranks 3 --counts 5000 --local 3" \
    "--nranks 2 --counts 5000 --jitter 300000"; do
    ONEHOP_COLLECTIVES=allreduce expect_counts "broadcasts of NCCL's first, $kind" fallback=$((4 * ${kind:9:1})) 0:WARN \
        "${kind:9:1}:stats: .* invariant=yes" -- run_app $kind "${foreign_first[@]}"
done
expect_counts "broadcasts first that are too large to serve" allreduce=4 broadcast=0 fallback=8 0:WARN '2:stats: .* invariant=yes' \
    -- run_app --nranks 2 --counts 20000001 "${foreign_first[@]}"

# --- the command

program=("$app" --timeout $limit "${work[@]}")
expect "onehop run --invariant --stats" 0 '^onehop: invariant: yes$' '^onehop: [0-9]* of [0-9]* collective calls served' \
    -- run_limited "$onehop" run --invariant --stats -- "${program[@]}"
unset ONEHOP_INVARIANT
NCCL_P2P_DISABLE=1 expect "and why not" 0 \
    '^onehop: invariant: no: 3 of 3 communicators and ranks had sums by NCCL: .*NCCL_P2P_DISABLE=1' \
    -- run_limited "$onehop" run --invariant --stats -- "${program[@]}"
expect "nothing of it where nobody asks" 0 '!invariant' -- run_limited "$onehop" run --stats -- "${program[@]}"
tap_done
