# SPDX-License-Identifier: MIT
# faults.sh - a sweep of faults. A point is a job with one fault, words with colons between; many are drawn and run, several
# at a time. Sourced, after lib.sh. OH_SEED repeats what was drawn.
seed=${OH_SEED:-$RANDOM}
echo "# OH_SEED=$seed"
points=$scratch/points verdicts=$scratch/verdicts
touch "$points" "$verdicts"

# add_points: adds those on stdin. Jobs that add theirs at the same time would tear each other's lines.
add_points() {
    { flock 8 && cat >&8; } 8>>"$points"
}

# own_folders: what lib.sh has in $scratch and $shm, for a subshell alone.
own_folders() {
    scratch=$scratch/$BASHPID
    out=$scratch/out
    mkdir "$scratch" "$shm/$BASHPID"
    export ONEHOP_SHM_DIR=$shm/$BASHPID SIMNODE_REPORT=$scratch/report
}

# each COUNT FUNCTION: calls it for each line of stdin, in a subshell, so many at a time.
each() {
    local line running=0
    while read -r line; do
        [ $((running++)) -lt "$1" ] || wait -n
        ("$2" "$line") </dev/null &
    done
    wait
}

# verdict POINT WORDS WRONG: notes what became of the point, and tells WRONG, lines with what was not right; "": nothing. Ends
# own_folders.
verdict() {
    local words=$2
    if [ -n "$3" ]; then
        words=wrong
        printf '# %s: %s\n%s\n' "$1" "${3//$'\n'/, }" "$(tail -n 25 "$out" | sed 's/^/#     /')"
    fi
    echo "$words" >>"$verdicts"
    rm -rf "${scratch:?}" "${ONEHOP_SHM_DIR:?}"
}

# draw FIRST MORE: of the points on stdin, in a random order, those that the condition FIRST of awk takes, and so many more;
# "all": every one.
draw() {
    awk -v seed="$seed" 'BEGIN { srand(seed) } { print rand(), $0 }' | sort | cut -d ' ' -f 2 >"$scratch/drawn"
    if [ "$2" = all ]; then
        cat "$scratch/drawn"
        return
    fi
    awk -F : "$1" "$scratch/drawn" | tee "$scratch/first"
    grep -vxFf "$scratch/first" "$scratch/drawn" | head -n "$2"
}

# sweep NAME COUNT FUNCTION FILE: calls it for each point of the file, COUNT at a time. Passed when none is wrong.
sweep() {
    : >"$verdicts"
    each "$2" "$3" <"$4"
    [ -s "$4" ] && [ "$(grep -cvx wrong "$verdicts")" = "$(wc -l <"$4")" ]
    tap_point $? "$1: $(sort "$verdicts" | uniq -c | xargs)"
}
