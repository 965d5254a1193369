# SPDX-License-Identifier: MIT
# lib.sh - what the scripts share: installing what is missing, configuring, building, time limits. Sourced by bash.

oh_top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
oh_real_top=$oh_top
# configure refuses folders with a blank or the like in their names: it gets a link without one.
if [[ $oh_top = *[^-A-Za-z0-9_./+@%=:,~]* ]]; then
    oh_top=/tmp/onehop-$(id -u)-$(cksum <<<"$oh_real_top" | cut -d ' ' -f 1)
    ln -sfn "$oh_real_top" "$oh_top"
    if [ "$(stat -c %u "$oh_top")" != "$(id -u)" ] || [ "$(readlink "$oh_top")" != "$oh_real_top" ]; then
        printf '%s: %s: not a link of yours to this folder; remove it, or rename the folder: %s has a blank or the like in it\n' \
            "${0##*/}" "$oh_top" "$oh_real_top" >&2
        exit 1
    fi
fi

# oh_copy_tree FROM TO: copies a tree without its folders of builds, but with build-aux, which is autoreconf's.
oh_copy_tree() {
    (cd "$1" && find . -mindepth 1 -maxdepth 1 ! -name build \( -name build-aux -o ! -name 'build-*' \) -print0 |
        tar --null --files-from - -cf -) | tar -C "$2" -xf -
}

oh_say() {
    printf '== %s\n' "$*"
}

oh_die() {
    printf '\n%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# oh_fail STATUS WORDS...: one sentence, and the end.
oh_fail() {
    local status=$1
    shift
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit "$status"
}

# oh_needs_value OPTION COUNT: refuses an option that is the last of COUNT words.
oh_needs_value() {
    [ "$2" -gt 1 ] || oh_fail 2 "$1 needs a value; see --help"
}

# oh_run LOG COMMAND...: runs a command quietly; shows the end of LOG and stops the script when it fails.
# A terminal sees the last line of LOG meanwhile.
oh_run() {
    local log=$1 status=0 ticker=
    shift
    : >"$log"
    if [ -t 1 ]; then
        while sleep 1 && kill -0 $$; do
            printf '\r\033[K   %s\r' "$(tail -n 1 "$log" | tr -d '\000-\037' | cut -c 1-76)"
        done 2>/dev/null &
        ticker=$!
    fi
    "$@" >"$log" 2>&1 || status=$?
    if [ -n "$ticker" ]; then
        kill "$ticker"
        wait "$ticker" 2>/dev/null || true
        printf '\r\033[K'
    fi
    if [ "$status" != 0 ]; then
        tail -n 40 "$log" >&2
        oh_die "failed: $* (whole output: $log)"
    fi
}

# oh_limited SECONDS COMMAND...: runs a command under a time limit, and ends it when the script is ended by a signal:
# `timeout` alone puts it out of reach of one. The script then ends by that signal, so that a loop of commands around it ends,
# too. For scripts without traps of their own for signals, and not in a subshell.
# The command does not get descriptor 3, which a script may keep for itself.
oh_limited() {
    local status
    oh_running=
    trap 'oh_end_running INT' INT
    trap 'oh_end_running TERM' TERM
    trap 'oh_end_running HUP' HUP
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
    trap - "$1"
    kill -"$1" $$
}

# oh_library_folder NAME: the folder from which the dynamic linker takes a library here; empty when there is none.
oh_library_folder() {
    local folder folders
    IFS=: read -ra folders <<<"${LD_LIBRARY_PATH-}"
    for folder in "${folders[@]}"; do
        [ -z "$folder" ] || [ ! -e "$folder/$1" ] || { echo "$folder"; return; }
    done
    folder=$(ldconfig -p 2>/dev/null | awk -v name="$1" -v machine="$(uname -m | tr _ -)" 'index(tolower($2), machine) && $1 == name { print $NF; exit }')
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

# oh_gencode NVCC: NVCC_GENCODE for the GPUs of this machine alone, made as configure makes it; empty where that is not
# known, or NVCC is too old for them.
oh_gencode() {
    local capability real virtual flags=
    for capability in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u); do
        case $capability in
        8.*) real=80 virtual=80 ;;
        9.*) real=90 virtual=90 ;;
        10.*) real=100 virtual=90 ;;
        *) return ;;
        esac
        [[ " $("$1" --list-gpu-code 2>/dev/null | tr '\n' ' ')" = *" sm_$real "* ]] || return 0
        [[ $flags = *sm_$real* ]] || flags+=" -gencode=arch=compute_$virtual,code=sm_$real"
    done
    # The PTX serves GPUs that this machine gets later.
    [[ $flags = *compute_90* ]] && virtual=90 || virtual=80
    [ -z "$flags" ] || echo "${flags# } -gencode=arch=compute_$virtual,code=compute_$virtual"
}

# oh_refuse_onehop: stops, status 2, where the environment brings onehop into every program: nothing would be stock NCCL.
oh_refuse_onehop() {
    local name
    for name in LD_PRELOAD LD_AUDIT NCCL_NET_PLUGIN; do
        [[ ${!name-} != *onehop* ]] ||
            oh_fail 2 "$name is ${!name}: nothing here would run with stock NCCL alone; unset it"
    done
}

# oh_mpirun: the launcher of MPI programs and the options with which it starts any number of ranks, as root too, one word a
# line. Open MPI wants options for that, MPICH none. Fails where there is no launcher.
oh_mpirun() {
    local name
    for name in mpirun mpiexec; do
        command -v $name >/dev/null || continue
        echo $name
        ! $name --version 2>/dev/null | grep -q 'Open MPI' || printf '%s\n' --oversubscribe --allow-run-as-root
        return
    done
    return 1
}

# oh_mpi_program BUILD OUT NCCL DRIVER: prints the path of allreduce_mpi: made in OUT as a user would, with the libraries of
# the folders NCCL and DRIVER, else that of the build tree. Fails, with the reason in OUT/mpicc.log, when there is none, or
# no mpirun.
oh_mpi_program() {
    local log=$2/mpicc.log
    oh_mpirun >/dev/null || { echo "no mpirun" >"$log"; return 1; }
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
        oh_fail 2 "'$word' is no option, of configure neither; see --help"
    done
}

# oh_has_header HEADER [FLAG...]: the compiler finds it.
oh_has_header() {
    local header=$1
    shift
    printf '#include <%s>\n' "$header" | cc -E "$@" - >/dev/null 2>&1
}

# oh_cuda_part: the part of toolkit.py that has an nvcc for this machine, or, with oh_package set, for all machines: a
# driver for CUDA 12 cannot load what nvcc of CUDA 13 makes.
oh_cuda_part() {
    if [ -n "${oh_package-}" ] || [[ $(nvidia-smi 2>/dev/null) =~ CUDA\ Version:\ *12\. ]]; then
        echo cuda12
    else
        echo cuda13
    fi
}

# oh_find_toolkit ARGUMENT...: what configure with these arguments lacks of CUDA and NCCL. Sets oh_toolkit, more arguments
# for it; oh_nvcc, the nvcc that it finds; oh_lacks, the part of toolkit.py that is to be fetched, or nothing. With
# oh_wants set, that part is fetched also where there is a toolkit.
oh_find_toolkit() {
    local word cuda= nccl= kernels=yes
    oh_toolkit=() oh_lacks= oh_nvcc=${NVCC-}
    for word in "$@"; do
        case $word in
        --with-cuda=*) cuda=${word#*=} ;;
        --with-nccl=*) nccl=${word#*=} ;;
        --disable-kernels | --enable-kernels=no) kernels=no ;;
        NVCC=*) oh_nvcc=${word#*=} ;;
        esac
    done
    if [ -z "$cuda$oh_nvcc" ] && [ -n "${oh_wants-}" ]; then
        oh_lacks=$oh_wants
        [ $kernels = yes ] || oh_lacks=headers
        return
    fi
    if [ -z "$cuda$oh_nvcc" ]; then
        for cuda in "${CUDA_HOME-}" "${CUDA_PATH-}"; do
            if [ -r "$cuda/include/cuda.h" ] && { [ $kernels = no ] || [ -x "$cuda/bin/nvcc" ]; }; then
                oh_toolkit=("--with-cuda=$cuda")
                break
            fi
            cuda=
        done
    fi
    if [ -z "$cuda" ]; then
        oh_nvcc=$(command -v "$(sed 's/.* //' <<<"${oh_nvcc:-nvcc}")" || command -v /usr/local/cuda/bin/nvcc || true)
        cuda=/usr/local/cuda
        [ -z "$oh_nvcc" ] || cuda=$(dirname "$(dirname "$(readlink -f "$oh_nvcc")")")
        if [ -z "$oh_nvcc" ] && [ $kernels = yes ]; then
            oh_lacks=$(oh_cuda_part)
        elif ! oh_has_header cuda.h -isystem "$cuda/include"; then
            oh_lacks=headers
        fi
    fi
    [ -n "$oh_nvcc" ] || oh_nvcc=$cuda/bin/nvcc
    [ -n "$oh_lacks$nccl" ] || oh_has_header nccl.h -isystem "$cuda/include" -isystem "$cuda/include/cccl" ||
        oh_lacks=nccl
}

# oh_prepare BUILD ARGUMENT...: installs what the build lacks, and fetches into BUILD/cuda what it lacks of CUDA and NCCL. Sets
# oh_toolkit, the arguments of configure that name it.
oh_prepare() {
    local dir what why="no CUDA Toolkit found: "
    mkdir -p "$1"
    dir=$(cd "$1" && pwd)/cuda
    shift
    oh_find_toolkit "$@"
    oh_install_missing
    oh_find_toolkit "$@" # now with a compiler
    case $oh_lacks in
    '') return ;;
    nccl) why="no nccl.h found: " what=nccl.h ;;
    headers) what="CUDA's headers and nccl.h" ;;
    *) what="nvcc, CUDA's headers and nccl.h" ;;
    esac
    [ -z "${oh_wants-}" ] || why=
    oh_say "${why}using $what of the Python package index, in $dir"
    python3 "$oh_top/scripts/toolkit.py" "$dir" "$oh_lacks" || oh_die "cannot fetch them.
onehop is built with the headers of the CUDA Toolkit 12.0 or later and NCCL's, and with nvcc to serve GPUs.
- Get them: https://developer.nvidia.com/cuda-downloads (Debian and Ubuntu packages: cuda-nvcc-12-8 cuda-cudart-dev-12-8
  libnccl-dev, or later ones).
- They are installed elsewhere: ${0} --with-cuda=DIR --with-nccl=DIR"
    [ "$oh_lacks" = nccl ] || oh_toolkit=("--with-cuda=$dir")
    [[ $oh_lacks != cuda* ]] || oh_nvcc=$dir/bin/nvcc
    case " $*" in *" --with-nccl="*) ;; *) oh_toolkit+=("--with-nccl=$dir") ;; esac
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
    if [ -n "${oh_lacks-}" ]; then # what fetches it
        command -v python3 >/dev/null || echo python3
        [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -d /etc/pki ] || [ -n "${SSL_CERT_FILE-}" ] || echo ca-certificates
    fi
}

# oh_apt_install PACKAGE...: returns 1 when this user or this system cannot install Debian packages.
oh_apt_install() ( # a subshell, which a failing oh_run ends alone
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || exit 1
    oh_say "installing $*"
    log=$(mktemp)
    oh_run "$log" apt-get -q update
    oh_run "$log" env DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "$@"
    rm -f "$log"
)

# oh_install_missing: installs what the build lacks, or stops with the command that does.
oh_install_missing() {
    local -a packages
    mapfile -t packages < <(oh_missing_packages | sort -u)
    [ ${#packages[@]} = 0 ] && return
    oh_apt_install "${packages[@]}" || oh_die "missing: ${packages[*]}
On Debian or Ubuntu:  sudo apt-get install -y ${packages[*]}
Elsewhere, install what these packages bring (hwloc 2.0 and jansson 2.10 or later with their headers); then run this again."
}

# oh_configure DIR CONFIGURE-ARGUMENT...: configures DIR, when new, or when the arguments changed.
oh_configure() {
    local dir=$1
    shift
    [ ! -e "$oh_top/config.status" ] || oh_die "the source tree itself is configured: run 'make distclean' there first"
    mkdir -p "$dir" || exit # a failure ends the script also where set -e does not hold
    if [ ! -x "$oh_top/configure" ]; then
        oh_say "autoreconf -i"
        (cd "$oh_top" && oh_run "$dir/autoreconf.log" autoreconf -i) || exit
    fi
    if [ ! -e "$dir/config.status" ] || [ "$(cat "$dir/configure.args" 2>/dev/null)" != "$*" ]; then
        oh_say "configure $*"
        (
            cd "$dir" || exit
            # libtool, a script of 12,000 lines, runs once a file: 37 ms with dash, 65 ms with bash.
            [ ! -x /bin/dash ] || export CONFIG_SHELL=${CONFIG_SHELL-/bin/dash} SHELL=${CONFIG_SHELL-/bin/dash}
            oh_run configure.out "$oh_top/configure" "$@"
        ) || exit
        printf '%s' "$*" >"$dir/configure.args"
    fi
}

# oh_make DIR ARGUMENT...: makes in DIR.
oh_make() {
    local dir=$1
    shift
    oh_say "make (in $dir)"
    (cd "$dir" && oh_run "$dir/make.log" make -j"$(nproc)" "$@") # by `make -C` libtool would see through oh_top's link
}

# oh_quoted WORD...: the words as a shell reads them again, for a package's own build.
oh_quoted() { printf '%s' "${*@Q}"; }

# oh_dist BUILD CONFIGURE-ARGUMENT...: puts the tarball of this tree into BUILD/onehop-source, which it empties.
oh_dist() {
    local source=$1/onehop-source log=$1
    shift
    rm -rf "$source"
    mkdir -p "$source/dist"
    [ -x "$oh_top/configure" ] || (cd "$oh_top" && oh_run "$log/autoreconf.log" autoreconf -i)
    oh_say "make dist"
    (cd "$source/dist" && oh_run "$log/configure.log" "$oh_top/configure" "$@")
    oh_run "$log/dist.log" make -C "$source/dist" dist-gzip
    mv "$source/dist"/onehop-*.tar.gz "$source"
    rm -rf "$source/dist"
}
