# SPDX-License-Identifier: MIT
# Every algorithm, number of ranks and type, at awkward counts and alignments: bits as in rank order, nothing else
# written.
. "$abs_top_srcdir/test/e2e/lib.sh"

# types_of ALGORITHM: the types that it carries, one with elements of four bytes first, one of two or one second.
types_of() {
    case $1 in
    *_ll) echo i32,i8,u8,u32,i64,u64 ;;
    *) echo f32,bf16,f16,f64,e4m3,e5m2,i8,u8,i32,u32,i64,u64 ;;
    esac
}

# largest_of ALGORITHM RANKS: its largest message in bytes; for one that carries any, several rounds of it.
largest_of() {
    case $1 in
    oneshot_ll) echo $(((2 << 20) / 32 / $2 * 16)) ;;
    twoshot_ll) echo $(((2 << 20) / 16 / (2 * $2) * $2 * 8)) ;;
    oneshot_marker) echo $(((4 << 20) / 16 / $2 * 16)) ;;
    *) echo $((5 << 20)) ;;
    esac
}

for n in 2 3 4 8; do
    for algorithm in oneshot_ll twoshot_ll twoshot_push oneshot_marker twoshot_marker; do
        export ONEHOP_ALGO=$algorithm
        types=$(types_of $algorithm)
        largest=$(largest_of $algorithm $n)
        run_app --nranks $n --counts 1,2,3,$((n - 1)),$n,$((n + 1)),15,16,17,1023 --types "$types" \
            --offsets 0:0,1:0,0:1,3:2 --in-place both --batch 24 --seed $n
        expect_served "$n ranks, $algorithm, small" $algorithm
        export ONEHOP_MAX_BYTES=$largest
        first=${types%%,*}
        run_app --nranks $n --counts 4096,$((largest / 4 - 1)),$((largest / 4)) --types "$first" --offsets 1:3 \
            --in-place both --batch 2
        expect_served "$n ranks, $algorithm, large" $algorithm
        second=${types#*,} second=${second%%,*}
        run_app --nranks $n --counts 4097,$((largest / 2 - 1)),$((largest / 2)) --types "$second" --offsets 1:3 --batch 3
        expect_served "$n ranks, $algorithm, large, $second" $algorithm
        unset ONEHOP_MAX_BYTES
    done
done
unset ONEHOP_ALGO

# Other ops, on every type. An average of floats is compared bit for bit where 1/n is exact.
integers=i8,u8,i32,u32,i64,u64
floats=f32,f16,bf16,f64,e4m3,e5m2
for op in prod min max avg; do
    for n in 2 4 8; do
        run_app --nranks $n --op $op --types $integers,$floats --counts 1,7,1000 --offsets 1:0 --batch 36
        expect_served "$n ranks, $op"
    done
    run_app --nranks 3 --op $op --types $integers --counts 1,7,1000,70000 --batch 24
    expect_served "3 ranks, $op of integers"
done
run_app --nranks 3 --op premul --counts 1,1000,40000,300000 --batch 4
expect_served "3 ranks, an op of the program's own"

# One element more or less than where the choice changes: 128 KiB at 4 ranks, 512 KiB and 4 MiB at 2, in fp32.
run_app --nranks 4 --counts 32767,32768,32769 --batch 3
expect_served "where the algorithm changes, 4 ranks" oneshot_marker twoshot_marker
run_app --nranks 2 --counts 131071,131072,131073,1048576,1048577 --batch 5
expect_served "where the algorithm changes, 2 ranks" oneshot_marker twoshot_marker twoshot_push
for n in 5 6 7; do
    run_app --nranks $n --counts 1,$n,1025,20000 --types f32,bf16 --offsets 1:0 --batch 4
    expect_served "$n ranks"
done
tap_done
