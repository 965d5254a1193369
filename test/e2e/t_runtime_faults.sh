# SPDX-License-Identifier: MIT
# Each call of the driver that onehop makes after its set-up fails once, or is the end of its process, or a stop: every
# result is right, or the program has an error, or its stream waits and the error is there; nobody is told of an error
# that concerns it not, and all memory comes back.
#
# A point, PATTERN:ACT:PROGRAM:FUNCTION:N, is a job of its own (sim_fault.c): the N-th call of FUNCTION, in a pattern of
# calls; what happens there; and whether the program stops at its first error or goes on. `make check` takes each
# function of each pattern once and others at random (the seed is printed; OH_SEED repeats it); OH_FAULT_POINTS=all
# takes all (scripts/check --full), OH_FAULT_POINTS=POINT one, OH_FAULT_JOBS="graph two" those of some patterns.
. "$abs_top_srcdir/test/e2e/lib.sh"

declare -A pattern=(
    [eager]="--nranks 3"
    [streams]="--nranks 2 --streams 2"
    [graph]="--nranks 2 --graph 1"
    [mixed]="--nranks 2 --graph 2"
    [group]="--nranks 2 --streams 2 --group 2"
    [parts]="--nranks 2 --counts 330000"
    [two]="--nranks 2 --streams 2 --comms 2"
    [nccl]="--nranks 3 --counts 1000,330000"
    [threads]="--nranks 2 --local 2 --threads"
)
seed=${OH_SEED:-$RANDOM}
echo "# OH_SEED=$seed"
jobs_at_once=6
export SIMNODE_CALLER=libonehop.so SIMNODE_FROM=cuProfilerStart

# fault_job PATTERN ARGUMENT...: such a job, in a subshell of its own.
fault_job() {
    scratch=$scratch/$BASHPID
    out=$scratch/out
    mkdir "$scratch" "$meeting/$BASHPID"
    export ONEHOP_SHM_DIR=$meeting/$BASHPID SIMNODE_REPORT=$scratch/report
    case $1 in
    parts) export ONEHOP_ALGO=twoshot ;;
    nccl) export ONEHOP_MAX_BYTES=8K ;;
    esac
    run_app --linger ${pattern[$1]} "${@:2}"
}

# alarm ACT: an error of which a rank has been told, and should not have been. A rank whose call failed must know; a peer that
# has ended is missed by calls alone.
alarm() {
    case $1 in
    stop) grep -E '^rank [0-9]: (told|waited)' "$out" ;;
    fail) grep -qE '^rank [0-9]: told$' "$out" || grep -E '^rank [0-9]: (told late|waited)' "$out" ;;
    *) grep -E '^rank [0-9]: told late' "$out" ;;
    esac
}

# try POINT: runs it and writes down what became of it.
try() {
    local kind act program function nth victim=() wrong='' verdict=right
    IFS=: read -r kind act program function nth <<<"$1"
    [ "$act" != kill ] || victim=(--victim 1)
    fault_job "$kind" --scenario "fault-$program" "${victim[@]}" --rank-env "1:SIMNODE_${act^^}=$function:$nth"
    if [ "$status" = 0 ]; then
        wrong=$(alarm "$act"; left)
    else
        wrong="exit status $status"
    fi
    ! says '^rank [0-9]: told$' || verdict=told
    ! says '^rank [0-9]: waited$' || verdict="waits and is told"
    if [ -n "$wrong" ]; then
        verdict=wrong
        printf '# %s: %s\n%s\n' "$1" "${wrong//$'\n'/, }" "$(tail -n 25 "$out" | sed 's/^/#     /')"
    fi
    echo "$verdict" >>"$verdicts"
    rm -rf "${scratch:?}" "$ONEHOP_SHM_DIR"
}

# list PATTERN: the points of a pattern, from a run without a fault.
list() {
    local trace=$scratch/trace.$1
    fault_job "$1" --scenario fault-on --rank-env "1:SIMNODE_TRACE=$trace"
    if [ "$status" != 0 ] || says '^rank [0-9]: ' || [ -n "$(left)" ]; then
        echo "# $1, without a fault: $(left; diagnosis)"
        return
    fi
    # Where ranks are threads, one that ends takes all with it.
    sort "$trace" | uniq -c | awk -v pattern="$1" '{
        acts = split(pattern == "threads" ? "fail stop" : "fail stop kill quit", act)
        for (a = 1; a <= acts; a++) for (n = 1; n <= $1; n++) for (p = 1; p <= 2; p++)
            print pattern ":" act[a] ":" (p > 1 ? "stops:" : "on:") $2 ":" n
    }' >>"$points"
}

# each FUNCTION: for each line of stdin, several at once.
each() {
    local line running=0
    while read -r line; do
        [ $((running++)) -lt 6 ] || wait -n
        ("$1" "$line") </dev/null &
    done
    wait
}

points=$scratch/points verdicts=$scratch/verdicts
touch "$points" "$verdicts"
wanted=${OH_FAULT_POINTS:-250}
if [[ $wanted = *:* ]]; then
    echo "$wanted" >"$points"
else
    printf '%s\n' ${OH_FAULT_JOBS:-${!pattern[@]}} | each list
    missing=$(printf '%s\n' ${OH_FAULT_JOBS:-${!pattern[@]}} | grep -vxF "$(cut -d : -f 1 "$points" | sort -u)")
    tap_empty "$missing" "right results without a fault"
fi
all=$(wc -l <"$points")
[ "$wanted" != all ] || wanted=$all
# In a random order; the first of each function of each pattern that fails comes first.
sort "$points" | awk -v seed="$seed" 'BEGIN { srand(seed) } { print rand(), $0 }' | sort | cut -d ' ' -f 2 >"$scratch/drawn"
awk -F : '$2 == "fail" && !seen[$1, $4]++' "$scratch/drawn" | cat - "$scratch/drawn" | awk '!seen[$0]++' |
    head -n "${wanted/#*:*/1}" >"$scratch/chosen"
each try <"$scratch/chosen"
tried=$(wc -l <"$scratch/chosen")
[ "$tried" -gt 0 ] && [ "$(grep -cvx wrong "$verdicts")" = "$tried" ]
tap_point $? "$tried of $all points: $(sort "$verdicts" | uniq -c | xargs)"
# A GPU that takes its time for the write that stops replays: the error must not reach the program before that.
: >"$verdicts"
(SIMNODE_MEMSET_2D_US=40000 try mixed:fail:on:cuStreamWaitEvent:2)
! grep -qx wrong "$verdicts" && [ -s "$verdicts" ]
tap_point $? "a replay after a call that has failed, with a slow GPU"
tap_done
