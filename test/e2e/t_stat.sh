# SPDX-License-Identifier: MIT
# onehop stat: what it shows of processes that run. And where statistics go at the end: words, JSON, files; the log's
# file; what the public API tells.
. "$abs_top_srcdir/test/e2e/lib.sh"

jobs=()
trap 'kill "${jobs[@]}" 2>/dev/null; rm -rf "$scratch" "$shm"' EXIT
unset ONEHOP_STATS ONEHOP_DEBUG

# start NAME RANK: a rank of job NAME. Its pid is in ${pid_NAME_RANK}; it takes commands from, and answers to, a fifo.
start() {
    local at=$scratch/$1.$2
    mkfifo "$at.in" "$at.out"
    LD_PRELOAD=$plugin "$live" "$2" 2 "$scratch/$1.id" live <"$at.in" >"$at.out" 2>"$at.log" &
    jobs+=($!)
    printf -v "pid_$1_$2" %s $!
    exec {fd}>"$at.in"
    printf -v "in_$1_$2" %s "$fd"
    exec {fd}<"$at.out"
    printf -v "out_$1_$2" %s "$fd"
}

# hear NAME: the next lines of both ranks, in ${said[0]} and ${said[1]}.
hear() {
    local rank fd
    for rank in 0 1; do
        fd=out_$1_$rank said[rank]=
        read -r -t "$limit" -u "${!fd}" "said[rank]" || said[rank]="nothing; $(tail -n 5 "$scratch/$1.$rank.log")"
    done
}

# tell NAME COMMAND: to both ranks; hears the answers.
tell() {
    local rank fd
    for rank in 0 1; do
        fd=in_$1_$rank
        echo "$2" >&"${!fd}"
    done
    hear "$1"
}

# job NAME: starts both ranks. False when they do not come up.
job() {
    start "$1" 0
    start "$1" 1
    hear "$1"
    [ "${said[*]}" = 'ready ready' ]
}

# stat ARGUMENT...: sets $status, fills $out.
stat() {
    run_limited "$onehop" stat "$@"
}

# --- processes that live

job a
tap_point $? "two ranks have a communicator" "${said[*]}"
pid=$pid_a_0
expect "before a call" 0 "^process $pid \(sim_live\): 1 communicator$" \
    '^  [0-9a-f]{16}   0/2 idle +0 +0 +0 +0 MiB$' 'no call that onehop could serve was made$' -- stat --pid "$pid"
tell a 'call 7'
expect "after seven calls of 4000 bytes" 0 '/2 served +7 +0 +28000 +[1-9][0-9]* MiB$' 'attached in [0-9]+\.[0-9] ms; ' \
    'served: [a-z_]+ 7; collectives: allreduce 7$' -- stat --pid "$pid"
if command -v python3 >/dev/null; then
    "$onehop" stat --pid "$pid_a_1" --json >"$scratch/json" 2>"$out"
    python3 - "$scratch/json" "$pid_a_1" >"$out" 2>&1 <<'PY'
import json, sys
lines = open(sys.argv[1]).read().splitlines()
assert len(lines) == 1, lines
top = json.loads(lines[0])
assert top["schema"] == 1 and top["pid"] == int(sys.argv[2]) and top["command"] == "sim_live" and top["ended"] == 0, top
comm, = top["communicators"]
assert (comm["rank"], comm["nranks"], comm["state"], comm["served"], comm["bytes"]) == (1, 2, "served", 7, 28000), comm
assert comm["served_by_collective"] == {"allreduce": 7, "allgather": 0, "reducescatter": 0, "broadcast": 0}, comm
assert sum(comm["served_by_algorithm"].values()) == 7 and comm["fallback"] == 0 and set(comm["fallback_reasons"]) == {"comm", "op", "type", "size", "kind"}
assert comm["staging_bytes"] > 1 << 20 and comm["attach_us"] > 0 and comm["reason"] == "", comm
PY
    tap_point $? "the other rank as JSON, on one line" "$(cat "$out" "$scratch/json")"
    # A board that somebody else has made, and an empty one.
    python3 -c 'import os, sys
for text in b"x" * 400000, b"":
    fd = os.memfd_create("onehop-stats")
    os.fchmod(fd, 0o600)
    os.write(fd, text)
print("ready", flush=True)
sys.stdin.read()' < <(sleep 30) >"$scratch/forger" 2>&1 &
    forger=$!
    jobs+=($forger)
    await 10 grep -q ready "$scratch/forger"
    expect "a board that onehop did not make" 1 'shows something that onehop did not make' -- stat --pid $forger
    kill $forger
else
    tap_skip "JSON" "no python3"
fi
ids=$(for rank in 0 1; do p=pid_a_$rank; "$onehop" stat --pid "${!p}" | grep -oE '^  [0-9a-f]{16}'; done | sort -u | wc -l)
[ "$ids" = 1 ]
tap_point $? "both ranks give the communicator the same number" "$ids numbers"
ONEHOP_MAX_BYTES=1K job b
tell b 'call 3'
expect "all processes" 0 "^process $pid_a_0 " "^process $pid_a_1 " "^process $pid_b_0 " 'served +0 +3 ' \
    'fallbacks: size 3$' -- stat
tell b info
[[ ${said[0]} == 'communicators 1 served 1 ended 0 calls 0 bytes 0 back 3 size 3 allreduce 0 staging '[1-9]* ]]
tap_point $? "the public API tells the same" "${said[0]}"
job c
echo 'call 1' >&"$in_c_0"
await 10 eval '"$onehop" stat --pid "$pid_c_0" | grep -q "0/2 attaching "'
tap_point $? "the first call waits for the other rank" "$("$onehop" stat --pid "$pid_c_0")"
echo 'call 1' >&"$in_c_1"
hear c
kill "$pid_c_0" "$pid_c_1"
tell a fork
expect "a forked child shows nothing" 1 "^onehop: stat: process ${said[0]} shows no communicator" \
    -- stat --pid "${said[0]}"
tell a 'call 2'
expect "the parent goes on" 0 'served +9 ' -- stat --pid "$pid"
tell a info
[[ ${said[1]} == *' calls 9 '*' allreduce 9 '* ]]
tap_point $? "and the public API tells calls by collective" "${said[1]}"

# Counters for Prometheus: a file that is there whole or not at all, and what its syntax must be.
metrics=$scratch/onehop.prom
expect "--openmetrics to a file" 0 -- stat --openmetrics --output "$metrics"
out=$metrics expect "its counters" 0 "^onehop_served_calls_total[{]pid=\"$pid\",command=\"sim_live\",algorithm=\"[a-z]+\"[}] 9$" \
    "^onehop_served_collectives_total[{]pid=\"$pid\",command=\"sim_live\",collective=\"allreduce\"[}] 9$" \
    "^onehop_served_collectives_total[{]pid=\"$pid\",command=\"sim_live\",collective=\"broadcast\"[}] 0$" \
    "^onehop_served_bytes_total[{]pid=\"$pid\",command=\"sim_live\"[}] 36000$" \
    "^onehop_fallback_calls_total[{]pid=\"$pid_b_0\",.*reason=\"size\"[}] 3$" \
    "^onehop_fallback_bytes_total[{]pid=\"$pid_b_0\",command=\"sim_live\"[}] 12000$" \
    "^onehop_communicators[{]pid=\"$pid\",command=\"sim_live\",state=\"served\"[}] 1$" \
    "^onehop_memory_bytes[{]pid=\"$pid\",command=\"sim_live\"[}] [1-9][0-9]*$" '^onehop_processes [0-9]+$'
# Each family has TYPE, then UNIT if its name says one, then HELP, then its samples, each with labels of its own.
wrong=$(awk '
    ended { print "behind the end: " $0 }
    $1 == "#" && $2 == "TYPE" { family = $3; if (($4 != "counter" && $4 != "gauge") || family in seen) print; seen[family]; next }
    $1 == "#" && $2 == "UNIT" { if ($3 != family || index(family, $4) == 0) print; unit[family] = 1; next }
    $1 == "#" && $2 == "HELP" { if ($3 != family || NF < 4) print; help[family] = 1; next }
    /^# EOF$/ { ended = 1; next }
    { name = $0; sub(/[{ ].*/, "", name); sample = $0; sub(/ [0-9]+$/, "", sample) }
    name != family || !help[family] || (family ~ /_bytes/) != (family in unit) || sample in there { print }
    !/^[a-z_]+([{]([a-z]+="[^"]*",?)+[}])? [0-9]+$/ { print }
    { there[sample] }
    END { if (!ended) print "no end" }' "$metrics")
tap_empty "$wrong" "it is well formed"
if command -v promtool >/dev/null; then
    promtool check metrics <"$metrics" >"$out" 2>&1
    tap_point $? "promtool accepts it" "$(cat "$out" "$metrics")"
    promtool check rules "$abs_top_srcdir/doc/monitoring/onehop.rules.yml" >"$out" 2>&1
    tap_point $? "and the rules that go with it" "$(cat "$out")"
else
    tap_skip "promtool accepts it" "no promtool"
fi
names=$(sed -n 's/^# TYPE \([^ ]*\) .*/\1/p' "$metrics")
tap_empty "$(grep -ohE 'onehop_[a-z_]+' "$abs_top_srcdir"/doc/monitoring/* | sort -u | grep -vxF "$names")" \
    "rules and dashboard name no other metric"
expect "two forms at once" 2 'expected one of them' -- stat --openmetrics --json
expect "a file that cannot be made" 1 '^onehop: stat: .*/none/x: No such file or directory$' \
    -- stat --pid "$pid" --output "$scratch/none/x"

tell b 'call 40'
tell b end
[ "${said[*]}" = 'done done' ]
tap_point $? "the communicators end" "${said[*]}"
expect "an ended communicator's calls are kept" 0 \
    '0 communicators; 1 ended before, which had served 0 calls, with 43 fallbacks$' -- stat --pid "$pid_b_0"
tell b info
[[ ${said[1]} == 'communicators 0 served 0 ended 1 calls 0 bytes 0 back 43 size 43 allreduce 0 staging 0' ]]
tap_point $? "by the public API too" "${said[1]}"
kill "$pid_b_0"

# --- what is no such process

expect "a process without onehop" 1 "^onehop: stat: process $$ shows no communicator" -- stat --pid $$
bash -c : &
gone=$!
wait $gone
expect "no process" 1 "^onehop: stat: process $gone is not there" -- stat --pid $gone
for arguments in '--pid 0' '--pid x' '--wrong' '4711'; do
    # shellcheck disable=SC2086
    expect "stat $arguments" 2 -- stat $arguments
done
expect "nowhere to write to" 1 'stdout: No space left' -- run_full "$onehop" stat --pid "$pid"
if command -v python3 >/dev/null; then
    python3 - "$onehop" "$pid" >"$out" 2>&1 <<'PY'
import os, subprocess, sys
read, write = os.pipe()
os.close(read)
done = subprocess.run([sys.argv[1], "stat", "--pid", sys.argv[2]], stdout=write, stderr=subprocess.PIPE, restore_signals=True)
print(done)
assert done.returncode == 1 and b"stdout: Broken pipe" in done.stderr
PY
    tap_point $? "a pipe that nobody reads: a sentence, and exit status 1" "$(cat "$out")"
fi
if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups "$onehop" --version >/dev/null 2>&1; then
    expect "another user's process" 1 'may not be looked at' \
        -- run_limited setpriv --reuid=65534 --clear-groups "$onehop" stat --pid "$pid"
else
    tap_skip "another user's process" "not root, or no setpriv"
fi
kill -KILL "$pid_a_0" "$pid_a_1"
wait "$pid_a_0" "$pid_a_1" 2>/dev/null

# --- at the end

mkdir "$scratch/stats"
ONEHOP_STATS=json:$scratch/stats/%p.%h%% run_app --nranks 2 --counts 5,50
files=("$scratch"/stats/*.*%)
[ ${#files[@]} = 2 ] && [ "$(cat "${files[@]}" | grep -c '^{"pid":.*"served":2,.*"reason":""}$')" = 2 ] &&
    [ "$(command stat -c %a "${files[@]}" | sort -u)" = 600 ]
tap_point $? "ONEHOP_STATS=json with a file for each process, mode 0600" "$(ls -l "$scratch/stats"; cat "${files[@]}")"
ONEHOP_STATS=json run_app --nranks 2 --counts 5
record='^\{"pid":[0-9]+,"comm":"[0-9a-f]{16}","rank":[01],"nranks":2,"state":"%s","served":1,'
served=$(count_of "$(printf "$record" served)")
# The rank that ends first finds the other there; the other one may find that its peer has departed.
[ "$served" -ge 1 ] && [ $((served + $(count_of "$(printf "$record" ended)"))) = 2 ]
tap_point $? "json without a file: on stderr" "$(cat "$out")"
ONEHOP_STATS=json expect_counts "json: calls by collective, and the bytes of their larger buffers" \
    '2:"served":5,"bytes":160,.*"served_by_collective":[{]"allreduce":1,"allgather":2,"reducescatter":1,"broadcast":1[}],"fallback":0,' \
    -- run_app --nranks 2 --counts 5 --collectives $kinds,allgather --batch 5
ONEHOP_STATS=text:$scratch/all run_app --nranks 2 --counts 5
expect_file "text with one file for all" "$scratch/all" \
    '2:^rank [01] nranks 2 served=1 .* collectives .allreduce=1 allgather=0 reducescatter=0 broadcast=0. bytes=20 .*memory=[1-9][0-9]* attach_us=[1-9]'
ONEHOP_STATS=text expect_counts "text without: on stderr" '2:^onehop: [^ ]+ stats: rank [01] nranks 2 served=1 ' \
    -- run_app --nranks 2 --counts 5
for value in yes json: text:relative jsonx; do
    ONEHOP_STATS=$value expect_counts "ONEHOP_STATS=$value: said once by each process, and none are given" \
        "2:WARN ONEHOP_STATS=$value is not accepted" 0:served= -- run_app --nranks 2 --counts 5
done
touch "$scratch/target"
ln -s "$scratch/target" "$scratch/link"
ONEHOP_STATS=json:$scratch/link run_app --nranks 2 --counts 5
[ "$status" = 0 ] && [ ! -s "$scratch/target" ] && [ "$(count_of 'WARN ONEHOP_STATS: .*link cannot be opened')" = 2 ]
tap_point $? "a link is not followed" "$(cat "$out")"

# A file whose size is beyond the limit stands for a full disk. Each rank has three communicators, and says so once.
truncate -s 1T "$scratch/full"
run_limited_files() {
    run_limited bash -c 'ulimit -f 100000000; exec "$@"' - env LD_PRELOAD="$plugin" "$@" "$app" --nranks 2 --counts 5 --batch 3 \
        --comms 3
}
for file in "" /gone/file /none /full; do
    problem="opened: "
    [ "$file" != /full ] || problem="written: File too large"
    ONEHOP_DEBUG=WARN ONEHOP_STATS=1 expect_counts "ONEHOP_STATS_FILE=$file: said once, and the calls go on" 2:WARN \
        "2:WARN ONEHOP_STATS_FILE: $scratch$file cannot be $problem" 6:stats: served=6 \
        -- run_limited_files ONEHOP_STATS_FILE="$scratch$file"
done
ONEHOP_DEBUG=WARN expect_counts "ONEHOP_STATS with a file: the same" 2:WARN \
    "2:WARN ONEHOP_STATS: $scratch/full cannot be written: File too large" -- run_limited_files ONEHOP_STATS=json:"$scratch/full"

# --- the log's file

ONEHOP_DEBUG=INFO ONEHOP_DEBUG_FILE=$scratch/log.%p ONEHOP_STATS=text run_app --nranks 2 --counts 5
[ "$(count_of onehop:)" = 0 ] && [ "$(cat "$scratch"/log.* | grep -c 'INFO .*served by onehop')" = 2 ] &&
    [ "$(cat "$scratch"/log.* | grep -c 'stats: rank')" = 2 ]
tap_point $? "ONEHOP_DEBUG_FILE takes the log and the statistics" "$(cat "$out" "$scratch"/log.*)"
ONEHOP_DEBUG=INFO ONEHOP_DEBUG_FILE=$scratch/link run_app --nranks 2 --counts 5
[ "$status" = 0 ] && [ "$(count_of 'WARN ONEHOP_DEBUG_FILE=.* cannot be opened .*; the log goes to stderr')" = 2 ] &&
    [ "$(count_of 'served by onehop')" = 2 ] && [ ! -s "$scratch/target" ]
tap_point $? "a file that cannot be had: said once, and stderr has the log" "$(cat "$out")"
ONEHOP_DEBUG=INFO expect_counts "a disk that is full: the same" '6:served by onehop' 2:WARN \
    '2:WARN ONEHOP_DEBUG_FILE=.*full cannot be written .File too large.; the log goes to stderr' \
    -- run_limited_files ONEHOP_DEBUG_FILE="$scratch/full"
ONEHOP_DEBUG_FILE=/dev/full ONEHOP_STATS=json:/dev/full expect_right "what is no file is not written to" \
    -- run_app --nranks 2 --counts 5
expect_no_files
tap_done
