# SPDX-License-Identifier: MIT
# Each call of the driver, of NVML and of the C library that onehop makes until it serves fails once: on one rank, on the
# other, on all. The job must go on with right results, all ranks served or none, in little time, and leave nothing.
#
# A run without faults lists the calls, by function; "function:n" is a point. `make check` takes the first call of each
# function, and more at random (the seed is printed; OH_SEED repeats it). OH_FAULT_POINTS=all takes every point (some
# 5600: scripts/check --full), OH_FAULT_JOBS="grow split" those of some jobs.
. "$abs_top_srcdir/test/e2e/lib.sh"

fault=$abs_top_builddir/test/e2e/.libs/libsyscallfault.so
plugin="$plugin $fault"
export ONEHOP_SHM_DIR=$meeting SIMNODE_CALLER=libonehop.so ONEHOP_DEBUG=TRACE
export SIMNODE_NCCL_VERSION=22902
limit=30 # no run takes long: the rank that has failed says so
[ -z "${OH_SANITIZERS-}" ] || limit=100
seed=${OH_SEED:-$RANDOM}
echo "# OH_SEED=$seed"
RANDOM=$seed
more=${OH_FAULT_POINTS:-40}

# How communicators come about: each takes another way through the set-up.
declare -A job=(
    [processes]="--linger --nranks 2 --counts 1,5000"
    [process]="--linger --nranks 2 --local 2 --counts 1,5000"
    [threads]="--linger --nranks 2 --local 2 --threads --counts 1,5000"
    [background]="--linger --nranks 2 --make nonblocking --counts 1,5000 --batch 4 --iterations 10 --pause 150"
    [split]="--linger --nranks 2 --make split --split-colors 0,0 --counts 1,5000"
    [plugin]="--linger --nranks 2 --counts 1,5000 --batch 4 --iterations 10 --pause 150"
    [grow]="--linger --nranks 3 --make grow --split-colors 0,0,-1 --split-keys 1,0,0 --counts 1,5000"
)

# run_job KIND ARGUMENT...: such a job; "plugin": NCCL loads the library, and it finds the first communicator at a call.
run_job() {
    if [ "$1" = plugin ]; then
        plugin=$fault NCCL_NET_PLUGIN=$abs_top_builddir/.libs/libonehop.so run_app ${job[$1]} "${@:2}"
    else
        run_app ${job[$1]} "${@:2}"
    fi
}

# A name that cannot be removed stays until the user's next process comes.
excused() {
    case $1 in
    unlink) [ "$2" = "$(ls -A "$meeting")" ] ;;
    *) false ;;
    esac
}

# What is listed of rank 0 may be more than another rank does in its set-up, and libc is called until the first launch. In
# the background, all ranks may have agreed while NCCL still serves a call. Then it is a call that fails, with a WARN and an
# error.
falls_on_call() {
    [ "$status" != 0 ] && grep -qE ' WARN .*((launching an allreduce|order around a call that NCCL serves): CUDA_ERROR|out of memory for the calls of a group)' "$out"
}

runs=0 bad=0 on_calls=0
# try JOB FUNCTION N WHO: runs one point, WHO: a rank, or all.
try() {
    local kind=$1 function=$2 what=$2:$3 who=$4 wrong='' attempt
    runs=$((runs + 1))
    for attempt in 1 2 3; do # at the very end a thread that frees may be cut short: so it counts what is left always
        rm -f "$meeting"/*
        if [ "$who" = all ]; then
            SIMNODE_FAIL=$what run_job $kind
        else
            run_job $kind --rank-env "$who:SIMNODE_FAIL=$what"
        fi
        wrong=
        if falls_on_call; then
            on_calls=$((on_calls + 1))
            return
        fi
        [ "$status" = 0 ] || wrong="exit status $status"
        [ "$(sum_of served)" = 0 ] || [ -z "$(uneven_ranks)" ] || wrong="$wrong; not the same on all ranks"
        [ "$(count_of 'served by onehop')" = 0 ] || [ "$(count_of 'falls back to NCCL')" = 0 ] ||
            [ "$kind" = split ] || [ "$kind" = grow ] || wrong="$wrong; served on some ranks only"
        [ "$status" != 0 ] || [ -z "$(left)" ] || excused "$function" "$(left)" || wrong="$wrong; left: $(left | tr '\n' ' ')"
        [ -n "$wrong" ] && [ "$status" = 0 ] || break
    done
    if [ -n "$wrong" ]; then
        bad=$((bad + 1))
        echo "# $kind, $what on rank $who: $wrong"
        [ "$bad" -gt 5 ] || tail -n 12 "$out" | sed 's/^/#     /'
    fi
}

# list JOB RANK: "function count" for what that rank calls until the first call is served. On a busy machine a set-up in the
# background takes longer than the calls: then they wait longer. (The pause given last counts.)
list() {
    local pause
    for pause in 150 1500 15000; do
        rm -f "$scratch/trace"
        run_job $1 --pause $pause --rank-env "$2:SIMNODE_TRACE=$scratch/trace"
        ! grep -q '^cuLaunchKernelEx$' "$scratch/trace" || break
    done
    # The last thing that a set-up asks of the driver is to end the stream that has cleared its memory; then the other ranks'
    # processes are watched. What is asked of the driver after that is the first call's.
    sed '/^cuLaunchKernelEx$/,$d' "$scratch/trace" | awk '
        { name[NR] = $1 } $1 == "cuStreamDestroy_v2" { last = NR }
        END { for (i = 1; i <= NR; i++) if (i <= last || name[i] !~ /^cu/) print name[i] }' | sort | uniq -c | awk '{ print $2, $1 }'
}

points=() firsts=()
for kind in ${OH_FAULT_JOBS:-processes process threads background split plugin grow}; do
    list "$kind" 0 >"$scratch/list.$kind"
    [ "$status" = 0 ] && [ "$(count_of 'served by onehop')" -gt 0 ] && [ "$(wc -l <"$scratch/list.$kind")" -gt 30 ]
    tap_point $? "$kind: served without faults, $(awk '{ n += $2 } END { print n }' "$scratch/list.$kind") calls until then" \
        "$(diagnosis)"
    # A rank that joins in does less than those it joins: a fault of all ranks is one that each of them comes to.
    cp "$scratch/list.$kind" "$scratch/least"
    [ "$kind" != grow ] || list "$kind" 2 >"$scratch/least"
    while read -r function count; do
        least=$(awk -v name="$function" '$1 == name { print $2 }' "$scratch/least")
        [ "$function" != fgets ] || [ "$count" -lt 10 ] || count=10 # hundreds of lines of /proc/self/maps, each like the next
        for ((n = 1; n <= count; n++)); do
            points+=("$kind $function $n 0")
            # Where all ranks are one process, that is all there is to it.
            [[ $kind = process || $kind = threads ]] || points+=("$kind $function $n 1")
            [[ $kind = process || $kind = threads || $n -gt ${least:-0} ]] || points+=("$kind $function $n all")
        done
        [ "$kind" != plugin ] || firsts+=("$kind $function 1 $((RANDOM % 2))")
        [ "$kind" != processes ] || firsts+=("$kind $function 1 $((RANDOM % 2))" "$kind $function 1 all")
    done <"$scratch/list.$kind"
done

# kill_at N FUNCTION: rank 1 of three is killed in that call of its set-up, the others must go on, and leave nothing.
kills=0 bad_kills=0
kill_at() {
    kills=$((kills + 1))
    run_app --nranks 3 --counts 1000 --scenario kill-setup --victim 1 --rank-env "1:SIMNODE_KILL=$2:$1"
    if [ "$status" != 0 ] || [ -n "$(ls -A "$meeting")" ]; then
        bad_kills=$((bad_kills + 1))
        echo "# killed in $2:$1: exit status $status, left: $(ls -A "$meeting")"
        [ "$bad_kills" -gt 5 ] || tail -n 12 "$out" | sed 's/^/#     /'
        rm -f "$meeting"/*
    fi
}
run_app --linger --nranks 3 --counts 1000 --rank-env "1:SIMNODE_TRACE=$scratch/steps"
# Up to the end of the set-up, as in list(). Not calls of the C library: some are made before NCCL's barrier, where the
# others wait for ever with stock NCCL as well.
awk '/^cuLaunchKernelEx$/ { exit } /^(cu|nvml)/ { step[++steps] = ++count[$1] " " $1 } $1 == "cuStreamDestroy_v2" { last = steps }
    END { for (i = 1; i <= last; i++) print step[i] }' "$scratch/steps" >"$scratch/kills"
if [ "$more" != all ]; then
    { shuf -n 20 --random-source <(yes "$seed") "$scratch/kills" && grep '^1 ' "$scratch/kills"; } | sort -u >"$scratch/some"
    mv "$scratch/some" "$scratch/kills"
fi
while read -r n function; do
    kill_at "$n" "$function"
done <"$scratch/kills"
[ "$bad_kills" = 0 ] && [ "$kills" -gt 30 ]
tap_point $? "killed in $kills calls of the driver in its set-up: the others go on, nothing left"

if [ "$more" = all ]; then
    for point in "${points[@]}"; do
        try $point
    done
else
    for point in "${firsts[@]}"; do
        try $point
    done
    for ((i = 0; i < more; i++)); do
        try ${points[(RANDOM * 32768 + RANDOM) % ${#points[@]}]}
    done
fi
tap_point "$bad" "$runs of ${#points[@]} points: right results, all ranks alike, nothing left ($on_calls fell on a call)"
tap_done
