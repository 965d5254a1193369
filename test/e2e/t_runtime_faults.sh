# SPDX-License-Identifier: MIT
# Each call of the driver that onehop makes after its set-up fails once, or is the end of its process, or a stop: every
# result is right, or the program has an error, or its stream waits and the error is there; nobody is told of an error
# that concerns it not, and all memory comes back.
#
# A point, PATTERN:ACT:PROGRAM:FUNCTION:N, is a job of its own (sim_fault.c): the N-th call of FUNCTION, in a pattern of
# calls; what happens there; and whether the program stops at its first error or goes on. `make check` takes each
# function of each pattern once and others at random; OH_FAULT_POINTS=all takes all (scripts/check --full),
# OH_FAULT_POINTS=POINT one, OH_FAULT_JOBS="graph two" those of some patterns.
. "$abs_top_srcdir/test/e2e/lib.sh"
. "$abs_top_srcdir/test/e2e/faults.sh"

declare -A pattern=(
    [eager]="--nranks 3"
    [streams]="--nranks 2 --streams 2 --collectives allreduce,broadcast"
    [graph]="--nranks 2 --graph 1 --collectives allreduce,reducescatter"
    [mixed]="--nranks 2 --graph 2"
    [group]="--nranks 2 --streams 2 --group 2 --collectives allreduce,allgather"
    [parts]="--nranks 2 --counts 330000"
    [two]="--nranks 2 --streams 2 --comms 2 --collectives allreduce,broadcast"
    [nccl]="--nranks 3 --counts 1000,330000"
    [threads]="--nranks 2 --local 2 --threads --collectives allgather,allreduce"
    [verify]="--nranks 3 --collectives allreduce,broadcast"
    [verify-graph]="--nranks 2 --graph 1"
    [verify-group]="--nranks 2 --streams 2 --group 2 --collectives allreduce,reducescatter"
)
export SIMNODE_CALLER=libonehop.so SIMNODE_FROM=cuProfilerStart

# fault_job PATTERN ARGUMENT...: such a job, in a subshell.
fault_job() {
    own_folders
    case $1 in
    parts) export ONEHOP_ALGO=twoshot ;;
    nccl) export ONEHOP_MAX_BYTES=8K ;;
    verify*) export ONEHOP_VERIFY=1 ;;
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

try() {
    local kind act program function nth victim=() wrong result=right
    IFS=: read -r kind act program function nth <<<"$1"
    [ "$act" != kill ] || victim=(--victim 1)
    fault_job "$kind" --scenario "fault-$program" "${victim[@]}" --rank-env "1:SIMNODE_${act^^}=$function:$nth"
    if [ "$status" = 0 ]; then
        wrong=$(alarm "$act"; left)
    else
        wrong="exit status $status"
    fi
    ! says '^rank [0-9]: told$' || result=told
    ! says '^rank [0-9]: waited$' || result="waits and is told"
    verdict "$1" "$result" "$wrong"
}

# list PATTERN: the points of a pattern, from a run without a fault.
list() {
    local trace=$scratch/trace.$1
    fault_job "$1" --scenario fault-on --rank-env "1:SIMNODE_TRACE=$trace"
    if [ "$status" != 0 ] || says '^rank [0-9]: ' || [ -n "$(left)" ]; then
        echo "# $1, without a fault: $(left; diagnosis)"
        return
    fi
    # Where ranks are threads, one that ends takes all with it. NCCL's part of a captured call waits for a rank that has ended,
    # without an error, as captured calls of NCCL do.
    sort "$trace" | uniq -c | awk -v pattern="$1" '{
        acts = split(pattern ~ /^(threads|verify-graph)$/ ? "fail stop" : "fail stop kill quit", act)
        for (a = 1; a <= acts; a++) for (n = 1; n <= $1; n++) for (p = 1; p <= 2; p++)
            print pattern ":" act[a] ":" (p > 1 ? "stops:" : "on:") $2 ":" n
    }' | add_points
}

more=${OH_FAULT_POINTS:-120}
if [[ $more = *:* ]]; then
    echo "$more" >"$points"
else
    kinds=$(printf '%s\n' ${OH_FAULT_JOBS:-${!pattern[@]}})
    each 6 list <<<"$kinds"
    tap_empty "$(grep -vxF "$(cut -d : -f 1 "$points" | sort -u)" <<<"$kinds")" "right results without a fault"
fi
sort "$points" | draw '$2 == "fail" && !seen[$1, $4]++' "${more/#*:*/all}" >"$scratch/chosen"
sweep "$(wc -l <"$scratch/chosen") of $(wc -l <"$points") points" 6 try "$scratch/chosen"
# A GPU that takes its time for the write that stops replays: the error must not reach the program before that.
echo mixed:fail:on:cuStreamWaitEvent:2 >"$scratch/slow"
SIMNODE_COPY_2D_US=40000 sweep "a replay after a call that has failed, with a slow GPU" 1 try "$scratch/slow"
tap_done
