# SPDX-License-Identifier: MIT
# onehop perf on the simulated node: what it measures, checks and writes, and how it ends when something is not well.
. "${abs_top_srcdir:?}/test/e2e/lib.sh" || exit 1
[ -d "${scratch:?}" ] || exit 1

work=$scratch/work
mkdir "$work" "$scratch/tmp"
export TMPDIR=$scratch/tmp SIMNODE_TOPOLOGY=h200x3 ONEHOP_LIBRARY=$plugin
unset ONEHOP_STATS ONEHOP_DEBUG LD_PRELOAD CUDA_VISIBLE_DEVICES NCCL_NVLS_ENABLE
csv=$work/run.csv json=$work/run.json err=$scratch/err
few="-n 2 -w 1 --rounds 2"

# perf ARGUMENT...: sets $status, fills $out (stdout) and $err.
perf() {
    run_limited "$onehop" perf "$@"
}

# --- what it measures

for layout in processes threads; do
    expect "all types, ops and sides, $layout" 0 '^# SIMULATED' '^# Out of bounds values : 0 OK' 'onehop serves' silent \
        '144:^ +48 +[0-9]+ +[a-z]+[0-9a-z]* +[a-z]+ +0 +0 +0 +(oneshot|nccl)$' \
        -- perf -b 48 -e 48 -n 1 -w 1 --rounds 1 -d all -o all --compare all --layout $layout
done
expect "groups of calls, in place, threads, with no kernel between them" 0 'floor: graph: empty kernel' \
    '^# Avg onehop/floor' 'agg iters 3' 'CUDA graph, pattern chain$' '!program' \
    -- perf -b 16K -e 16K $few --graph --floor --pattern chain -m 3 --layout threads --simulated-times
expect "groups of calls that go through the buffers" 0 'agg iters 8' 'pattern free$' 'Out of bounds values : 0 OK' \
    -- perf -b 1K -e 16K -f 4 $few --graph -m 8 --pattern free
# The size is that of the larger buffer, as in nccl-tests: a part of it for each of three ranks, or all of it.
for collective in allgather:996:166 reducescatter:996:166 broadcast:1000:500; do
    IFS=: read -r kind size count <<<"$collective"
    perf --collective $kind -b 1000 -e 1000 -d bfloat16 --floor $few --csv "$scratch/$kind.csv"
    expect "$kind" 0 "^# SIMULATED: $kind, " 'Out of bounds values : 0 OK' '^# 2 of 2 right, 2 of 2 served$' \
        "^ +$size +$count +bfloat16 +sum +0 +0  oneshot$"
    SIMNODE_NCCL_WRONG=1 expect "... a wrong result" 1 'wrong elements in the results$' \
        -- perf --collective $kind -b 96 -e 96 $few --graph -m 2 --layout threads
done
expect "--from says which collective it was" 0 '^# SIMULATED: broadcast, ' -- perf --from "$scratch/broadcast.csv"
refuses "files of two collectives" 1 'another collective than in front of it' \
    -- perf --from "$scratch/broadcast.csv" --from "$scratch/allgather.csv"
refuses "no such collective" 2 "perf: --collective reduce: 'reduce' is unknown; expected allreduce, allgather, reducescatter, broadcast$" \
    -- perf --collective reduce
# A kernel of the program behind each call.
for layout in processes threads; do
    perf -b 1000 -e 1000 -n 7 -w 1 --rounds 2 --floor --layout $layout --simulated-times --compare onehop
    expect "pattern layer, $layout" 0 "CUDA graph, pattern layer$" "eager, pattern layer$" \
        ' program +floor +onehop  served-by' 'Out of bounds values : 0 OK'
done
# In a graph, calls of few blocks are launched while the program's kernel in front of them runs (src/gpu/edge.c).
edges() {
    rm -f "$scratch/trace"
    SIMNODE_CALLER=libonehop.so SIMNODE_TRACE=$scratch/trace perf "$@" -n 7 -w 1 --rounds 1 --graph -g 2
    grep -c cuGraphAddDependencies_v2 "$scratch/trace"
}
counts="$(edges -b 64K -e 64K) $(edges -b 2M -e 2M) $(edges -b 64K -e 64K --pattern chain)"
counts="$counts $(ONEHOP_LAUNCH_ORDER=0 edges -b 64K -e 64K)"
[ "$counts" = "12 0 0 0" ] # six a graph; the first call comes behind the wait for earlier launches
tap_point $? "edges from the program's kernels, of 64 blocks at most, of two ranks: $counts"
refuses "no such pattern" 2 "perf: --pattern nest: 'nest' is unknown; expected layer, chain, free$" \
    -- perf -b 64 -e 64 --pattern nest
expect "memory of ncclMemAlloc" 0 'ncclMemAlloc$' 'Out of bounds values : 0 OK' 'onehop serves' \
    -- perf -b 16K -e 16K $few --memory nccl --compare all
refuses "no such memory" 2 "perf: --memory host: 'host' is unknown; expected cuda, nccl$" \
    -- perf -b 64 -e 64 --memory host
expect "sizes by steps" 0 '^ +1 +1 +int8' '^ +21 +21 +int8' '^ +16 +2 +double' \
    -- perf -b 1 -e 30 -i 10 $few --eager -d int8,double
expect "none that holds no element; only the mode that was asked for" 0 '!^ +[0-9]+ +0 ' '!CUDA graph'
SIMNODE_NCCL_WRONG=1 perf --check 1 -b 64 -e 64 $few --graph
expect "a wrong result" 1 '#.* FAILED$' '^# 0 of 1 right, 1 of 1 served$' 'perf: 12 wrong elements in the results$'
SIMNODE_NCCL_WRONG=1 expect "which nobody looks for" 0 ' N/A ' 'Results were not checked' \
    -- perf -b 64 -e 64 $few --graph --check 0
expect "one GPU" 0 '^ +64 +16 +float' 'Out of bounds values : 0 OK' -- perf -b 64 -e 64 $few -g 1 --eager
SIMNODE_NCCL_WINDOWS=0 refuses "an NCCL that makes no windows" 1 'NCCL makes no windows here' \
    -- perf -b 64 -e 64 --compare windows
refuses "an NCCL without windows" 1 '--compare windows needs NCCL 2\.27 or later; .* is 2\.[0-9.]+ and has no windows$' \
    -- perf -b 64 -e 64 --compare windows --nccl "$stand_ins/libncclcopy.so.2"
run_limited env -u LD_LIBRARY_PATH "$onehop" perf --simulated -b 64 -e 64 $few --graph
expect "--simulated finds the simulated node" 0 '^# SIMULATED' '^ +64 +16 +float'
# A simulated table has no times, unless they are asked for; no table is wider than 120 columns.
expect "a simulated table has no times and no ratio" 0 '--simulated-times shows' '   stock windows  onehop$' \
    '^# 4 of 4 right, 4 of 4 served$' '^#      size     count     type  redop  #wrong  #wrong  #wrong  served-by$' \
    '^ +64 +16 +float +sum +0 +0 +0  oneshot$' '!\(us\)|GB/s|speedup|floor' -- perf -b 64 -e 128 $few --compare all --floor
expect "--simulated-times, in 120 columns" 0 '^# SIMULATED: .* the times mean nothing$' ' speedup windows +onehop  served-by$' \
    '^ +64 +16 +float +sum( +[0-9.]+ +0){3}( +[0-9.]+){3}  oneshot$' '^# Avg windows/onehop ' '!.{121}' \
    -- perf -b 64 -e 128 $few --compare all --floor --simulated-times
expect "two sides have room for more, in 120 columns" 0 \
    ' time +p99 +busbw +#wrong +time +p99 +busbw +#wrong speedup  served-by$' '!.{121}' \
    -- perf -b 64 -e 128 $few --simulated-times

# --- what it writes

# rows TABLE: what its rows are about.
rows() {
    awk '/^ / { print $1, $2, $3, $4, $NF }' "$1"
}

perf -b 64 -e 4K -f 8 $few --floor --csv "$csv" --json "$json" --compare stock,onehop
cp "$out" "$scratch/table"
[ "$status" = 0 ] && [ "$(grep -c ',stock,' "$csv")" = 6 ] && [ "$(grep -c ',onehop,' "$csv")" = 6 ] &&
    head -n 1 "$csv" | grep -q '^# SIMULATED' && [ "$(grep -c ',1$' "$csv")" = 12 ] && [ "$(ls -A "$work" "$TMPDIR" | grep run | xargs)" = 'run.csv run.json' ]
tap_point $? "--csv has a line for each row and side" "$(cat "$csv" "$err"; ls -A "$work")"
if command -v python3 >/dev/null; then
    python3 - "$json" >"$out" 2>&1 <<'END'
import json, sys
run = json.load(open(sys.argv[1]))
assert run["schema"] == 1 and run["simulated"] and run["note"].startswith("SIMULATED"), run
assert run["ranks"] == 3 and run["wrong"] == 0 and len(run["rows"]) == 6, run
assert run["collective"] == "allreduce" and run["pattern"] == "layer" and all(row["program_us"] > 0 for row in run["rows"]), run
assert all(row["simulated"] is True for row in run["rows"]), run
assert all(set(row["sides"]) == {"stock", "onehop"} and row["floor_us"] > 0 for row in run["rows"]), run
END
    tap_point $? "--json is JSON" "$(cat "$out")"
else
    tap_skip "--json is JSON" "no python3"
fi
mv "$csv" "$scratch/kept.csv"
rm -f "$json"
expect "SIGCHLD is ignored, as a parent may leave it" 0 '^# 1 of 1 right' \
    -- run_limited env --ignore-signal=CHLD "$onehop" perf -b 64 -e 64 $few --graph
perf --from "$scratch/kept.csv"
[ "$status" = 0 ] && diff <(rows "$scratch/table") <(rows "$out") >"$scratch/diff"
tap_point $? "--from shows it again" "$(cat "$scratch/diff" "$err")"
perf --from "$scratch/kept.csv" --csv -
tail -n +2 "$out" | cut -d , -f 1-8 >"$scratch/again"
[ "$status" = 0 ] && tail -n +2 "$scratch/kept.csv" | cut -d , -f 1-8 | cmp -s - "$scratch/again"
tap_point $? "--csv - is stdout, and no table" "$(cat "$out" "$err")"
expect "--json as well" 0 '"schema": 1' -- perf --from "$scratch/kept.csv" --json=-

# --- wrong usage: exit status 2

for arguments in '-b 0' '-b 1x' '-b -5' '-f 1' '-n 0' '-d int9' '-o median' '-o ,' '--layout none' \
    '--compare stock,nobody' '--check 2' '--rounds 1001' '-b 2K -e 1K' '--csv - --json -' 'word'; do
    refuses "wrong usage: $arguments" 2 '^onehop: perf: ' -- perf $arguments
done

# Options of nccl-tests: perf's own is named.
for case in '-G 20=--graph' '-t 2=--layout threads' '-J x.json=--json FILE' '-R 1=--memory nccl' '-N 2=--rounds' \
    '-w 0=--warmup_iters 0: expected 1 or more'; do
    refuses "of nccl-tests: ${case%%=*}" 2 "^onehop: perf: .*${case#*=}" -- perf ${case%%=*}
done
for letter in t G J R r z I K N a x p y C S D V M u; do
    refuses "of nccl-tests: -$letter" 2 '^onehop: perf: --[a-z_]+: an option of nccl-tests; ' -- perf -$letter 1
done
refuses "sizes without an element" 2 '--minbytes 3 --maxbytes 3: no size holds an element of the types; expected' \
    -- perf -b 3 -e 3 -d double
refuses "too many rows" 2 ': more than 100000 rows; expected fewer' -- perf -b 1K -e 64G -i 64
mkfifo "$scratch/fifo"
exec 8<>"$scratch/fifo"
run_limited "${interruptible[@]}" timeout -s INT --foreground 1 "$onehop" perf --from "$scratch/fifo"
expect "SIGINT while it reads a pipe" 124
exec 8<&-

# --- many rows, large numbers

awk 'BEGIN {
    print "mode,type,op,ranks,bytes,count,side,time_us,p99_us,algbw_gbps,busbw_gbps,wrong,floor_us,served_by,simulated"
    for (i = 1; i <= 20000; i++) {
        printf "graph,float,sum,2,%d,%d,stock,9,9,1,1,0,,,0\n", 4 * i, i
        printf "graph,float,sum,2,%d,%d,onehop,3,3,1,1,0,,oneshot,0\n", 4 * i, i
    }
    print "graph,float,sum,2,68719476736,17179869184,stock,123456789.5,1e14,1,1,0,,,0"
}' >"$scratch/many.csv"
SECONDS=0
perf --from "$scratch/many.csv"
[ "$status" = 0 ] && [ $SECONDS -lt 4 ] && [ "$(grep -c '^ ' "$out")" = 20001 ]
tap_point $? "20,000 rows are read in no time" "$SECONDS s; $(grep -c '^ ' "$out") rows; $(cat "$err")"
expect "a column holds any time and any size" 0 '^  67108864K 16777216K    float    sum 1\.2e\+08 +1e\+14 '

# --- what is missing: exit status 1, one sentence

if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    tap_skip "no driver" "there is one"
else
    LD_LIBRARY_PATH='' refuses "no driver" 1 'perf: no usable CUDA driver: .*; run nvidia-smi, or add --simulated$' \
        -- perf --csv "$csv"
fi
CUDA_VISIBLE_DEVICES='' refuses "no GPU" 1 'perf: ' -- perf --csv "$csv"
refuses "fewer GPUs than asked for" 1 '--ngpus 4: CUDA sees 3 here' -- perf -g 4
refuses "one GPU has no floor" 1 '--floor needs 2 to 8 GPUs' -- perf -g 1 --floor
refuses "no NCCL" 1 'cannot load /nowhere/libnccl.so' -- perf --nccl /nowhere/libnccl.so
refuses "a library that is another" 1 'undefined symbol: nccl' -- perf --onehop "$stand_ins/libcuda.so.1" -b 64 -e 64
refuses "no recording" 1 '/nowhere/x.csv: No such file' -- perf --from /nowhere/x.csv
{ printf '# settings: %02000d\n' 1; cat "$scratch/kept.csv"; } >"$scratch/long.csv"
expect "a comment of 2000 characters, as of a launcher's command line" 0 '^# [0-9.]+ x SIMULATED|^# SIMULATED' \
    -- perf --from "$scratch/long.csv"
if [ -z "${OH_SANITIZERS-}" ]; then
    { cat "$scratch/kept.csv"; head -c 60M /dev/zero; } >"$scratch/endless.csv"
    refuses "a line for which there is no memory: its file has not been read" 1 'endless.csv: Cannot allocate memory$' \
        -- run_limited bash -c 'ulimit -v 50000; exec "$@"' bash "$onehop" perf --from "$scratch/endless.csv"
    rm "$scratch/endless.csv"
fi
refuses "a file that is none" 1 'README.md:[0-9]+: not the head' -- perf --from "$abs_top_srcdir/README.md"
refuses "a file that cannot be made" 1 '/nowhere/x.csv: No such file' -- perf --csv /nowhere/x.csv
refuses "stdout is closed: no table in another file" 1 'the table cannot be written: Bad file descriptor' \
    -- run_limited bash -c '"$@" >&-' bash "$onehop" perf -b 64 -e 64 $few --csv "$csv"
refuses "a folder" 1 ': Is a directory' -- perf --csv "$scratch"
ln -s "$scratch/both" "$scratch/link"
cp "$scratch/kept.csv" "$scratch/here"
for pair in "$scratch/new $scratch/./new" "$scratch/here $scratch/here" "$scratch/both $scratch/link" "/dev/stdout -"; do
    read -r one two <<<"$pair"
    [ "$one" != "$scratch/both" ] || touch "$scratch/both"
    refuses "--csv $one --json $two" 2 "perf: ${two/#-/stdout}: the same file as $one; expected another$" \
        -- perf --from "$scratch/kept.csv" --csv "$one" --json "$two"
    [ ! -e "$scratch/new" ] && cmp -s "$scratch/kept.csv" "$scratch/here"
    tap_point $? "... and no file has changed" "$(ls "$scratch")"
done
run_limited bash -c '"$@" >>"$0"' "$scratch/all" "$onehop" perf --from "$scratch/kept.csv" --csv "$scratch/all"
[ "$status" = 0 ] && grep -q '^# Out of bounds' "$scratch/all" && [ "$(tail -n 1 "$scratch/all" | cut -d , -f 1-8)" = "$(tail -n 1 "$scratch/kept.csv" | cut -d , -f 1-8)" ]
tap_point $? "a file that is stdout, too, has the table and the numbers" "$(cat "$scratch/all" "$err")"
expect "two outputs to nowhere" 0 -- perf --from "$scratch/kept.csv" --csv /dev/null --json /dev/null
expect "a full disk, --csv" 1 'perf: /dev/full: No space left' \
    -- perf --from "$scratch/kept.csv" --csv /dev/full --json -
run_full "$onehop" perf -b 64 -e 64 $few
refuses "a full disk, the table" 1 'perf: the table cannot be written: No space left'
# A small disk of its own, in a mount namespace of its own.
small=$scratch/small
mkdir "$small"
run_limited unshare -rm sh -c 'mount -t tmpfs -o size=8k none "$1" && head -c 6k /dev/zero >"$1/filler" || exit 99
    "$2" perf --from "$3" --csv "$1/a.csv"
    status=$?
    ls -A "$1"
    exit $status' sh "$small" "$onehop" "$scratch/kept.csv"
if grep -q '^filler$' "$out"; then
    expect "a small disk" 1 'No space left'
    [ "$(sed -n '/^# Out of bounds/,$p' "$out" | sed 1,2d)" = filler ]
    tap_point $? "holds no half of a file" "$(cat "$out" "$err")"
else
    tap_skip "a small disk" "tmpfs cannot be mounted here"
fi

# --- ends in the middle

# start ARGUMENT...: a run of its own that is measuring when this returns; sets $pid, $ranks.
start() {
    rm -f "$out" "$err"
    "${interruptible[@]}" "$onehop" perf -b 64 -e 64 -d all -o all --rounds 100 "$@" >"$out" 2>"$err" </dev/null &
    pid=$!
    await 60 grep -qsE '^ +64 +64 +int8 +sum' "$out"
    ranks=$(sed -n 's/^#  Rank .* Pid *\([0-9]*\) .*/\1/p' "$out" | sort -u)
}

# finish SIGNAL PID: sends the signal, and waits for the run; sets $status.
finish() {
    kill -"$1" "$2"
    status=0
    wait "$pid" 2>/dev/null || status=$?
}

# ended NAME: nothing of it is left, within some seconds.
ended() {
    local left
    left=$(living $ranks)
    [ -n "$ranks" ] && [ -z "$left" ] && [ -z "$(ls -A "$work")$(ls -A "$TMPDIR")" ]
    tap_point $? "$1: nothing is left" "ranks: $ranks, living: $left; $(ls -A "$work" "$TMPDIR"; tail -n 3 "$out" "$err")"
}

for layout in processes threads; do
    start --layout $layout --csv "$csv" --json "$json"
    finish TERM $pid
    expect "SIGTERM in the middle, $layout" 143 'perf: ended by signal 15 \(Terminated\), and all ranks with it$'
    ended "SIGTERM, $layout"
done
start --csv "$csv"
finish INT $pid
expect "SIGINT" 130 'perf: ended by signal 2 \(Interrupt\), and all ranks with it$'
ended SIGINT
start
finish KILL $pid
ended "the command killed"
start --csv "$csv"
finish KILL ${ranks##*[[:space:]]}
expect "a rank killed" 1 'perf: process [0-9] of the ranks was killed by signal 9'
ended "a rank killed"
start -T 2
finish STOP ${ranks##*[[:space:]]}
expect "a rank that does not go on" 1 'perf: no progress for 2 s \(--timeout\)'
ended "a rank that does not go on"

# --- progress

if command -v script >/dev/null; then # util-linux: a terminal, of which only stderr is the command's
    run_limited script -qefc "'$onehop' perf -b 64 -e 256 --graph -n 2 --rounds 2 >/dev/null" "$scratch/typescript"
    expect "a line of progress on a terminal, gone at the end" 0 'of 3: graph, float, sum, ' $'\r\x1b\[K$'
else
    tap_skip "a line of progress on a terminal" "no script (Debian: bsdutils)"
fi
tap_done
