# SPDX-License-Identifier: MIT
# Every algorithm, number of ranks and type, at awkward counts and alignments: bits as in rank order, nothing else
# written.
. "$abs_top_srcdir/test/e2e/lib.sh"

# limit_of: the largest message that the communicator of the last run serves, in bytes.
limit_of() {
    sed -n 's/.*served by onehop up to \([0-9]*\) bytes.*/\1/p' "$out" | head -n 1
}

algorithms="oneshot_ll twoshot_ll twoshot_push oneshot_marker twoshot_marker"
for n in 2 3 4 8; do
    for algorithm in $algorithms; do
        export ONEHOP_ALGO=$algorithm
        run_app --nranks $n --counts 1,2,3,$((n - 1)),$n,$((n + 1)),15,16,17,1023 --types f32,f16,bf16 \
            --offsets 0:0,1:0,0:1,3:2 --in-place both --batch 24 --seed $n
        expect_served "$n ranks, $algorithm, small" $algorithm
        # The largest message of the algorithm; for one that carries any, several rounds of it.
        largest=$(limit_of)
        case $algorithm in
        twoshot_push | twoshot_marker)
            export ONEHOP_MAX_BYTES=5M
            largest=$((5 << 20))
            ;;
        esac
        run_app --nranks $n --counts 4096,$((largest / 4 - 1)),$((largest / 4)) --offsets 1:3 --in-place both --batch 2
        expect_served "$n ranks, $algorithm, large" $algorithm
        run_app --nranks $n --counts 4097,$((largest / 2 - 1)),$((largest / 2)) --types bf16 --offsets 1:3 --batch 3
        expect_served "$n ranks, $algorithm, large, bf16" $algorithm
        unset ONEHOP_MAX_BYTES
    done
done
unset ONEHOP_ALGO

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
