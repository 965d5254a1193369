# SPDX-License-Identifier: MIT
# lib.sh - what the scripts share: installing what is missing, configuring, building, time limits. Sourced by bash.

oh_top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

oh_say() {
    printf '== %s\n' "$*"
}

oh_die() {
    printf '\n%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# oh_run LOG COMMAND...: runs a command quietly; shows the end of LOG and stops the script when it fails.
oh_run() {
    local log=$1
    shift
    if ! "$@" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        oh_die "failed: $* (whole output: $log)"
    fi
}

# oh_limited SECONDS COMMAND...: runs a command under a time limit, and ends it when the script is ended by a signal:
# `timeout` alone puts it out of reach of one. For scripts without traps of their own for signals, and not in a subshell.
# The command does not get descriptor 3, which a script may keep for itself.
oh_limited() {
    local status
    oh_running=
    trap 'oh_end_running 130' INT
    trap 'oh_end_running 143' TERM HUP
    timeout -k 10 "$@" 3>&- &
    oh_running=$!
    wait "$oh_running"
    status=$?
    oh_running=
    return $status
}
oh_end_running() {
    if [ -n "${oh_running-}" ]; then
        kill "$oh_running"
        wait "$oh_running"
    fi
    exit "$1"
}

# oh_library_folder NAME: the folder from which the dynamic linker takes a library here; empty when there is none.
oh_library_folder() {
    local folder folders
    IFS=: read -ra folders <<<"${LD_LIBRARY_PATH-}"
    for folder in "${folders[@]}"; do
        [ -z "$folder" ] || [ ! -e "$folder/$1" ] || { echo "$folder"; return; }
    done
    folder=$(ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }')
    [ -z "$folder" ] || dirname "$folder"
}

# oh_nccl_folder PYTHON: the folder of libnccl.so.2: NCCL_LIB, else where programs find it, else PyTorch's.
oh_nccl_folder() {
    local folder=${NCCL_LIB-}
    [ -n "$folder" ] || folder=$(oh_library_folder libnccl.so.2)
    [ -n "$folder" ] ||
        folder=$("$1" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2>/dev/null)
    [ -z "$folder" ] || echo "$folder"
}

# oh_gpus: the GPUs that programs see, by comma: CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists; empty where none are
# known.
oh_gpus() {
    local count
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        echo "$CUDA_VISIBLE_DEVICES"
        return
    fi
    count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
    [ "$count" = 0 ] || seq -s , 0 $((count - 1))
}

# oh_refuse_onehop: stops, status 2, where the environment brings onehop into every program: nothing would be stock NCCL.
oh_refuse_onehop() {
    local name
    for name in LD_PRELOAD LD_AUDIT NCCL_NET_PLUGIN; do
        [[ ${!name-} = *onehop* ]] || continue
        printf '%s: %s is %s: nothing here would run with stock NCCL alone; unset it\n' "${0##*/}" "$name" "${!name}" >&2
        exit 2
    done
}

# oh_mpi_program BUILD OUT NCCL DRIVER: prints the path of allreduce_mpi: made in OUT as a user would, with the libraries of
# the folders NCCL and DRIVER, else that of the build tree. Fails, with the reason in OUT/mpicc.log, when there is none, or
# no mpirun.
oh_mpi_program() {
    local log=$2/mpicc.log
    command -v mpirun >/dev/null || { echo "no mpirun" >"$log"; return 1; }
    if mpicc -I/usr/local/cuda/include -I"$3/../include" -o "$2/allreduce_mpi" "$oh_top/test/apps/allreduce_mpi.c" \
        "$3/libnccl.so.2" "$4/libcuda.so.1" >"$log" 2>&1; then
        echo "$2/allreduce_mpi"
    elif [ -x "$1/test/apps/allreduce_mpi" ]; then
        echo "$1/test/apps/allreduce_mpi"
    else
        return 1
    fi
}

# oh_help SCRIPT: the comment at its head, from the line "usage: " on, as text.
oh_help() {
    sed -n '/^# usage: /,/^$\|^[^#]/s/^# \{0,1\}//p' "$1"
}

# oh_answer_options SCRIPT WORD...: answers --help; ends with one sentence, status 2, when a word is nothing for configure.
oh_answer_options() {
    local script=$1 word name
    shift
    for word in "$@"; do
        case $word in
        -h | --help) oh_help "$script"; exit ;;
        --prefix=?* | --*dir=?* | --host=?* | --build=?* | [A-Z]*=*) continue ;;
        --enable-?* | --disable-?* | --with-?* | --without-?*)
            name=${word#--*-}
            ! grep -qE "^ *AC_ARG_(ENABLE|WITH)\(\[${name%%=*}\]" "$oh_top"/m4/oh_*.m4 || continue
            case ${name%%=*} in
            shared | static | dependency-tracking | silent-rules) continue ;;
            esac
            ;;
        esac
        printf "%s: '%s' is no option, of configure neither; see --help\n" "${script##*/}" "$word" >&2
        exit 2
    done
}

oh_has_header() {
    printf '#include <%s>\n' "$1" | cc -E - >/dev/null 2>&1
}

# oh_missing_packages: the Debian packages that the build lacks here, one a line.
oh_missing_packages() {
    local tool
    for tool in gcc g++ make; do
        command -v "$tool" >/dev/null || echo build-essential
    done
    for tool in autoconf automake pkg-config; do
        command -v "$tool" >/dev/null || echo "$tool"
    done
    command -v libtoolize >/dev/null || echo libtool
    oh_has_header hwloc.h || echo libhwloc-dev
    oh_has_header jansson.h || echo libjansson-dev
}

# oh_apt_install PACKAGE...: returns 1 when this user or this system cannot install Debian packages.
oh_apt_install() {
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
    oh_say "installing $*"
    local log
    log=$(mktemp)
    oh_run "$log" apt-get -q update
    oh_run "$log" env DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "$@"
    rm -f "$log"
}

# oh_install_missing: installs what the build lacks, or stops with the command that does.
oh_install_missing() {
    local -a packages
    mapfile -t packages < <(oh_missing_packages | sort -u)
    [ ${#packages[@]} = 0 ] && return
    oh_apt_install "${packages[@]}" || oh_die "missing: ${packages[*]}
On Debian or Ubuntu:  sudo apt-get install -y ${packages[*]}
Elsewhere, install what these packages bring (hwloc 2.0 and jansson 2.10 or later with their headers); then run this again."
}

# oh_require_cuda CONFIGURE-ARGUMENT...: stops with advice when there is no nvcc that configure would find.
oh_require_cuda() {
    case " $* ${NVCC:+--with-cuda}" in
        *--with-cuda* | *--disable-kernels*) return ;;
    esac
    command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] && return
    local found="No CUDA Toolkit found"
    if [ -r /usr/local/cuda/include/cuda.h ] || oh_has_header cuda.h; then
        found="CUDA headers found, but no nvcc (a build with --disable-kernels is possible, but cannot serve GPUs)"
    fi
    oh_die "$found.
onehop is built with nvcc of the CUDA Toolkit 12.0 or later; it is not needed where onehop runs.
- Get it: https://developer.nvidia.com/cuda-downloads (Debian and Ubuntu packages: cuda-toolkit-12-8 or later;
  nvcc and the headers alone: cuda-nvcc-12-8 cuda-cudart-dev-12-8). NCCL's header: libnccl-dev, same source.
- It is installed elsewhere: ${0} --with-cuda=DIR"
}

# oh_build DIR CONFIGURE-ARGUMENT...: configures (when new, or when the arguments changed) and builds in DIR.
oh_build() {
    local dir=$1
    shift
    [ ! -e "$oh_top/config.status" ] || oh_die "the source tree itself is configured: run 'make distclean' there first"
    mkdir -p "$dir"
    if [ ! -x "$oh_top/configure" ]; then
        oh_say "autoreconf -i"
        (cd "$oh_top" && oh_run "$dir/autoreconf.log" autoreconf -i)
    fi
    if [ ! -e "$dir/config.status" ] || [ "$(cat "$dir/configure.args" 2>/dev/null)" != "$*" ]; then
        oh_say "configure $*"
        (cd "$dir" && oh_run configure.out "$oh_top/configure" "$@")
        printf '%s' "$*" >"$dir/configure.args"
    fi
    oh_say "make (in $dir)"
    oh_run "$dir/make.log" make -C "$dir" -j"$(nproc)"
}
