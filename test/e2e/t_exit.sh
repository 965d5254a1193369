# SPDX-License-Identifier: MIT
# Communicators that are used, made and ended while the process exits: by atexit, in the program's destructor, in that of a
# library, which runs behind onehop's. Each has one record, with all its calls and a reason that is true.
. "$abs_top_srcdir/test/e2e/lib.sh"

# records MADE CALLS WHERE RECORDS SERVED FALLBACK [REASON [COUNT...]]: of both ranks.
records() {
    run_ranks env LD_PRELOAD="$plugin" "$abs_top_builddir/test/e2e/sim_exit" -- "${@:1:3}"
    expect_counts "made $1, calls $2, last part in $3" "$4:stats: rank" served="$5" fallback="$6" "$4:stats: .*${7-}" 0:WARN "${@:8}"
}

for where in exit program library; do
    records before early $where 2 6 0
    records before none $where 2 0 0 "no call that onehop could serve was made"
    records never early $where 2 6 0
done
# Calls of a communicator that is served go on being served.
records before both library 2 12 0
records never both library 2 12 0
# A communicator that has no set-up yet gets none any more.
records before late library 2 0 6 "reason: a rank's process is ending"
records never late library 2 0 6 "reason: a rank's process is ending"
# (The second communicator's reason.)
records anew both library 4 6 6 "" "2:reason: a rank's process is ending"
expect_no_files
tap_done
