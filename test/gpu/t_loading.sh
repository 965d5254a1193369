# SPDX-License-Identifier: MIT
# t_loading.sh [STEP...] - the ways of loading onehop, with real launchers and GPUs. Steps: loading.
. "$(dirname "$0")/lib.sh"

# ranks COMMAND... -- ARGUMENT...: a process for each GPU, COMMAND RANK NRANKS FOLDER ARGUMENT... For a shell of its own,
# whose end takes the folder along.
ranks() {
    local rank pid pids=() status=0 command=()
    folder=$(mktemp -d) || return
    trap 'rm -rf -- "${folder:?}"' EXIT
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    for ((rank = 0; rank < gpus; rank++)); do
        "${command[@]}" $rank "$gpus" "$folder" "${@:2}" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    return $status
}
export -f ranks

# reached LOG: the calls that onehop served, and those on communicators that it did not serve (yet).
reached() {
    sed -n 's/.*stats: rank .* served=\([0-9]*\) .*fallback=[0-9]* (comm=\([0-9]*\) .*/\1 \2/p' "$out/$1.log" |
        awk '{ s += $1; o += $2 } END { print s + 0, o + 0 }'
}

# cell CALLER WAY WANTED COMMAND...: one caller by one way of loading. WANTED is what is served: yes, first (all but the
# first call of the first communicator), some, or no; =N behind it: so many calls. Appends to $row. Neither onehop nor NCCL
# may warn of the plugin.
cell() {
    local name=loading-$1-$2 wanted=$3 served off word=no
    step "$name" 80 env NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV ONEHOP_DEBUG=INFO ONEHOP_STATS=1 "${@:4}"
    read -r served off <<<"$(reached "$name")"
    if [ "$served" -gt 0 ]; then
        word=first
        [ "$off" -gt 0 ] || word=yes
    fi
    row+=$(printf ' %-14s' "$word ($served)")
    case $wanted in
    some) [ "$served" -gt 0 ] ;;
    *=*) [ "$wanted" = "$word=$served" ] ;;
    *) [ "$wanted" = "$word" ] ;;
    esac || bad "$name: served: $word ($served calls, $off not), expected $wanted"
    ! grep -hiE -m 1 'onehop: .* WARN |NCCL WARN .*(plugin|onehop)' "$out/$name.log" >&2 ||
        bad "$name: a warning"
}

# loading_row NAME FUNCTION PRELOAD PLUGIN AUDIT: a row of the table; the function runs `cell` with what it is given.
loading_row() {
    local row=
    "$2" preload "$3"
    "$2" plugin "$4"
    "$2" audit "$5"
    note_of "$1" '%s' "${row# }"
}

# Variables for a way of loading, as they are set by hand. Fills `by_hand`.
set_by_hand() {
    case $1 in
    preload) by_hand=(LD_PRELOAD="$library") ;;
    plugin) by_hand=(NCCL_NET_PLUGIN=onehop) ;;
    audit) by_hand=(LD_PRELOAD="$library" LD_AUDIT="$prefix/lib/libonehop-audit.so") ;;
    esac
}

# linked NAME WANTED VARIABLE...: test/e2e/reach.c, linked with NCCL.
linked() {
    cell linked "$1" "$2" bash -c 'ranks "$@"' ranks env LD_LIBRARY_PATH="$prefix/lib:$real_libraries" "${@:3}" \
        "$build/test/e2e/reach_linked" -- linked
}

linked_cell() {
    local by_hand
    set_by_hand "$1"
    linked "$1" "$2" "${by_hand[@]}"
}

ctypes_cell() {
    local by_hand
    set_by_hand "$1"
    cell ctypes "$1" "$2" bash -c 'ranks "$@"' ranks env LD_LIBRARY_PATH="$prefix/lib:$real_libraries" "${by_hand[@]}" \
        python3 "$top/test/e2e/reach_ctypes.py" -- libnccl.so.2
}

torch_cell() {
    local command=("${torchrun[@]}" "$top/test/gpu/torch_allreduce.py" --quick --replays 20)
    if [ "$1" = preload ]; then
        cell torch "$1" "$2" LD_PRELOAD="$library" "${command[@]}"
    else
        cell torch "$1" "$2" "$prefix/bin/onehop" run --via "$1" --stats -- "${command[@]}"
    fi
}

# So many calls that in the plugin way the only communicator is set up before the last one.
mpi_cell() {
    local mpirun program=("$mpi_program" 1000 "$mpi_rounds")
    mapfile -t mpirun < <(oh_mpirun)
    mpirun+=(-n "$gpus")
    if [ "$1" = preload ]; then
        cell mpirun "$1" "$2" LD_LIBRARY_PATH="$real_libraries" "${mpirun[@]}" env LD_PRELOAD="$library" \
            "${program[@]}"
    else
        cell mpirun "$1" "$2" LD_LIBRARY_PATH="$real_libraries" "$prefix/bin/onehop" run --via "$1" --stats -- \
            "${mpirun[@]}" "${program[@]}"
    fi
}

# The table of doc/loading.md for the callers that matter; then other settings of the plugin way.
step_loading() {
    local all=$((6 * gpus)) mpi_program mpi_rounds=30000 row
    [ -z "$quick" ] || mpi_rounds=2000 # enough for the simulated node, whose calls take longer
    note_of 'loading: served' '%-14s %-14s %-14s' preload plugin audit
    loading_row "linked program" linked_cell "yes=$all" "first=$((5 * gpus))" "yes=$all"
    loading_row "Python ctypes" ctypes_cell "yes=$all" no "yes=$all"
    if mpi_program=$(oh_mpi_program "$build" "$out" "$nccl" "$driver"); then
        loading_row "mpirun" mpi_cell "yes=$((mpi_rounds * gpus))" first "yes=$((mpi_rounds * gpus))"
    else
        skip loading-mpirun "$(tail -n 1 "$out/mpicc.log")"
    fi
    ! have_torch loading-torch || loading_row "PyTorch, torchrun" torch_cell yes first yes
    # With NCCL_NET=Socket the first communicator is not found again, but by some (2.28.3).
    linked none no NCCL_NET_PLUGIN=none
    linked none-preload "yes=$all" NCCL_NET_PLUGIN=none LD_PRELOAD="$library"
    linked socket some NCCL_NET=Socket NCCL_NET_PLUGIN=onehop
    linked list "first=$((5 * gpus))" NCCL_NET_PLUGIN=onehop,none-such
}

run_steps "loading" "$@"
