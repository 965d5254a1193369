# SPDX-License-Identifier: MIT
# scripts/compare-nccl-tests with a program that stands in for nccl-tests, on the simulated node.
. "${abs_top_srcdir:?}/test/e2e/lib.sh" || exit 1
[ -d "${scratch:?}" ] || exit 1

compare=$abs_top_srcdir/scripts/compare-nccl-tests
bin=$scratch/bin work=$scratch/work err=$scratch/err
mkdir "$bin" "$work" "$scratch/tmp"
cp "$abs_top_builddir/test/e2e/all_reduce_perf" "$bin"
export TMPDIR=$scratch/tmp SIMNODE_TOPOLOGY=h200x4 ONEHOP_LIBRARY=$plugin
unset ONEHOP_STATS ONEHOP_DEBUG LD_PRELOAD CUDA_VISIBLE_DEVICES
command -v readelf >/dev/null || tap_skip_all "no readelf"

# compare ARGUMENT...: sets $status, fills $out and $err.
compare() {
    run_limited bash "$compare" --onehop "$onehop" "$@"
}

compare --bin "$bin" --repeat 3 --csv "$work/a.csv" -- -b 1K -e 16K -f 4 -g 4
expect "one process, four GPUs" 0 '^# SIMULATED' 'stock +onehop$' '^ +1024 +256 +float +sum +0 +0 ' \
    '^ +16384 ' '^# 3 of 3 right$' '^# last run with onehop: ([0-9]+) of \1 collective calls served' \
    '^# 4 x SIMULATED' 'Out of bounds values : 0 OK'
[ "$(grep -c ',stock,' "$work/a.csv")" = 3 ] && [ "$(grep -c ',onehop,' "$work/a.csv")" = 3 ] &&
    [ -z "$(ls -A "$TMPDIR")" ] && [ ! -s "$err" ]
tap_point $? "the numbers as CSV, and no temporary file" "$(cat "$work/a.csv" "$err"; ls -A "$TMPDIR")"
rm -f "$work/a.csv"
expect "in place, graphs" 0 'allreduce, CUDA graph' 'N/A' 'Results were not checked' \
    -- compare --bin "$bin" --repeat 1 --in-place -- -b 1K -e 1K -g 2 -G 5
# The share of the bytes that cross the bus is one half of two ranks' (README of nccl-tests, doc/PERFORMANCE.md), or all.
for kind in allgather:all_gather:0.5 reducescatter:reduce_scatter:0.5 broadcast:broadcast:1; do
    IFS=: read -r collective program share <<<"$kind"
    cp "$bin/all_reduce_perf" "$bin/${program}_perf"
    compare --bin "$bin" --collective "$collective" --repeat 1 --csv - -- -b 1K -e 1K -g 2
    expect "$collective" 0 "^# settings: ${program}_perf -b" "^# collective: $collective\$" '^eager,float,sum,2,1024,256,onehop,'
    awk -F, -v share="$share" '/^eager/ { rows++; if ($11 / $10 - share > 1e-4 || share - $11 / $10 > 1e-4) exit 1 }
        END { exit rows != 2 }' "$out"
    tap_point $? "$collective: its bandwidth on the bus" "$(cat "$out")"
done
expect "--csv /dev/stdout" 0 '^eager,float,sum,2,1024,256,stock,' '^eager,float,sum,2,1024,256,onehop,' \
    -- compare --bin "$bin" --repeat 1 --csv /dev/stdout -- -b 1K -e 1K -g 2
# What versions and options make of a row; in place the stand-in then says 4711 us.
for form in old each stamped; do
    STAND_IN_FORM=$form compare --bin "$bin" --repeat 1 --in-place --csv - -- -b 1K -e 1K -g 2
    expect "the columns of a table, $form" 0 '^eager,float,sum,2,1024,256,stock,4711\.000,4711\.000,[0-9.e-]+,[0-9.e-]+,,,,1$' ',onehop,4711\.000,'
done
STAND_IN_FORM=split compare --bin "$bin" --repeat 1 --csv - -- -b 1K -e 1K -g 4
expect "groups of ranks: the first one's bandwidth" 0 '^# machine: 2 x SIMULATED' '^eager,float,sum,2,1024,'
if find_mpirun; then
    expect "mpirun" 0 '^# 3 x SIMULATED' '^ +1024 ' 'calls served, .* in 3 processes' \
        '1:^# last run with onehop: .* calls served' \
        "^# ${mpirun[*]} -np 3 all_reduce_perf -b 1K -e 1K, median of 1 run\$" \
        -- compare --bin "$bin" --repeat 1 --mpi 3 --mpirun "${mpirun[*]}" -- -b 1K -e 1K
    mkdir "$scratch/both"
    cp "$bin/all_reduce_perf" "$scratch/both/all_reduce_perf_mpi"
    cp "$abs_top_builddir/test/e2e/sim_static" "$scratch/both/all_reduce_perf"
    expect "mpirun, and the program with the suffix of MPI" 0 '^# 2 x SIMULATED' ' all_reduce_perf_mpi -b' \
        -- compare --bin "$scratch/both" --repeat 1 --mpi 2 --mpirun "${mpirun[*]}" -- -b 1K -e 1K
    rm -f "$TMPDIR"/all_reduce_perf.*
    STAND_IN_FORM=alone compare --bin "$bin" --mpi 2 --mpirun "${mpirun[*]}" -- -b 1K -e 1K
    refuses "mpirun, and a program without MPI" 1 'was made without MPI=1: of 2 processes each has run by itself$'
else
    tap_skip "mpirun" "$no_mpirun"
fi
# A launcher of its own: -n N, a tag in front of each line, NCCL's log in the middle of rows.
cat >"$scratch/bin/srun" <<'END'
#!/bin/sh
[ "$1 $2" = "-n 2" ] || { echo "srun: $*"; exit 9; }
shift 2
"$@" -g 2 | sed "$HOW"
END
chmod +x "$scratch/bin/srun"
tags='s/^/[1,0]<stdout>:/ s/^/0:_/ s/^/[0]_/ s/^/_3:_/'
log='node7:47:47_[0]_NCCL_INFO_AllReduce:_opCount_1a' warn='node7:47:47_[-1]_init.cc:12_NCCL_WARN_Mismatch'
for how in $tags "/^_*[0-9]/s/4711/47$log\\n11/" "/^_*[0-9]/s/4711\\./&$log\\n$log\\n/" \
    "/^_*[0-9]/s/_4711/&$log\\n/;s/^/0:_/;s/\\n/&0:_/" \
    "/^_*[0-9]/s/_4711/&[2026-11-25_08:09:10]_$log\\n/" \
    "/^_*[0-9]/s/_4711\\./&\\n$warn\\n/" "/^_*[0-9]/s/_4711\\./&\\n[2026-11-25_08:09:10]_$warn\\n$log\\n/"; do
    HOW=${how//_/ } STAND_IN_FORM=old expect "a launcher, rows that go through ${how//_/ }" 0 silent \
        '4:^eager,float,sum,2,(1024,256|4096,1024),(stock|onehop),4711\.000,4711\.000,' \
        -- compare --bin "$bin" --repeat 1 --in-place --csv - --mpi 2 --mpirun "$scratch/bin/srun" -- -b 1K -e 4K -f 4
done
HOW='/^ *[0-9]/s/\(sum *-1 *\)[0-9]/\1x/' compare --bin "$bin" --repeat 1 --mpi 2 --mpirun "$scratch/bin/srun" -- -b 1K -e 1K
refuses "a row that is broken for good" 1 ': all_reduce_perf printed a row whose time is not understood: 1024 +256 +float'
# A row that is lost in every run of a side, or in one run. The table and the file have what has arrived.
cat >"$scratch/bin/loses" <<'END'
#!/bin/sh
shift 2
side=with${LD_PRELOAD:-out}
side=${side%%/*}
run=$side.$(ls "$RUNS" | grep -c "^$side\.")
: >"$RUNS/$run"
"$@" -g 2 | sed "$([ "$LOST" != "$side" ] && [ "$LOST" != "$run" ] || echo '/^ *4096/d')"
END
chmod +x "$scratch/bin/loses"
for lost in without:0:2 with:2:0 without.1:1:2; do
    IFS=: read -r lost without with <<<"$lost"
    LOST=$lost RUNS=$(new_folder) expect "a row that is lost $lost onehop" 1 '^ +1024 +256 +float +sum +0 +0 ' '^ +4096 ' \
        "^compare-nccl-tests: all_reduce_perf has not .* 2 runs .*: float,sum,4096,1024: $without rows without onehop, $with with it\$" \
        -- compare --bin "$bin" --repeat 2 --csv "$work/a.csv" --mpi 2 --mpirun "$scratch/bin/loses" -- -b 1K -e 4K -f 4
    expect_file "... and the file has the rest" "$work/a.csv" '^eager,float,sum,2,4096,1024,'
    rm -f "$work/a.csv"
done
HOW='' expect "a launcher that says where N goes" 0 '^ +1024 ' \
    -- compare --bin "$bin" --repeat 1 --mpi 2 --mpirun "$scratch/bin/srun -n %n" -- -b 1K -e 1K
refuses "no launcher" 1 'compare-nccl-tests: /nowhere/mpirun is missing' \
    -- compare --bin "$bin" --repeat 1 --mpi 2 --mpirun /nowhere/mpirun
refuses "no binaries" 1 'all_reduce_perf is missing; ' -- compare --bin "$scratch"
refuses "no folder" 1 'all_reduce_perf is missing; ' -- compare --bin "$scratch/none"
mkdir "$scratch/static" "$scratch/text" "$scratch/unreadable"
cp "$abs_top_builddir/test/e2e/sim_static" "$scratch/static/all_reduce_perf"
refuses "NCCL linked in" 1 'has NCCL linked in statically .*libnccl.so' -- compare --bin "$scratch/static"
echo 'echo hello' >"$scratch/text/all_reduce_perf"
refuses "no program" 1 'cannot be executed' -- compare --bin "$scratch/text"
chmod +x "$scratch/text/all_reduce_perf"
refuses "a script" 1 'not a program that readelf can read' -- compare --bin "$scratch/text"
# Its own search path, in which the simulated NCCL is, is overwritten by one of the same length.
found=$abs_top_builddir/test/simnode/.libs lost=$scratch/lost
mkdir "$lost"
LC_ALL=C sed "s,$found,/nowhere/$(printf '%*s' $((${#found} - 9)) '' | tr ' ' x),g" "$bin/all_reduce_perf" >"$lost/all_reduce_perf"
chmod +x "$lost/all_reduce_perf"
LD_LIBRARY_PATH='' compare --bin "$lost"
if ldconfig -p | grep -q 'libnccl\.so\.2'; then
    tap_skip "NCCL is not found" "it is, in the system"
else
    refuses "NCCL is not found" 1 'does not find libnccl.so; LD_LIBRARY_PATH'
fi
LD_PRELOAD=$plugin compare --bin "$bin" -- -g 2
refuses "onehop in the environment" 2 'LD_PRELOAD is .*libonehop.so: nothing here would run with stock NCCL alone'
refuses "no such collective" 2 '--collective alltoall: allreduce, allgather, reducescatter or broadcast is needed$' \
    -- compare --bin "$bin" --collective alltoall
refuses "no program of that collective" 1 'broadcast_perf is missing; ' -- compare --bin "$scratch/none" --collective broadcast
refuses "no onehop" 1 'the onehop command is missing' -- compare --bin "$bin" --onehop /nowhere/onehop
ln -s "$compare" "$scratch/compare-nccl-tests"
refuses "by a link from another folder" 1 'none/all_reduce_perf is missing; ' \
    -- run_limited bash "$scratch/compare-nccl-tests" --bin "$scratch/none"
cp --remove-destination "$compare" "$scratch/compare-nccl-tests"
refuses "without scripts/lib.sh" 1 '/lib.sh: No such file' -- run_limited bash "$scratch/compare-nccl-tests" --bin "$scratch/none"
for arguments in '--bin ""' '--bin x --mpi 2 --mpirun ""' '--bin x --mpi 2 --mpirun " "' '--bin x --csv ""'; do
    eval "set -- $arguments"
    refuses "wrong usage: $arguments" 2 '^compare-nccl-tests: --[a-z]+ needs a value; see --help$' -- compare "$@"
done
for arguments in '' '--bin' '--repeat 0 --bin x' '--mpi many --bin x' 'word'; do
    refuses "wrong usage: $arguments" 2 '^compare-nccl-tests: ' -- compare $arguments
done
expect "--help has an example" 0 '--bin ~/nccl-tests/build' -- compare --help
expect_sentence "--help on a full disk" 1 . -- run_full bash "$compare" --help
STAND_IN_FAIL=3 expect "nccl-tests that fails" 1 'compare-nccl-tests: all_reduce_perf \(stock\) ended with status 3$' \
    -- compare --bin "$bin" --csv "$work/a.csv" -- -b 1K -e 4K -g 2
SIMNODE_NCCL_WRONG=1 expect "a wrong result" 1 'all_reduce_perf \(stock\) ended with status 1$' \
    -- compare --bin "$bin" -- -b 1K -e 1K -g 2
# Files that cannot be made are told of before anything runs: in one sentence, and without a table.
refuses "a folder that is not there" 1 'compare-nccl-tests: /nowhere/a.csv: /nowhere is no folder' \
    -- compare --bin "$bin" --csv /nowhere/a.csv -- -g 2
refuses "a folder instead of a file" 1 'is a folder$' -- compare --bin "$bin" --csv "$scratch" -- -g 2
expect "a file that could not be written: the table stays" 1 '^ +1024 +256 ' 'perf: /dev/full: No space left' \
    -- compare --bin "$bin" --repeat 1 --csv /dev/full -- -b 1K -e 1K -g 2
run_full bash "$compare" --onehop "$onehop" --bin "$bin" --repeat 1 --csv "$work/a.csv" -- -b 1K -e 1K -g 2
expect_sentence "stdout is full" 1 .
expect_file "and the files are there" "$work/a.csv" 1:,onehop,
rm -f "$work/a.csv"

has_row() {
    grep -qs '^ *1024 ' "$TMPDIR"/tmp.*/stock.1
}
for signal in INT:130 TERM:143; do
    STAND_IN_WAIT=1 signalled "${signal%:*}" has_row bash "$compare" --onehop "$onehop" --bin "$bin" --csv "$work/a.csv" -- \
        -b 1K -e 4K -g 2
    expect_ended "SIG${signal%:*}" "${signal#*:}" "$work" "$TMPDIR"
done
tap_done
