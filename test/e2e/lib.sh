# SPDX-License-Identifier: MIT
# lib.sh - runs sim_app on the simulated node, with the built plugin preloaded, and looks at what the plugin says of
# it: one INFO line for each communicator and rank, one line of statistics. Sourced by the tests of this folder.
. "$abs_top_srcdir/test/hygiene/tap.sh"
. "$abs_top_srcdir/test/e2e/commands.sh"
. "$abs_top_srcdir/scripts/lib.sh"

app=$abs_top_builddir/test/e2e/sim_app
onehop=$abs_top_builddir/src/tools/onehop
conformance=$abs_top_builddir/test/conformance/onehop-conformance
reach=$abs_top_builddir/test/e2e/reach
linked=$abs_top_builddir/test/e2e/reach_linked
live=$abs_top_builddir/test/e2e/sim_live
objects=$abs_top_builddir/test/e2e/.libs
libs=$abs_top_builddir/.libs
plugin=$libs/libonehop.so
faulty_plugin="$plugin $objects/libsyscallfault.so" # its calls of the C library fail on request
stand_ins=$abs_top_builddir/test/simnode/.libs
scratch=$(mktemp -d)
shm=$(mktemp -d /dev/shm/onehop-test.XXXXXX) # other tests may run beside this one: the default folder is not ours alone
trap 'rm -rf "$scratch" "$shm"' EXIT
out=$scratch/out
status=0
exec </dev/null
processors=$(nproc 2>/dev/null || echo 2)

# is_busy: whether three times as many threads want to run as there are processors. `make check` alone stays below that.
is_busy() {
    local load
    read -r load _ </proc/loadavg && [ "${load%.*}" -ge $((3 * processors)) ]
}

limit=60 # seconds a run may take; a sanitizer makes the largest messages many times slower
! is_busy || limit=240
[ -z "${OH_SANITIZERS-}" ] || limit=300

export LD_LIBRARY_PATH=$stand_ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SIMNODE_TOPOLOGY=h200x8
export SIMNODE_REPORT=$scratch/report
export ONEHOP_DEBUG=INFO ONEHOP_STATS=1 ONEHOP_SHM_DIR=$shm

# run_limited COMMAND...: runs it. Settings go before it (NAME=value run_limited ...). Sets $status; fills $out and, for stderr,
# $err, where that is kept apart.
run_limited() {
    status=0
    rm -f "$scratch"/report.*
    if [ -n "${err-}" ]; then
        timeout -k 5 $((limit + 40)) "$@" >"$out" 2>"$err" || status=$?
    else
        timeout -k 5 $((limit + 40)) "$@" >"$out" 2>&1 || status=$?
    fi
}

# run_full COMMAND...: the same, and stdout is full: what is said goes to $err, or $out.
run_full() {
    status=0
    : >"$out"
    timeout -k 5 $((limit + 40)) "$@" >/dev/full 2>"${err:-$out}" || status=$?
}

# run_with PRELOAD PROGRAM ARGUMENT...: runs a program of ranks.
run_with() {
    err='' run_limited env LD_PRELOAD="$1" "${@:2}"
}

# run_app ARGUMENT...: sim_app with the plugin; run_stock: without it; run_cases: onehop-conformance with the plugin.
run_app() {
    local attempt
    for attempt in 1 2 3; do
        run_with "$plugin" "$app" --timeout $limit "$@"
        is_overtaken "$@" || return 0
    done
}

# is_overtaken ARGUMENT...: whether a set-up of the last run took a second on a busy machine. A first call waits 2 s for the
# set-up and is then NCCL's (doc/design.md): such a run shows nothing of calls that must be served, and is made again. A
# trace of calls would be continued.
is_overtaken() {
    [[ $* != *SIMNODE_TRACE* ]] && is_busy && grep -qE 'attached in [0-9]{4,}\.|attach_us=[0-9]{7,}' "$out"
}

# run_work ARGUMENT...: run_app with the arguments that a test's runs have in common, in $work.
run_work() {
    run_app "${work[@]}" "$@"
}

run_stock() {
    run_with '' "$app" --timeout $limit "$@"
}

run_cases() {
    run_with "$plugin" "$conformance" --patience 4 "$@"
}

# run_ranks COMMAND... -- ARGUMENT...: two ranks of another program, COMMAND RANK NRANKS FOLDER ARGUMENT... each, with
# nothing preloaded. Sets $status, fills $out.
run_ranks() {
    local rank pids=() folder
    folder=$(new_folder)
    status=0
    rm -f "$scratch"/report.* "$out" "$out".[01]
    local command=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    shift
    for rank in 0 1; do
        timeout -k 5 $limit "${command[@]}" $rank 2 "$folder" "$@" >"$out.$rank" 2>&1 &
        pids+=($!)
    done
    for rank in 0 1; do
        wait "${pids[$rank]}" || status=$?
    done
    cat "$out".[01] >"$out"
}

# For bash -c with PROGRAM ARGUMENT...: two ranks, PROGRAM RANK 2 ARGUMENT... each.
pair='"$0" 1 2 "$@" & "$0" 0 2 "$@" && wait $!'

# new_id: a name for a file of an id; new_folder: a folder for such files.
new_id() {
    mktemp -u "$scratch/id.XXXXXX"
}
new_folder() {
    mktemp -d "$scratch/job.XXXXXX"
}

# For bash -c under mpirun, with PROGRAM ARGUMENT...: runs PROGRAM RANK RANKS ARGUMENT...
mpi_ranks='exec "$0" "${OMPI_COMM_WORLD_RANK-$PMI_RANK}" "${OMPI_COMM_WORLD_SIZE-$PMI_SIZE}" "$@"'

# find_mpirun: puts the words of oh_mpirun into $mpirun. Fails, with the reason in $no_mpirun, where a launcher is of no use.
find_mpirun() {
    mapfile -t mpirun < <(oh_mpirun)
    no_mpirun=''
    [ ${#mpirun[@]} != 0 ] || no_mpirun="no mpirun and no mpiexec (Debian: openmpi-bin or mpich)"
    [ -z "${OH_SANITIZERS-}" ] || no_mpirun="a sanitizer's runtime would have to come first"
    [ -z "$no_mpirun" ]
}

# mpi_program FOLDER: builds allreduce_mpi in FOLDER as a user would. Fails, with the reason in $no_mpi_program.
mpi_program() {
    local flags
    read -ra flags <<<"$OH_CPPFLAGS"
    no_mpi_program="no mpirun and no mpiexec (Debian: openmpi-bin or mpich)"
    oh_mpirun >/dev/null || return 1
    no_mpi_program="no mpicc (Debian: libopenmpi-dev or libmpich-dev)"
    command -v mpicc >/dev/null || return 1
    no_mpi_program="mpicc and mpirun belong to different MPIs"
    mpicc "${flags[@]}" -o "$1/allreduce_mpi" "$abs_top_srcdir/test/apps/allreduce_mpi.c" -L"$stand_ins" -lnccl -lcuda \
        >"$scratch/mpicc.log" 2>&1 || { no_mpi_program="mpicc: $(tail -n 1 "$scratch/mpicc.log")"; return 1; }
    ldd "$1/allreduce_mpi" | grep -q libmpich && { ! oh_mpirun | grep -q oversubscribe; return; }
    oh_mpirun | grep -q oversubscribe
}

# sum_of NAME: the sum of NAME=number over all lines of statistics.
sum_of() {
    awk -F '[^A-Za-z0-9_=]+' -v name="$1=" '/stats: rank/ {
        for (i = 1; i <= NF; i++) if (index($i, name) == 1) sum += substr($i, length(name) + 1)
    } END { print sum + 0 }' "$out"
}

# All kinds of calls that onehop may serve, for --collectives.
kinds=allreduce,allgather,reducescatter,broadcast

# reports NAME...: the sums of values over the reports of the simulated libraries of all processes, one a line; nccl_calls:
# of those kinds.
reports() {
    local files=("$scratch"/report.*)
    [ -e "${files[0]}" ] || files=(/dev/null)
    awk -v names="$*" '{ sum[$1] += $NF } /^nccl_(allreduce|allgather|reducescatter|broadcast) / { sum["nccl_calls"] += $NF } END { n = split(names, name, " "); for (i = 1; i <= n; i++) print name[i], sum[name[i]] + 0 }' \
        "${files[@]}"
}

# report_of NAME: such a sum.
report_of() {
    local line
    line=$(reports "$1")
    echo "${line##* }"
}

# count_of PATTERN: lines of the output that have it.
count_of() {
    grep -cE -- "$1" "$out"
}

# left: what the last run has left, in $ONEHOP_SHM_DIR and of things that the simulated libraries count; "" if nothing.
left() {
    ls -A "$ONEHOP_SHM_DIR"
    reports mem_live_bytes host_live ipc_open streams_live events_live descriptors | grep -v ' 0$'
}

# diagnosis EXPECTED...: what went wrong, for tap_point, with the end of the output.
diagnosis() {
    printf 'exit status %s, served=%s, fallback=%s, calls of NCCL %s\n' "$status" "$(sum_of served)" \
        "$(sum_of fallback)" "$(report_of nccl_calls)"
    [ $# = 0 ] || printf 'expected: %s\n' "$*"
    tail -n 25 "$out" ${err:+"$err"}
}

# Every rank of a communicator must have served the same number of calls. Prints what differs.
uneven_ranks() {
    awk '/stats: rank/ && match($0, /nranks .* bytes=[0-9]*/) { count[substr($0, RSTART, RLENGTH)]++ }
        END { for (line in count) { split(line, word, " "); if (count[line] % word[2] != 0) print count[line], line } }' "$out"
}

# counts COUNT: is it so in the last run? COUNT is NUMBER:PATTERN, lines of the output; status=NUMBER; VALUE=NUMBER, the sum over
# statistics, or over the reports of the simulated libraries; or "even", no uneven_ranks. NUMBER+: so many or more.
counts() {
    local number=${1#*=} value
    case $1 in
    even) value=$([ -z "$(uneven_ranks)" ] && echo even) ;;
    [0-9]*:*) number=${1%%:*} value=$(count_of "${1#*:}") ;;
    status=*) value=$status ;;
    served=* | fallback=* | oneshot=* | twoshot=* | size=* | kind=* | allreduce=* | allgather=* | reducescatter=* | broadcast=* | verified=* | differing=*)
        value=$(sum_of "${1%%=*}") ;;
    *) value=$(report_of "${1%%=*}") ;;
    esac
    [ "$value" = "$number" ] || { [ "$number" != "${number%+}" ] && [ "$value" -ge "${number%+}" ]; }
}

# Passed when the last run ended well, or with the status that is among the counts, and with these counts.
# expect_counts NAME COUNT...
expect_counts() {
    local good=0 count
    run_first "${@:2}"
    [[ " ${asked[*]}" = *' status='* ]] || asked+=(status=0)
    for count in "${asked[@]}"; do
        counts "$count" || good=1
    done
    tap_point $good "$1" "$([ $good = 0 ] || diagnosis "${asked[@]}")"
}

# Passed when the last run ended well, whoever served it.
expect_right() {
    expect_counts "$1: right results" "${@:2}"
}

# Passed when the last run was right, and the plugin served all calls, with the algorithms named (default: any).
# expect_served NAME [ALGORITHM | COUNT]...
expect_served() {
    run_first "${@:2}"
    expect_counts "$1: served" '1+:served by onehop' '0:falls back to NCCL' served=1+ fallback=0 nccl_calls=0 even \
        "${asked[@]/%shot/shot=1+}"
}

# Passed when the last run was right, NCCL did it all, and every rank that has the plugin gave the reason.
# expect_stock NAME REASON [COUNT...]
expect_stock() {
    run_first "${@:2}"
    expect_counts "$1: falls back, with the reason" '0:served by onehop' '1+:falls back to NCCL' served=0 nccl_calls=1+ \
        "$(count_of 'falls back to NCCL'):falls back to NCCL: .*${asked[0]}" "${asked[@]:1}"
}

# expect_served_both_ways NAME PRELOAD: two ranks of reach with PRELOAD, linked with NCCL and by dlsym, are served.
expect_served_both_ways() {
    run_ranks env LD_PRELOAD="$2" "$linked" -- linked
    expect_counts "$1, linked" served=12 0:WARN
    run_ranks env LD_PRELOAD="$2" "$reach" -- late:libnccl.so.2
    expect_counts "$1, late:libnccl.so.2" served=12 0:WARN
}

# build_or_skip NAME FLAG...: builds a small program or object; where that is not possible, skips NAME and fails.
build_or_skip() {
    $CC -w -O1 "${@:2}" -ldl >"$scratch/cc.log" 2>&1 || {
        tap_skip "$1" "no compiler: $(tail -n 1 "$scratch/cc.log")"
        return 1
    }
}

# Passed when the runs have left nothing in shared memory.
expect_no_files() {
    tap_empty "$(ls -A "$shm")" "nothing is left in shared memory"
}

# refuses NAME STATUS PATTERN: the last command, whose output is in $out and $err, said one sentence and left nothing in
# $work and $TMPDIR.
refuses() {
    expect_sentence "$@"
    tap_empty "$(find "$work" "$TMPDIR" -mindepth 1)" "$1: nothing is left"
}
