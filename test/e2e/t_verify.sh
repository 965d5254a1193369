# SPDX-License-Identifier: MIT
# ONEHOP_VERIFY: calls that NCCL makes, too, and whose results are compared. Right results are never reported, and wrong ones (of
# the simulated NCCL) always are, but where rounding explains them. (All types, ops and modes: onehop-conformance.)
. "$abs_top_srcdir/test/e2e/lib.sh"

export ONEHOP_VERIFY=1
work=(--nranks 3 --counts 1,5000 --types bf16,f32 --batch 4 --collectives $kinds)

# --- right results

expect_counts "every call" 'served=48' 'verified=48' 'differing=0' 0:WARN '3:77 MiB of GPU memory' -- run_work
ONEHOP_VERIFY=5 expect_counts "one in five" 'served=48' 'verified=12' 'differing=0' 0:WARN -- run_work
ONEHOP_VERIFY=0 expect_counts "none" 'served=48' 'verified=0' 'nccl_calls=0' 0:WARN '3:45 MiB of GPU memory' -- run_work
for way in "--group 8" "--local 3 --group 8" "--local 3 --threads" "--streams 3 --group 8" "--comms 2 --group 8 --scramble" \
    "--in-place" "--graph 3" "--graph 3 --group 4 --streams 2" "--local 3 --graph 2 --group 8"; do
    run_work $way
    expect_counts "$way: all are verified" verified=1+ differing=0 0:WARN even verified="$(sum_of served)"
done
expect_counts "more calls in a group than the memory has room for" verified=1+ differing=0 0:WARN \
    -- run_app --nranks 2 --counts 4000000 --types f32 --batch 8 --group 8
[ "$(sum_of verified)" -lt "$(sum_of served)" ]
tap_point $? "... some are not verified" "$(diagnosis)"
ONEHOP_INVARIANT=1 expect_counts "a call that is larger than the memory" served=4 verified=4 differing=0 0:WARN \
    -- run_app --nranks 2 --counts 20000001 --types f32 --batch 2

# --- results that differ

export SIMNODE_NCCL_WRONG=1
value='-?([0-9.e+-]+|inf|nan)'
two=(--nranks 2 --counts 1000 --types f32 --batch 3)
report="WARN comm .* rank [01] of 2: call [123], a sum of 1000 x float32, (one|two)shot, differs from NCCL's: element 0 is $value, and $value with NCCL; results that differ so far: [123]$"
expect_counts "reported once or more, and counted" served=6 verified=6 differing=6 "2+:$report" -- run_app "${two[@]}"
expect_counts "each call of a group, which is one kernel" served=6 differing=6 -- run_app "${two[@]}" --group 3
expect_counts "each replay of a graph" differing=9+ "2+:differs from NCCL's" -- run_app "${two[@]}" --graph 3
for kind in ${kinds//,/ }; do
    expect_counts "$kind of integers" verified=6 differing=6 "3+:differs from NCCL's: element [0-9]+ is -?[0-9]+, and -?[0-9]+ with NCCL" \
        -- run_app --nranks 3 --counts 1000 --types i32 --batch 2 --collectives $kind
done
expect_counts "the last bit of a sum of three" verified=6 differing=0 0:WARN \
    -- run_app --nranks 3 --counts 1000 --types bf16 --batch 2
SIMNODE_NCCL_WRONG=high expect_counts "the first bits of a sum of three" verified=6 differing=6 "3+:differs from NCCL's" \
    -- run_app --nranks 3 --counts 1000 --types bf16 --batch 2
ONEHOP_VERIFY_FATAL=1 expect_counts "ONEHOP_VERIFY_FATAL=1: calls fail" status=1+ \
    '1+:differ so far: [0-9]+: calls now return ncclInternalError$' -- run_app "${two[@]}" --pause 500 --iterations 3
# No call comes after these, but the communicator's end.
ONEHOP_VERIFY_FATAL=1 expect_counts "... and so does the end of the communicator" status=1+ \
    '1+:ncclCommDestroy.* gave 3' -- run_app "${two[@]}"
ONEHOP_VERIFY_FATAL=1 expect_counts "... on all ranks, also if the difference has been reported before" status=1+ \
    '2:ncclCommDestroy.* gave 3' -- run_app "${two[@]}" --pause 500
SIMNODE_NCCL_WRONG=high expect_counts \
    "communicators are destroyed in a group behind their last calls, whose results differ" '4:stats: rank .* differing=4' \
    '4:call 4, .* differ so far: 4$' -- run_with "$plugin" "$abs_top_builddir/test/e2e/sim_turns" destroy
unset SIMNODE_NCCL_WRONG

# --- where no call is verified

expect_counts "another value on a rank" served=48 verified=0 '3:WARN comm .*: no call is verified: rank 0 wants one in 2, rank 1 one in 0 .0: none.' \
    -- run_work --rank-env 0:ONEHOP_VERIFY=2 --rank-env 1:ONEHOP_VERIFY=0 --rank-env 2:ONEHOP_VERIFY=0
expect_counts "a non-blocking communicator" served=1+ verified=0 '3:WARN comm .*: no call is verified: the communicator is non-blocking' \
    -- run_work --make nonblocking
by_plugin=(run_with '' env NCCL_NET_PLUGIN="$libs/libonehop.so" "$app" "${work[@]}")
expect_counts "one that was created before onehop was loaded, and may be non-blocking" served=1+ verified=0 \
    '3:WARN comm .*: no call is verified: the communicator may be non-blocking' -- "${by_plugin[@]}" --make nonblocking
expect_counts "... and which is blocking" served=1+ verified=1+ differing=0 0:WARN -- "${by_plugin[@]}"
NCCL_COMM_BLOCKING=1 expect_counts "... which NCCL_COMM_BLOCKING makes blocking" served=1+ verified=1+ 0:WARN \
    -- "${by_plugin[@]}" --make nonblocking
SIMNODE_FAIL=cuMemAlloc_v2:3 expect_counts "no memory for it on a rank" verified=0 '1+:WARN .*no call is verified' -- run_work

expect_stock "a rank that declines when the others have voted" "rank 1" -- run_work --rank-env 1:SIMNODE_FAIL=cuKernelGetFunction
tap_done
