# SPDX-License-Identifier: MIT
#
# tools.sh - the onehop command on real GPUs: ended in the middle, with one GPU and with none, beside a run, and beside
# nvidia-smi. For scripts/check-gpu tools; speaks TAP.
#
#   bash test/gpu/tools.sh PREFIX OUT
#
# PREFIX: an installed onehop. OUT: a folder for what the commands say. All GPUs are used; LD_LIBRARY_PATH leads to NCCL
# where needed. OH_TOOLS_ROUNDS: of the perf that is looked at and interrupted (300, some 15 s on GPUs if nobody ends it).
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
abs_top_srcdir=$top
. "$top/scripts/lib.sh"
. "$top/test/hygiene/tap.sh"
. "$top/test/e2e/commands.sh"

prefix=$1 folder=$2/tools
onehop=$prefix/bin/onehop
mkdir -p "$folder"
unset CUDA_VISIBLE_DEVICES ONEHOP_STATS ONEHOP_DEBUG LD_PRELOAD NCCL_DEBUG
background=
trap '[ -z "$background" ] || kill -KILL "$background" 2>/dev/null' EXIT

# tool NAME ARGUMENT...: a command under a limit. Sets $status; stdout in $out, stderr in $err.
tool() {
    out=$folder/$1.out err=$folder/$1.err status=0
    shift
    oh_limited 60 "$onehop" "$@" >"$out" 2>"$err" </dev/null || status=$?
}

# What went wrong, for tap_point.
diagnosis() {
    printf 'exit status %s\n' "$status"
    tail -n 8 "$out" "$err"
}

# --- what the GPUs hold

# MiB in use, a line a GPU; nothing where nvidia-smi cannot tell.
memory() {
    timeout 20 nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | grep -E '^[0-9]+$'
}

# released NAME PID...: these processes end, nvidia-smi names none of them, and the GPUs hold what they held at the
# beginning. (In a container nvidia-smi has no process ids, or those of another namespace: memory tells.)
released() {
    local name=$1 left now=
    shift
    left=$(living "$@")
    [ $# -gt 0 ] && [ -z "$left" ]
    tap_point $? "$name: its $# processes are gone" "living: $left"
    if [ -z "$memory_before" ]; then
        tap_skip "$name: the GPUs are free again" "no nvidia-smi that tells"
        return
    fi
    for _ in $(seq 20); do
        now=$(memory)
        paste -d ' ' <(printf '%s\n' "$memory_before") <(printf '%s\n' "$now") |
            awk '{ if ($2 > $1 + 16) more = 1 } END { exit more }' && break
        sleep 0.25
        now=
    done
    left=$(timeout 20 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null |
        grep -xF -f <(printf '%s\n' "$@"))
    [ -n "$now" ] && [ -z "$left" ]
    tap_point $? "$name: the GPUs are free again" "MiB before: ${memory_before//$'\n'/ }; now: $(memory | xargs); $left"
}

# --- a command in the background

# start NAME ARGUMENT...: sets $background; stdout in $out, stderr in $err.
start() {
    out=$folder/$1.out err=$folder/$1.err
    shift
    "${interruptible[@]}" "$onehop" "$@" >"$out" 2>"$err" </dev/null &
    background=$!
}

# family PID: the process and all below it.
family() {
    local child
    echo "$1"
    for child in $(cat "/proc/$1/task"/*/children 2>/dev/null); do
        family "$child"
    done
}

# until_it SECONDS COMMAND...: waits till the command succeeds; false when it never does, or the background ends.
until_it() {
    local left=$(($1 * 10))
    shift
    while [ $((left--)) -gt 0 ] && [ -d "/proc/$background" ]; do
        ! "$@" || return 0
        sleep 0.1
    done
    return 1
}

# interrupt NAME: SIGINT to the background; it must end by it within five seconds, and leave nothing on the GPUs.
interrupt() {
    local name=$1 began members
    mapfile -t members < <(family "$background")
    began=$(date +%s%N)
    kill -INT "$background"
    kill -CONT "$background"
    status=0
    wait "$background" 2>/dev/null || status=$?
    background=
    began=$((($(date +%s%N) - began) / 1000000))
    [ "$status" = 130 ] && [ "$began" -le 5000 ]
    tap_point $? "$name: SIGINT ends it ($began ms)" "$(diagnosis)"
    released "$name" "${members[@]}"
}

has_row() {
    grep -qE '^ +64 +64 +int8 +sum' "$out"
}
has_ranks() {
    [ "$(family "$background" | wc -l)" -gt 2 ]
}
has_driver() { # CUDA is being opened
    grep -qs 'libcuda\.so' "/proc/$background/maps"
}

# --- perf, and who looks at it meanwhile

memory_before=$(memory)
start perf perf -b 64 -e 64 -d all -o all --rounds "${OH_TOOLS_ROUNDS-300}"
if until_it 60 has_row; then
    rank=$(sed -n 's/^#  Rank  0 Pid *\([0-9]*\) .*/\1/p' "$out")
    expect "stat sees the ranks of a perf" 0 "process $rank" -- tool stat stat
    expect "stat --pid of a rank" 0 served -- tool stat-pid stat --pid "$rank"
    tool stat-json stat --json --pid "$rank"
    [ "$status" = 0 ] && python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$out" 2>>"$err"
    tap_point $? "stat --json is JSON" "$(diagnosis)"
    expect "doctor --pid of a rank" 0 '^verdict: yes' -- tool doctor-pid doctor --pid "$rank"
    out=$folder/perf.out err=$folder/perf.err
    interrupt perf
else
    tap_point 1 "perf measures" "$(status=unknown diagnosis)"
    kill -KILL "$background" 2>/dev/null
    wait "$background" 2>/dev/null
    background=
fi

start tune tune -b 1M -e 8M --iters 1000 --rounds 900 -o "$folder/interrupted.tuning"
until_it 60 has_ranks
sleep 4
interrupt tune
[ -z "$(find "$folder" -name 'interrupted.tuning*')" ]
tap_point $? "tune: no table, nor half of one" "$(ls "$folder")"

# held: the background is stopped where it is, and had not ended before.
held() {
    kill -STOP "$background" 2>/dev/null
    for _ in $(seq 200); do # on a busy machine a process stops late
        case $({ sed 's/.*) //; s/ .*//' "/proc/$background/stat"; } 2>/dev/null) in
        T) return 0 ;;
        Z | '') return 1 ;;
        esac
        sleep 0.1
    done
    kill -CONT "$background"
    return 1
}

# How long it measures depends on the GPUs: later, then sooner.
for delay in 2 1 0.5 0.2 0; do
    start topo topo --measure
    until_it 30 has_driver
    sleep $delay
    ! held || break
    wait "$background"
    background=
done
if [ -n "$background" ]; then
    interrupt "topo --measure"
else
    tap_skip "topo --measure: SIGINT ends it" "it is always done before"
fi

# --- one GPU, and none

export CUDA_VISIBLE_DEVICES=0
expect "one GPU, topo: exit status 1, why, and what could be done" 1 \
    '^verdict: falls back to NCCL: 1 GPU is visible' 'what to do: ' -- tool one-topo topo
expect "one GPU, perf: measures it" 0 'Out of bounds values : 0 OK' -- tool one-perf perf -b 64 -e 64 -n 2 -w 1 --rounds 2
expect_sentence "one GPU, perf --floor" 1 '--floor needs 2 to 8 GPUs' -- tool one-floor perf --floor -b 64 -e 64
expect_sentence "one GPU, tune" 1 'at least 2 GPUs are needed' -- tool one-tune tune
expect "one GPU, doctor: exit status 2, since ranks may see one each" 2 \
    '^verdict: unknown: CUDA_VISIBLE_DEVICES=0 shows one GPU' -- tool one-doctor doctor
export CUDA_VISIBLE_DEVICES=
expect_sentence "no GPU, topo" 1 'CUDA sees no GPU here.*; what to do: ' -- tool no-topo topo
expect_sentence "no GPU, perf" 1 'perf: CUDA sees no GPU here' -- tool no-perf perf -b 64 -e 64
expect_sentence "no GPU, tune" 1 'tune: .*CUDA sees no GPU here' -- tool no-tune tune
unset CUDA_VISIBLE_DEVICES

# --- beside nvidia-smi

# links NAME: the matrix of a page, one line for each GPU: "NV18" and the like, 0 where there is no NVLink.
links() {
    sed 's/\x1b\[[0-9;]*m//g' "$folder/$1" | awk '$1 ~ /^GPU[0-9]+$/ && $2 ~ /^(X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|-)$/ && !seen[$1]++ {
        line = $1
        for (i = 2; i <= NF && $i ~ /^(X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|-)$/ && i <= gpus + 1; i++) {
            line = line " " ($i ~ /^NV/ ? $i : $i == "X" ? "X" : 0)
        }
        print line
    }' gpus="$gpus"
}
tool page topo
gpus=$(sed -n '1s/^[^0-9]*\([0-9]*\) GPU.*/\1/p' "$out")
if timeout 20 nvidia-smi topo -m >"$folder/nvidia-smi-topo" 2>&1 && grep -q '^.*GPU0' "$folder/nvidia-smi-topo"; then
    [ -n "$(links page.out)" ] && [ "$(links page.out)" = "$(links nvidia-smi-topo)" ]
    tap_point $? "the matrix has the link counts of nvidia-smi topo -m" \
        "$(diff <(links page.out) <(links nvidia-smi-topo); cat "$folder/nvidia-smi-topo")"
else
    tap_skip "the matrix has the link counts of nvidia-smi topo -m" "nvidia-smi cannot tell"
fi
tap_done
