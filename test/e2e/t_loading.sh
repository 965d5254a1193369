# SPDX-License-Identifier: MIT
# Which callers reach onehop by which way of loading. Each cell of the table in doc/loading.md is counted here: two
# ranks, two communicators in turn, three allreduces on each, so twelve calls; by launchers one communicator, six calls.
# The table is printed (# |...).
. "$abs_top_srcdir/test/e2e/lib.sh"

export LD_LIBRARY_PATH=$libs:$LD_LIBRARY_PATH # for libnccl-net-onehop.so
export SIMNODE_NCCL_LAZY=1 # as NCCL does: the first call returns when all ranks have come to it

# The environment of each way of loading.
declare -A loading=(
    [preload]="LD_PRELOAD=$plugin"
    [plugin]="NCCL_NET_PLUGIN=onehop"
    [audit]="LD_PRELOAD=$plugin LD_AUDIT=$libs/libonehop-audit.so"
)

ways=(preload plugin audit)
if [ -n "${OH_SANITIZERS-}" ]; then
    ways=(preload plugin)
    tap_skip "audit" "a sanitizer's runtime does not run in an audit library"
fi

# by WAY COMMAND...: two ranks of the command, loaded so.
by() {
    run_ranks env ${loading[$1]} "${@:2}"
}

# start_by WAY COMMAND...: the same for a command that starts the ranks itself. ID in it becomes a new name for the file of
# the id.
start_by() {
    local way=$1
    shift
    run_limited env ${loading[$way]} "${@/#ID/$(new_id)}"
}

# word_for SERVED CALLS: what a count of served calls is called in the table.
word_for() {
    case $1 in
        "$2") echo yes ;;
        $(($2 - 2))) echo "after the first call" ;;
        0) echo no ;;
        *) echo "? ($1)" ;;
    esac
}

# row_of CALLS RUN OTHERS NAME PRELOAD PLUGIN AUDIT COMMAND...: of so many calls those that must be served, by way of loading.
# OTHERS prints how many went to NCCL.
row_of() {
    local calls=$1 run=$2 others=$3 name=$4 line="| $4 |" way served
    local -A wanted=([preload]=$5 [plugin]=$6 [audit]=$7)
    shift 7
    for way in "${ways[@]}"; do
        $run $way "$@"
        served=$(sum_of served)
        [ "$status" = 0 ] && [ "$served" = "${wanted[$way]}" ] &&
            [ "$((served + $($others)))" = "$calls" ] && [ "$(count_of WARN)" = 0 ]
        tap_point $? "$name, $way: ${wanted[$way]} of $calls calls are served" "$(diagnosis)"
        line="$line $(word_for "$served" "$calls") |"
    done
    table+=("$line")
}

row() {
    row_of 12 by "report_of nccl_allreduce" "$@"
}

launched() { # (Children of fork leave no report.)
    row_of 6 start_by "sum_of fallback" "$@"
}

# (An object in an AddressSanitizer build cannot be opened with RTLD_DEEPBIND.)
deep_row() {
    if [ -n "${OH_SANITIZERS-}" ]; then
        tap_skip "$1" "a sanitizer's runtime refuses RTLD_DEEPBIND"
    else
        row "$@"
    fi
}

object=$objects/libreach.so
nccl=$stand_ins/libnccl.so.2
copy=$stand_ins/libncclcopy.so.2
table=()

row "program linked with NCCL" 12 10 12 "$linked" -- linked
row "shared object linked with NCCL, opened RTLD_LOCAL (PyTorch)" 12 10 12 "$reach" -- object:"$object"
row "the same, by its table of addresses" 12 10 12 "$reach" -- table:"$object"
deep_row "the same, opened RTLD_DEEPBIND" 12 10 12 "$reach" -- deepbind:"$object"
deep_row "the same, RTLD_DEEPBIND and RTLD_LAZY" 12 10 12 "$reach" -- lazy:"$object"
deep_row "the same, RTLD_DEEPBIND, its constructor keeps the addresses" 0 0 0 "$reach" -- early:"$object"
deep_row "the same, RTLD_DEEPBIND, its constructor takes them by dlsym" 0 0 12 "$reach" -- earlydlsym:"$object"
row "dlsym on a handle" 12 0 12 "$reach" -- dlsym:libnccl.so.2
row "dlsym on a handle, opened by absolute path" 12 0 12 "$reach" -- dlsym:"$nccl"
row "dlsym on a handle, anew for each communicator" 12 10 12 "$reach" -- late:libnccl.so.2
row "dlvsym on a handle" 12 0 12 "$reach" -- dlvsym:"$copy"
row "dlsym(RTLD_DEFAULT)" 12 0 12 "$reach" -- default:libnccl.so.2
if [ -z "${OH_SANITIZERS-}" ] && command -v python3 >/dev/null; then # (python3 has no sanitizer in it)
    script=$abs_top_srcdir/test/e2e/reach_ctypes.py
    row "Python ctypes, looked up at the start (vLLM, SGLang)" 12 0 12 python3 "$script" -- libnccl.so.2
    row "Python ctypes, absolute path" 12 0 12 python3 "$script" -- "$nccl"
    row "Python ctypes, looked up for each communicator" 12 10 12 python3 "$script" -- libnccl.so.2 late
    library=$objects/libsimcaller.so
    launch=$abs_top_srcdir/test/e2e/launch.py
    export SIMNODE_TOPOLOGY=h200x2 PYTHONPATH=$abs_top_srcdir/test/e2e PYTHONDONTWRITEBYTECODE=1
    launched "a launcher with a subprocess for each rank (torchrun)" 6 4 6 python3 "$launch" torchrun "$library" \
        "$live" ID
    launched "Python multiprocessing, spawn" 6 4 6 python3 "$launch" spawn "$library" "$live" ID
    launched "Python multiprocessing, fork" 6 4 6 python3 "$launch" fork "$library" "$live" ID
    launched "the same, started as \`python -m\`, spawn" 6 4 6 python3 -m launch spawn "$library" "$live" ID
fi
if find_mpirun; then
    launched "mpirun" 6 4 6 "${mpirun[@]}" -n 2 bash -c "$mpi_ranks" "$live" ID
else
    tap_skip "mpirun" "$no_mpirun"
fi
export SIMNODE_TOPOLOGY=h200x8

# Creators and enders out of sight, since their addresses were taken early: only the first communicator is known, and
# what comes after it under the same handle is not taken for it.
expect_counts "plugin: another communicator under the first one's handle goes to NCCL" served=4 nccl_allreduce=8 0:WARN \
    -- by plugin "$reach" -- mixed:libnccl.so.2

# A call that the program configures goes to NCCL, counted, on communicators that onehop could serve, too.
for newer in newer:"$object" newerdlsym:libnccl.so.2; do
    for way in "${ways[@]}"; do
        expect_counts "$way: ncclAllReduceConfig, ${newer%%:*}" served=0 nccl_allreduceconfig=12 fallback=12 \
            nccl_allreduce=0 0:WARN -- by $way "$reach" -- "$newer"
    done
done

# A group keeps calls of a communicator that is undecided, and looks into no configuration that NCCL rejects.
REACH_BROKEN=1 expect_counts "preload: a configuration that NCCL rejects, in a group" served=0 0:WARN \
    -- by preload "$reach" -- newerdlsym:libnccl.so.2

# A communicator that has been suspended is NCCL's from then on.
for way in preload plugin; do
    REACH_SUSPEND=1 by $way "$reach" -- late:libnccl.so.2
    expect_counts "$way: suspended and resumed: then NCCL executes all calls" "4:suspended: NCCL executes all later calls" \
        0:WARN served=$([ $way = preload ] && echo 12 || echo 10)
done

# Two copies of NCCL in one process: each call goes to the copy that its caller is bound to.
# both NAME PROGRAM WAY WAY: with everything served, then with fallbacks only.
both() {
    local name=$1 program=$2 way
    for way in "${ways[@]}"; do
        expect_counts "$name, $way: each copy makes and ends its own" '4:reach: .* made 2, ended 2, groups 2$' \
            0:WARN served=12+ -- by $way "$program" -- both:"$3,$4"
        ONEHOP_MAX_BYTES=0 expect_counts "$name, $way: fallbacks go to the copy that made the communicator" \
            '4:reach: .* stock 6, made 2, ended 2, groups 2$' 0:WARN -- by $way "$program" -- both:"$3,$4"
    done
}
both "two copies, objects linked with each" "$reach" object:"$object" object:"$objects/libreachcopy.so"
both "two copies, dlsym on each" "$reach" late:libnccl.so.2 late:libncclcopy.so.2
both "two copies, a linked program and dlsym" "$linked" linked late:libncclcopy.so.2
if [ -z "${OH_SANITIZERS-}" ]; then # (refuses RTLD_DEEPBIND)
    both "two copies, a linked program and an object, RTLD_DEEPBIND" "$linked" linked deepbind:"$objects/libreachcopy.so"
    both "two copies, the same, RTLD_LAZY" "$linked" linked lazy:"$objects/libreachcopy.so"
fi
both "two copies, an object and dlsym" "$reach" object:"$objects/libreachcopy.so" late:libnccl.so.2

# Nothing of the environment is needed but the way of loading itself.
run_ranks env -i LD_PRELOAD="$plugin" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" SIMNODE_TOPOLOGY=h200x2 \
    ONEHOP_STATS=1 ASAN_OPTIONS="${ASAN_OPTIONS-}" "$linked" -- linked
expect_counts "env -i" served=12
# A program that is handed the preloaded object under its other name has it once.
run_ranks env LD_PRELOAD="$plugin" NCCL_NET_PLUGIN=onehop "$linked" -- linked
expect_counts "preload and plugin together" served=12 0:WARN
# Another copy of the object stays out of the way of the first.
cp "$plugin" "$scratch/libonehop.so"
run_ranks env LD_PRELOAD="$plugin $scratch/libonehop.so" "$reach" -- dlsym:libnccl.so.2
expect_counts "two onehops preloaded: the first serves" served=12 '2:another libonehop.so is loaded'
run_ranks env LD_PRELOAD="$plugin" NCCL_NET_PLUGIN="$scratch/libonehop.so" "$linked" -- linked
expect_counts "another onehop as the plugin: the preloaded one serves" served=12 '2:another libonehop.so is loaded'
# Switched off.
for way in preload plugin; do
    ONEHOP_DISABLE=1 expect_counts "ONEHOP_DISABLE=1, $way: silent, all stock" served=0 nccl_allreduce=12 '0:^onehop' \
        -- by $way "$reach" -- late:libnccl.so.2
done
expect_no_files

if find_mpirun && command -v python3 >/dev/null; then
    documented=$(sed -n '/^| caller | preload/,/^$/p' "$abs_top_srcdir/doc/loading.md" | sed '1,2d;/^$/d')
    tap_empty "$(diff <(printf '%s\n' "${table[@]}") <(echo "$documented"))" "doc/loading.md has this table"
fi
printf '# %s\n' '| caller | preload | plugin | audit |' '|---|---|---|---|' "${table[@]}"
tap_done
