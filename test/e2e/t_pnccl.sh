# SPDX-License-Identifier: MIT
# Tools as NCCL documents them, which define ncclX and call pncclX; programs that call pncclX; and programs that ask which
# functions their NCCL has. Calls by both names are onehop's, so that ranks with and without a tool agree.
. "$abs_top_srcdir/test/e2e/lib.sh"

tool=$objects/libpnccltool.so
object=$objects/libreach.so
copy=$objects/libreachcopy.so
export SIMNODE_NCCL_LAZY=1 # as NCCL does: the first call returns when all ranks have come to it

# For bash -c with PROGRAM RANK...: TOOL in front, on rank 0 alone.
one_rank='[ "$2" = 0 ] && export LD_PRELOAD="$TOOL $LD_PRELOAD"; exec "$@"'

for name in direct:$object turns:$object directdlsym:libnccl.so.2 both:direct:$object,direct:$copy both:object:$object,direct:$copy; do
    calls=12
    [[ $name != both:* ]] || calls=24
    run_ranks env LD_PRELOAD="$plugin" "$reach" -- "$name"
    expect_counts "$(sed "s:[^ ,]*/::g" <<<"$name"): calls by pncclX are served" served=$calls fallback=0 0:WARN
done

for way in linked object:$object; do
    name=${way%%:*}
    [ $name = linked ] && program=$linked || program=$reach
    run_ranks env LD_PRELOAD="$tool $plugin" "$program" -- $way
    expect_counts "$name, a tool in front sees all calls, which are served" served=12 "2:tool: allreduces 6, made 2, ended 2" \
        "2:libpnccltool.so defines functions of NCCL in front of onehop" 0:WARN
    run_ranks env TOOL_NEXT=1 LD_PRELOAD="$tool $plugin" "$program" -- $way
    expect_counts "$name, a tool in front that calls the next ncclX" served=12 "2:tool: allreduces 6, made 2, ended 2" 0:WARN
    run_ranks env LD_PRELOAD="$plugin" TOOL="$tool" bash -c "$one_rank" bash "$program" -- $way
    expect_counts "$name, a tool in front on one rank" served=12 "1:tool: allreduces 6" "1:in front of onehop" 0:WARN
    run_ranks env LD_PRELOAD="$plugin $tool" "$program" -- $way
    expect_counts "$name, a tool behind sees what is not served" served=12 "2:tool: allreduces 0, made 2, ended 2" \
        "2:libpnccltool.so defines functions of NCCL behind onehop" 0:WARN
    for setting in ONEHOP_MAX_BYTES=0 ONEHOP_DISABLE=1; do
        for next in "" TOOL_NEXT=1; do
            run_ranks env $setting $next LD_PRELOAD="$plugin $tool" "$program" -- $way
            expect_counts "$name, a tool behind sees what is not served, $setting $next" served=0 nccl_allreduce=12 \
                "2:tool: allreduces 6, made 2, ended 2"
        done
    done
    run_ranks env LD_LIBRARY_PATH="$abs_top_builddir/.libs:$LD_LIBRARY_PATH" NCCL_NET_PLUGIN=onehop LD_PRELOAD="$tool" "$program" -- $way
    expect_counts "$name, a tool, and onehop as a plugin" served=10 nccl_allreduce=2 "2:tool: allreduces 6" 0:WARN
done

# The real function stays within reach.
run_limited "$onehop" perf --simulated -n 2 -b 1K -e 1K --compare stock,onehop
expect_right "perf compares with NCCL itself"

# Each function that not every NCCL has is taken out of the stand-in in turn: an overwritten name cannot be found.
lacking=$abs_top_builddir/test/e2e/lacking
asker=$objects/liblacking.so
mkdir "$scratch/lib"
ask() {
    LD_LIBRARY_PATH=$scratch/lib:$LD_LIBRARY_PATH LD_PRELOAD=$1 ONEHOP_DEBUG=WARN timeout -k 5 $limit "$lacking" "$asker" 2>&1 ||
        echo "status $?"
}
names=$(sed -n '/define OH_NCCL_OPTIONAL/,/^$/s/^ *X(\([A-Za-z]*\),.*/\1/p' "$abs_top_srcdir/src/comm/nccl.h")
[ "$(wc -w <<<"$names")" -ge 15 ]
tap_point $? "the optional functions are found" "$names"
for name in $names; do
    rm -f "$scratch"/lib/*
    sed "s/nccl$name\x00/nccl${name%?}_\x00/g" "$stand_ins/libnccl.so.2" >"$scratch/lib/libnccl.so.2"
    ask '' >"$scratch/stock"
    ask "$plugin" >"$out"
    [ "$(grep -c "nccl$name: weak -, default -, error yes, handle -" "$scratch/stock")" = 6 ] && cmp -s "$scratch/stock" "$out"
    tap_point $? "an NCCL without nccl$name: all ways to ask answer as without onehop" "$(diff "$scratch/stock" "$out")"
done

# An NCCL before 2.19 lacks more: all calls go to it, whatever way.
for name in CommFinalize CommSplit CommInitRankConfig RedOpDestroy; do
    sed "s/nccl$name\x00/nccl${name%?}_\x00/g" "$stand_ins/libnccl.so.2" >"$scratch/lib/libnccl.so.2"
    for way in "$linked linked" "$reach late:libnccl.so.2" "$reach object:$object"; do
        run_ranks env LD_LIBRARY_PATH="$scratch/lib:$LD_LIBRARY_PATH" LD_PRELOAD="$plugin" ${way% *} -- ${way#* }
        expect_counts "an NCCL without nccl$name, ${way##* }: all calls go to it" served=0 nccl_allreduce=12 0:WARN \
            "2:has no nccl$name: older than NCCL 2.19"
    done
done
expect_no_files
tap_done
