# SPDX-License-Identifier: MIT
# Every algorithm, number of ranks and type, at awkward counts and alignments: bits as in rank order, nothing else
# written. (Other ops: t_conformance.sh.)
. "$abs_top_srcdir/test/e2e/lib.sh"

# largest_of ALGORITHM RANKS: a large message in bytes; of two ranks, and in one-shot, one that goes in parts (kernels/abi.h:
# of 16 MiB at most in two-shot, with five ranks and more of 8, and divided by the number of ranks in one-shot).
largest_of() {
    case $1-$2 in
    oneshot-*) echo $(((16 / $2 + 1) << 20)) ;;
    twoshot-2) echo $((17 << 20)) ;;
    *) echo $((5 << 20)) ;;
    esac
}

# A type of each size, in turn.
type_of=([2]=f32 [3]=bf16 [4]=f64 [8]=i8)
size_of=([2]=4 [3]=2 [4]=8 [8]=1)

for n in 2 3 4 8; do
    # The other kinds have one algorithm. A kernel takes 16 MiB / n of a rank's part, or half of that; these go in parts.
    run_app --nranks $n --collectives allgather,reducescatter,broadcast --counts 1,3,16,17,1023 \
        --types f32,bf16,e4m3,i8,f64 --offsets 0:0,1:0,3:2 --in-place --batch 30 --seed $n
    expect_served "$n ranks, other kinds, small"
    largest=$((17 << 20))
    count=$((largest / n / size_of[n]))
    ONEHOP_MAX_BYTES=$largest expect_served "$n ranks, other kinds, large, ${type_of[n]}" \
        -- run_app --nranks $n --collectives allgather,reducescatter,broadcast --counts $((count - 1)),$count \
        --types ${type_of[n]} --offsets 1:3 --batch 2
    for algorithm in oneshot twoshot; do
        export ONEHOP_ALGO=$algorithm
        largest=$(largest_of $algorithm $n)
        run_app --nranks $n --counts 1,2,3,$((n - 1)),$n,$((n + 1)),15,16,17,1023 --types f32,bf16,f16,f64,e4m3,e5m2,i8,u8,i32,u32,i64,u64 \
            --offsets 0:0,1:0,0:1,3:2 --in-place --batch 24 --seed $n
        expect_served "$n ranks, $algorithm, small" $algorithm
        export ONEHOP_MAX_BYTES=$largest
        # bf16, and one type of the others in place, in turns.
        case $algorithm-$n in
        oneshot-[28] | twoshot-3) here=f32 size=4 ;;
        oneshot-3 | twoshot-4) here=i32 size=4 ;;
        *) here=i8 size=1 ;;
        esac
        expect_served "$n ranks, $algorithm, large, $here" $algorithm \
            -- run_app --nranks $n --counts 4096,$((largest / size - 1)),$((largest / size)) --types $here --offsets 1:3 --in-place --batch 2
        expect_served "$n ranks, $algorithm, large, bf16" $algorithm \
            -- run_app --nranks $n --counts 4097,$((largest / 2 - 1)),$((largest / 2)) --types bf16 --offsets 1:3 --batch 2
        unset ONEHOP_MAX_BYTES
    done
done
unset ONEHOP_ALGO

ONEHOP_ALGO=twoshot ONEHOP_MAX_BYTES=36M expect_served "4 ranks, three parts" twoshot \
    -- run_app --nranks 4 --counts 9000001 --types f32 --offsets 0:0,1:3 --batch 2

# One element more or less than where the choice changes (224 KiB at 4 ranks, 4 MiB at 2), and than a kernel takes (16 MiB).
expect_served "where the algorithm changes, 4 ranks" oneshot twoshot \
    -- run_app --nranks 4 --counts 57343,57344,57345 --types f32,i32 --batch 6
expect_served "where the algorithm changes, 2 ranks" oneshot twoshot \
    -- run_app --nranks 2 --counts 1048575,1048576,1048577 --types f32,i32 --batch 6
expect_served "2 ranks, one kernel and two" twoshot \
    -- run_app --nranks 2 --counts 4194304,4194305 --types f32 --offsets 0:0,1:3 --in-place --batch 4
# Three parts, eager, and in a graph that has two eager rounds beside it.
three_parts() {
    local expected=$1 kernels
    shift
    rm -f "$scratch/trace"
    ONEHOP_ALGO=oneshot run_app --nranks 2 --counts 4600001 --types f32 --batch 1 "$@" --rank-env "0:SIMNODE_TRACE=$scratch/trace" \
        --rank-env 0:SIMNODE_CALLER=libonehop.so
    kernels=$(grep -c cuLaunchKernelEx "$scratch/trace")
    [ "$status" = 0 ] && [ "$kernels" = "$expected" ]
    tap_point $? "three parts $*: $kernels kernels" "$(diagnosis)"
}
three_parts 3
three_parts 9 --graph 1
for n in 5 6 7; do
    expect_served "$n ranks" -- run_app --nranks $n --counts 1,$n,1025,20000 --types f32,bf16 --offsets 1:0 --batch 4
done
tap_done
