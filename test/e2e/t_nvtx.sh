# SPDX-License-Identifier: MIT
# Ranges for profilers: one for each launch, with the bytes, the algorithm and the number of the call; none, and nothing
# loaded, where no profiler asks.
. "$abs_top_srcdir/test/e2e/lib.sh"

export ONEHOP_SHM_DIR=$shm
tool=$abs_top_builddir/test/e2e/.libs/libnvtxtool.so
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

expect_served "two ranks under a profiler" -- profile --nranks 2 --counts 1000,20000 --iterations 3
[ "$(ranges '^domain onehop$')" = 2 ] && [ "$(ranges '^schema ')" = 2 ]
tap_point $? "a domain and a schema in each process" "$(cat "$scratch"/nvtx.*)"
[ "$(ranges '^push ')" = 12 ] && [ "$(ranges '^pop 0$')" = 12 ] && [ "$(ranges '^push elsewhere')" = 0 ]
tap_point $? "a range for each call, one in no other" "$(cat "$scratch"/nvtx.*)"
[ "$(ranges '^push ncclAllReduce [a-z_]+ comm=[0-9]+ sequence=[0-5] bytes=4000 algorithm=[01] calls=1 collective=0$')" = 6 ] &&
    [ "$(ranges ' bytes=80000 ')" = 6 ]
tap_point $? "with the size" "$(cat "$scratch"/nvtx.*)"
for sequence in 0 1 2 3 4 5; do
    [ "$(ranges " sequence=$sequence ")" = 2 ] || break
done
[ "$(ranges " sequence=$sequence ")" = 2 ]
tap_point $? "calls are numbered, the same on both ranks" "$(cat "$scratch"/nvtx.*)"
ONEHOP_ALGO=twoshot profile --nranks 2 --counts 10 --types i32
[ "$(ranges '^push ncclAllReduce twoshot .* algorithm=1 ')" = 2 ]
tap_point $? "and the algorithm" "$(cat "$scratch"/nvtx.*)"
profile --nranks 2 --counts 10 --collectives allgather,reducescatter,broadcast --batch 3
for range in 'AllGather .* bytes=80 .* collective=1' 'ReduceScatter .* bytes=80 .* collective=2' \
    'Broadcast .* bytes=40 .* collective=3'; do
    [ "$(ranges "^push nccl$range\$")" = 2 ] || break
done
[ "$(ranges "^push nccl$range\$")" = 2 ]
tap_point $? "and the kind, with the bytes of its larger buffer" "$(cat "$scratch"/nvtx.*)"
NVTX_TOOL_PLAIN=1 profile --nranks 2 --counts 10
[ "$(ranges '^push ncclAllReduce [a-z_]+ 40$')" = 2 ] && [ "$(ranges '^schema')" = 0 ]
tap_point $? "a profiler that knows no schemas gets the size" "$(cat "$scratch"/nvtx.*)"
ONEHOP_NVTX=0 profile --nranks 2 --counts 10
[ "$status" = 0 ] && ! ls "$scratch"/nvtx.* >"$out.ls" 2>&1
tap_point $? "ONEHOP_NVTX=0: none" "$(cat "$out" "$out.ls")"
NVTX_INJECTION64_PATH=/nowhere/tool.so expect_served "a profiler that is not there" -- run_app --nranks 2 --counts 10
tap_done
