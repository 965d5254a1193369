#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# two_builds.sh - is one build of the library faster than another? Graphs of 50 calls back to back, on real GPUs
#
#   bash test/gpu/two_builds.sh OLD NEW [OPTION-OF-onehop-perf...]
#
# OLD, NEW: prefixes that builds are installed under. Measures them in turns (OH_TURNS, 3), with NEW's onehop perf, some 4 s
# each time, and prints for each size the median of the turns in microseconds, the least of the differences between two of
# one turn, their median and the greatest: where least and greatest have one sign, it is no accident.
set -u
old=$1 new=$2
shift 2
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
for turn in $(seq "${OH_TURNS:-3}"); do
    for side in old new; do
        "$new/bin/onehop" perf -b 1K -e 2M -n 50 -d bfloat16 --graph --compare onehop --onehop "${!side}/lib/libonehop.so" \
            --csv - "$@" >"$scratch/csv" || { cat "$scratch/csv"; exit 1; }
        sed -n "s/^graph,/$turn,$side,/p" "$scratch/csv"
    done
done | awk -F, '
    # The median of list[1..n], which is sorted.
    function middle(n) { sort(n); return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
    function sort(n,    i, j, t) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && list[j] < list[j - 1]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
    }
    # Fields: turn, side, type, op, ranks, bytes, count, library, time, p99, algbw, busbw, wrong
    NF < 9 { print "no result: " $0; failed = 1; next }
    { time[$2, $6, $1] = $9; if ($1 > turns) turns = $1; if ($13) wrong[$6]++ }
    !($6 in known) { known[$6] = 1; size[++sizes] = $6 }
    END {
        if (!sizes) { print "no result"; exit 1 }
        printf "%9s %9s %9s   %s\n", "bytes", "old", "new", "new - old: least, median, greatest"
        for (s = 1; s <= sizes; s++) {
            b = size[s]
            for (t = 1; t <= turns; t++) list[t] = time["old", b, t]
            was = middle(turns)
            for (t = 1; t <= turns; t++) list[t] = time["new", b, t]
            is = middle(turns)
            for (t = 1; t <= turns; t++) list[t] = time["new", b, t] - time["old", b, t]
            m = middle(turns)
            printf "%9d %9.2f %9.2f   %+.2f %+.2f %+.2f%s\n", b, was, is, list[1], m, list[turns],
                (b in wrong) ? "  WRONG" : ""
        }
        exit failed
    }'
