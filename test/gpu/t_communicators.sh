# SPDX-License-Identifier: MIT
# t_communicators.sh [STEP...] - communicators that come and go, on GPUs. Steps: creation groups communicators communicators-live.
. "$(dirname "$0")/lib.sh"

# grown LOG KIND: the largest growth of a rank in memory, host or GPU, in KiB.
grown() {
    sed -n "s/^rank [0-9]*: .*$2 \([0-9]*\) -> \([0-9]*\) KiB.*/\1 \2/p" "$out/$1.log" |
        awk '{ d = $2 - $1; if (d > m) m = d } END { print m + 0 }'
}

# kept LOG: the largest growth of a rank in descriptors, threads or mappings. (NCCL keeps a thread for each unique id whose
# ranks have not all called on it.)
kept() {
    grep -o '\(descriptors\|threads\|mappings\) [0-9]* -> [0-9]*' "$out/$1.log" |
        awk '{ d = $4 - $2; if (d > m) m = d } END { print m + 0 }'
}

rounds_of() {
    sed -n 's/^rounds made: //p' "$out/$1.log"
}

# medians WHAT LOG...: the median of "WHAT 12.34 ms" over the logs, and of how many; "0 0" where there is none.
medians() {
    sed -n "s/^$1 \([0-9.]*\) ms\$/\1/p" "${@:2}" | sort -n |
        awk '{ v[NR] = $1 } END { printf "%.2f %d", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, NR }'
}

# compare_stress NAME ARGUMENT...: stress_comms with stock NCCL, then with onehop. What stock NCCL leaves behind by itself
# (of host memory 1.5 to 2.3 MiB a round with 2.28.3, uneven from run to run) is not held against onehop.
compare_stress() {
    local name=$1 program=("$build/test/gpu/stress_comms" --ranks "$gpus" "${@:2}")
    step "$name-stock" 300 env LD_LIBRARY_PATH="$libraries" "${program[@]}" --host-kib 1000000 --gpu-kib 1000000 --handles 1000000
    step "$name" 300 env LD_LIBRARY_PATH="$libraries" LD_PRELOAD="$library" ONEHOP_DEBUG=TRACE "${program[@]}" --served \
        --host-kib $((8192 + $(grown "$name-stock" host) * 3 / 2)) --live-gpu-kib $((6144 + $(grown "$name-stock" GPU))) \
        --handles "$(kept "$name-stock")"
    note_of "$name" 'host memory grew by %s KiB, with stock NCCL by %s KiB; GPU memory by %s and %s KiB' \
        "$(grown "$name" host)" "$(grown "$name-stock" host)" "$(grown "$name" GPU)" "$(grown "$name-stock" GPU)"
}

# Rounds of one communicator, 0.8 s each on 2 x H200 with onehop and without, where growth is measured from round 20 on. As
# many as fit, so that the whole is done in ten minutes on any machine.
step_communicators() {
    local rounds=200 kind ours stock
    [ -z "$quick" ] || rounds=30
    compare_stress comms --rounds $rounds --seconds 240 --times
    note_of comms '%s rounds, with stock NCCL %s' "$(rounds_of comms)" "$(rounds_of comms-stock)"
    for kind in rank scalable split; do
        ours=$(medians "later communicator by $kind" "$out/comms.log")
        stock=$(medians "later communicator by $kind" "$out/comms-stock.log")
        note_of comms 'made by %s in %s ms, with stock NCCL in %s ms (medians)' $kind "${ours% *}" "${stock% *}"
    done
}

# Some rounds, and many communicators at once.
step_communicators_live() {
    local live=64 rounds=25
    [ -z "$quick" ] || live=16 rounds=5
    compare_stress "comms-$live" --rounds $rounds --live $live
}

# creation_run NAME SETTING...: a process for each rank makes some communicators by rank, one after the other.
creation_run() {
    local name=$1
    shift
    step "$name" 60 env LD_LIBRARY_PATH="$libraries" "$@" "$build/test/gpu/stress_comms" \
        --ranks "$gpus" --rounds 8 --by-rank --times
}

# What onehop adds to the making of a communicator, and to the first calls on it, with which it is set up: fresh processes
# in turns, the first communicator of each by itself, since it brings the libraries and the GPU up. onehop's log has the
# time of each attach ("attached in"). As many turns as fit into a minute, at most three.
step_creation() {
    local limit turn began=$SECONDS took=0 which with stock
    rm -f "$out"/creation-*.log
    for turn in 1 2 3; do
        [ $((SECONDS - began + took)) -lt 55 ] || break
        took=$SECONDS
        creation_run "creation-stock-$turn" || return
        creation_run "creation-$turn" LD_PRELOAD="$library" ONEHOP_DEBUG=INFO || return
        took=$((SECONDS - took))
    done
    for which in first later called; do
        read -ra with <<<"$(medians "$which communicator by rank" "$out"/creation-[0-9].log)"
        read -ra stock <<<"$(medians "$which communicator by rank" "$out"/creation-stock-[0-9].log)"
        note "$(awk -v w="${with[0]}" -v s="${stock[0]}" -v n="${with[1]}" -v which=$which 'BEGIN {
            printf "%-24s %s: %.1f ms, with stock NCCL %.1f ms, %.1f ms more (medians of %d)", "creation", which, w, s, w - s, n }')"
        limit=30
        [ $which != later ] || limit=5
        [ $which = first ] ||
            awk -v w="${with[0]}" -v s="${stock[0]}" -v limit=$limit 'BEGIN { exit !(w > 0 && s > 0 && w - s <= limit) }' ||
            bad "creation: not $limit ms more than stock NCCL at most: $which"
    done
    grep -q 'served by onehop' "$out"/creation-1.log || bad "creation: not served"
}

# Many process groups; a capture right after one warm-up.
step_groups() {
    have_torch groups || return
    step groups-stock 120 "${torchrun[@]}" "$top/test/gpu/torch_groups.py"
    step groups 120 env LD_PRELOAD="$library" ONEHOP_STATS=1 "${torchrun[@]}" "$top/test/gpu/torch_groups.py"
    served groups
    note "$(grep -h 'MiB' "$out/groups-stock.log" | sed 's/^/groups: stock: /')"
    note "$(grep -h 'first allreduce' "$out/groups.log" | sed 's/^/groups: onehop: /')"
}

run_steps "creation groups communicators communicators-live" "$@"
