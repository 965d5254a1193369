# SPDX-License-Identifier: MIT
# Ranges for profilers: one for each launch, with the bytes, the algorithm and the number of the call; none, and nothing
# loaded, where no profiler asks.
. "$abs_top_srcdir/test/e2e/lib.sh"

tool=$objects/libnvtxtool.so
grep -q 'define HAVE_NVTX 1' "$abs_top_builddir/config.h" || tap_skip_all "built without the NVTX headers"

# ranges PATTERN: how many ranges of all processes have it.
ranges() {
    cat "$scratch"/nvtx.* 2>/dev/null | grep -cE -- "$1"
}

# profile ARGUMENT...: run_app under the profiler.
profile() {
    rm -f "$scratch"/nvtx.*
    NVTX_INJECTION64_PATH=$tool NVTX_TOOL_OUT=$scratch/nvtx run_app "$@"
}

# expect_ranges NAME NUMBER:PATTERN...: so many ranges have it.
expect_ranges() {
    local wanted wrong=
    for wanted in "${@:2}"; do
        [ "$(ranges "${wanted#*:}")" = "${wanted%%:*}" ] || wrong+=" $wanted"
    done
    tap_empty "${wrong:+not$wrong: $(cat "$scratch"/nvtx.*)}" "$1"
}

expect_served "two ranks under a profiler" -- profile --nranks 2 --counts 1000,20000 --iterations 3
expect_ranges "a domain and a schema in each process" '2:^domain onehop$' '2:^schema '
expect_ranges "a range for each call, one in no other" '12:^push ' '12:^pop 0$' '0:^push elsewhere'
expect_ranges "with the size" '6: bytes=80000 ' \
    '6:^push ncclAllReduce [a-z_]+ comm=[0-9]+ sequence=[0-5] bytes=4000 algorithm=[01] calls=1 collective=0$'
expect_ranges "calls are numbered, the same on both ranks" '2: sequence=0 ' '2: sequence=1 ' '2: sequence=2 ' \
    '2: sequence=3 ' '2: sequence=4 ' '2: sequence=5 '
ONEHOP_ALGO=twoshot profile --nranks 2 --counts 10 --types i32
expect_ranges "and the algorithm" '2:^push ncclAllReduce twoshot .* algorithm=1 '
profile --nranks 2 --counts 10 --collectives allgather,reducescatter,broadcast --batch 3
expect_ranges "and the kind, with the bytes of its larger buffer" '2:^push ncclAllGather .* bytes=80 .* collective=1$' \
    '2:^push ncclReduceScatter .* bytes=80 .* collective=2$' '2:^push ncclBroadcast .* bytes=40 .* collective=3$'
NVTX_TOOL_PLAIN=1 profile --nranks 2 --counts 10
expect_ranges "a profiler that knows no schemas gets the size" '2:^push ncclAllReduce [a-z_]+ 40$' '0:^schema'
ONEHOP_NVTX=0 profile --nranks 2 --counts 10
[ "$status" = 0 ] && ! ls "$scratch"/nvtx.* >"$out.ls" 2>&1
tap_point $? "ONEHOP_NVTX=0: none" "$(cat "$out" "$out.ls")"
NVTX_INJECTION64_PATH=/nowhere/tool.so expect_served "a profiler that is not there" -- run_app --nranks 2 --counts 10
tap_done
