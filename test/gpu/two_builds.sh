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
done | python3 -c '
import statistics, sys

# Fields: turn, side, type, op, ranks, bytes, count, library, time, p99, algbw, busbw, wrong, ...
times, wrong = {}, set()
for line in sys.stdin:
    fields = line.split(",")
    if len(fields) < 13:
        sys.exit("no result: " + line.strip())
    turn, side, size = fields[0], fields[1], int(fields[5])
    times.setdefault(size, {"old": {}, "new": {}})[side][turn] = float(fields[8])
    if fields[12].strip() != "0":
        wrong.add(size)
if not times:
    sys.exit("no result")
print("%9s %9s %9s   new - old: least, median, greatest" % ("bytes", "old", "new"))
for size, of in times.items():
    differences = [of["new"][turn] - of["old"][turn] for turn in of["new"]]
    print("%9d %9.2f %9.2f   %+.2f %+.2f %+.2f%s" % (
        size, statistics.median(of["old"].values()), statistics.median(of["new"].values()), min(differences),
        statistics.median(differences), max(differences), "  WRONG" if size in wrong else ""))
'
