# SPDX-License-Identifier: MIT
# Each call of the driver, of NVML and of the C library that onehop makes until it serves fails once: on one rank, on the
# other, on all. The job must go on with right results, all ranks served or none, in little time, and leave nothing.
#
# A run without faults lists the calls, by function; "function:n" is a point. `make check` takes the first call of each
# function, and more at random. OH_FAULT_POINTS=all takes every point (some 12600: scripts/check --full),
# OH_FAULT_JOBS="grow split" those of some jobs.
. "$abs_top_srcdir/test/e2e/lib.sh"
. "$abs_top_srcdir/test/e2e/faults.sh"

fault=$objects/libsyscallfault.so
plugin="$plugin $fault"
export SIMNODE_CALLER=libonehop.so ONEHOP_DEBUG=TRACE
export SIMNODE_NCCL_VERSION=22902
limit=30 # no run takes long: the rank that has failed says so
! is_busy || limit=120
[ -z "${OH_SANITIZERS-}" ] || limit=100
more=${OH_FAULT_POINTS:-40}

# How communicators come about: each takes another way through the set-up.
declare -A job=(
    [processes]="--linger --nranks 2 --counts 1,5000"
    [process]="--linger --nranks 2 --local 2 --counts 1,5000"
    [threads]="--linger --nranks 2 --local 2 --threads --counts 1,5000"
    [background]="--linger --nranks 2 --make nonblocking --counts 1,5000 --batch 4 --iterations 10 --pause 150"
    [split]="--linger --nranks 2 --make split --split-colors 0,0 --counts 1,5000"
    [plugin]="--linger --nranks 2 --counts 1,5000 --batch 4 --iterations 10 --pause 150"
    [verify]="--linger --nranks 3 --counts 1,5000"
    [grow]="--linger --nranks 3 --make grow --split-colors 0,0,-1 --split-keys 1,0,0 --counts 1,5000"
)

# run_job KIND ARGUMENT...: such a job; "plugin": NCCL loads the library, and it finds the first communicator at a call.
run_job() {
    [ "$1" != verify ] || local -x ONEHOP_VERIFY=1
    if [ "$1" = plugin ]; then
        plugin=$fault NCCL_NET_PLUGIN=$libs/libonehop.so run_app ${job[$1]} "${@:2}"
    else
        run_app ${job[$1]} "${@:2}"
    fi
}

# A name that cannot be removed stays until the user's next process comes.
excused() {
    case $1 in
    unlink) [ "$2" = "$(ls -A "$ONEHOP_SHM_DIR")" ] ;;
    *) false ;;
    esac
}

# What is listed of rank 0 may be more than another rank does in its set-up, and libc is called until the first launch. In
# the background, all ranks may have agreed while NCCL still serves a call. Then it is a call that fails, with a WARN and an
# error.
falls_on_call() {
    [ "$status" != 0 ] && grep -qE ' WARN .*((launching a call|order around a call that NCCL serves): CUDA_ERROR|out of memory for the calls of a group)' "$out"
}

# try JOB:FUNCTION:N:WHO, a rank or all.
try() {
    local kind function n who wrong='' attempt
    IFS=: read -r kind function n who <<<"$1"
    own_folders
    for attempt in 1 2 3; do # at the very end a thread that frees may be cut short: so it counts what is left always
        rm -f "$ONEHOP_SHM_DIR"/*
        if [ "$who" = all ]; then
            SIMNODE_FAIL=$function:$n run_job $kind
        else
            run_job $kind --rank-env "$who:SIMNODE_FAIL=$function:$n"
        fi
        wrong=
        if falls_on_call; then
            verdict "$1" "fell on a call" ""
            return
        fi
        [ "$status" = 0 ] || wrong="exit status $status"
        [ "$(sum_of served)" = 0 ] || [ -z "$(uneven_ranks)" ] || wrong="$wrong; not the same on all ranks"
        [ "$(count_of 'served by onehop')" = 0 ] || [ "$(count_of 'falls back to NCCL')" = 0 ] ||
            [ "$kind" = split ] || [ "$kind" = grow ] || wrong="$wrong; served on some ranks only"
        [ "$status" != 0 ] || [ -z "$(left)" ] || excused "$function" "$(left)" || wrong="$wrong; left: $(left)"
        [ -n "$wrong" ] && [ "$status" = 0 ] || break
    done
    verdict "$1" right "$wrong"
}

# try_killed FUNCTION:N: rank 1 of three is killed in that call of its set-up, the others must go on, and leave nothing.
try_killed() {
    own_folders
    run_app --nranks 3 --counts 1000 --scenario kill-setup --victim 1 --rank-env "1:SIMNODE_KILL=$1"
    local wrong
    wrong=$(ls -A "$ONEHOP_SHM_DIR")
    [ "$status" = 0 ] || wrong="exit status $status, left: $wrong"
    verdict "$1" right "$wrong"
}

# until_served TRACE: the calls that a rank makes until the first call is served. The last thing that a set-up asks of the
# driver is to end the stream that has cleared its memory; then the other ranks' processes are watched. What is asked of the
# driver after that is the first call's.
until_served() {
    awk '/^cuLaunchKernelEx$/ { exit } { name[++calls] = $1 } $1 == "cuStreamDestroy_v2" { last = calls }
        END { for (i = 1; i <= calls; i++) if (i <= last || name[i] !~ /^cu/) print name[i] }' "$1"
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
    until_served "$scratch/trace" | sort | uniq -c | awk '{ print $2, $1 }'
}

for kind in ${OH_FAULT_JOBS:-${!job[@]}}; do
    list "$kind" 0 >"$scratch/list"
    [ "$status" = 0 ] && [ "$(count_of 'served by onehop')" -gt 0 ] && [ "$(wc -l <"$scratch/list")" -gt 30 ]
    tap_point $? "$kind: served without faults, $(awk '{ n += $2 } END { print n }' "$scratch/list") calls until then" \
        "$(diagnosis)"
    # A rank that joins in does less than those it joins: a fault of all ranks is one that each of them comes to.
    cp "$scratch/list" "$scratch/least"
    [ "$kind" != grow ] || list "$kind" 2 >"$scratch/least"
    # Where all ranks are one process, a fault of one is all there is to it. Of the hundreds of lines of /proc/self/maps each is
    # like the next.
    awk -v kind="$kind" -v alone=$([[ $kind = process || $kind = threads ]] && echo 1) '
        NR == FNR { least[$1] = $2; next }
        $1 == "fgets" && $2 > 10 { $2 = 10 }
        { for (n = 1; n <= $2; n++) for (who = 0; who <= (alone ? 0 : n <= least[$1] ? 2 : 1); who++)
            print kind ":" $1 ":" n ":" (who == 2 ? "all" : who) }' "$scratch/least" "$scratch/list" | add_points
done

# Not calls of the C library: some are made before NCCL's barrier, where the others wait for ever with stock NCCL as well.
run_app --linger --nranks 3 --counts 1000 --rank-env "1:SIMNODE_TRACE=$scratch/trace.killed"
until_served "$scratch/trace.killed" | awk '/^(cu|nvml)/ { print $1 ":" ++count[$1] }' |
    draw '$2 == 1' "${more/#[0-9]*/20}" >"$scratch/killed"
kills=$(wc -l <"$scratch/killed")
sweep "killed in $kills calls of the driver: the others go on, nothing left" 3 try_killed "$scratch/killed"
[ "$kills" -gt 30 ]
tap_point $? "these are many" "$kills"
draw '$3 == 1 && ($1 == "processes" || $1 == "plugin" && $4 != "all") && !seen[$1, $2, $4 == "all"]++' "$more" \
    <"$points" >"$scratch/chosen"
sweep "$(wc -l <"$scratch/chosen") of $(wc -l <"$points") points: right results, all ranks alike, nothing left" 3 try \
    "$scratch/chosen"
tap_done
