# SPDX-License-Identifier: MIT
# Preloaded into programs that use no GPU, libonehop.so does nothing that anyone could notice.
. "$abs_top_srcdir/test/hygiene/tap.sh"

[ -z "$OH_SANITIZERS" ] || tap_skip_all "a sanitizer's runtime would have to come first"
object=$abs_top_builddir/.libs/libonehop.so
tap_scratch

# check_program NAME COMMAND...
check_program() {
    local name=$1
    shift
    if ! command -v "$1" >/dev/null; then
        tap_skip "$name" "no $1 here"
        return
    fi
    local plain preloaded
    plain=$("$@" 2>&1 </dev/null; echo "status $?")
    preloaded=$(LD_PRELOAD=$object "$@" 2>&1 </dev/null; echo "status $?")
    [ "$plain" = "$preloaded" ]
    tap_point $? "$name: same output and exit status" "$(diff <(echo "$plain") <(echo "$preloaded"))"

    rm -f "$scratch"/libs.*
    LD_PRELOAD=$object LD_DEBUG=libs LD_DEBUG_OUTPUT=$scratch/libs "$@" >/dev/null 2>&1 </dev/null
    grep -qs "$object" "$scratch"/libs.*
    tap_point $? "$name: the plugin is loaded" "no trace of $object"
    tap_empty "$(grep -hsE 'lib(cuda|nvidia-ml|hwloc|jansson|nccl)[^ ]*\.so' "$scratch"/libs.*)" \
        "$name: no CUDA, NVML, hwloc, jansson or NCCL is looked for"
}

# Time of one run in microseconds.
time_run() {
    local start=${EPOCHREALTIME/[.,]/}
    "$@"
    echo $((${EPOCHREALTIME/[.,]/} - start))
}

median() {
    sort -n | sed -n '15p'
}

check_program bash bash -c 'echo hello'
check_program python3 python3 -c 'print("hello")'
check_program ssh ssh -V

for ((i = 0; i < 30; i++)); do
    time_run bash -c : >>"$scratch/plain"
    LD_PRELOAD=$object time_run bash -c : >>"$scratch/preloaded"
done
added=$(($(median <"$scratch/preloaded") - $(median <"$scratch/plain")))
echo "# start of a shell, median of 30: $(median <"$scratch/plain") us, $added us more with the plugin"
# The aim is below 1000; the bound leaves room for a busy machine.
[ "$added" -lt 5000 ]
tap_point $? "little time is added to a program's start" "$added us"
tap_done
