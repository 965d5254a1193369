# SPDX-License-Identifier: MIT
# What libonehop.so asks of, and shows to, the process that it is loaded into.
. "$abs_top_srcdir/test/hygiene/tap.sh"

object=$abs_top_builddir/.libs/libonehop.so
export LC_ALL=C

[ -r "$object" ]
tap_point $? "libonehop.so is built" "$object is missing"

dynamic=$(readelf -dW "$object")
if [ -n "$OH_SANITIZERS" ]; then
    tap_skip "libc is all it needs" "a sanitizer's runtime is linked"
else
    # glibc older than 2.34 keeps threads, dlopen and shm_open in libraries of their own.
    needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
    tap_empty "$(grep -vxE 'libc\.so\.6|ld-linux-.*|lib(pthread|dl|rt)\.so\.[0-9]' <<<"$needed")" "libc, and its loader, is all it needs"
    if getconf GNU_LIBC_VERSION | awk '{split($2, v, "."); exit !(v[1] > 2 || v[2] >= 34)}'; then
        tap_empty "$(grep -vxE 'libc\.so\.6|ld-linux-.*' <<<"$needed")" "libc.so.6 and the loader alone, with glibc 2.34 or later"
    fi
fi

flags=$(grep 'FLAGS_1' <<<"$dynamic")
[[ $flags == *NODELETE* && $flags == *NOW* ]]
tap_point $? "it is bound at load and stays loaded" "$flags"

tap_empty "$(grep -E 'TEXTREL|RPATH|RUNPATH' <<<"$dynamic")" "no text relocations, no run path"
tap_empty "$(readelf -lW "$object" | grep 'GNU_STACK.*E ')" "the stack is not executable"

# What the linker finds in each of the objects it notes in the plugin; the compiler sees to those of C.
assembled=$(mktemp)
unmarked() {
    local source
    for source in $(cd "$abs_top_srcdir" && find src -name '*.S' ! -name notes.S); do
        # shellcheck disable=SC2086
        $CC "$1" -I"$abs_top_srcdir/src" -Wa,-I"$abs_top_srcdir" -c -o "$assembled" "$abs_top_srcdir/$source" &&
            readelf -nW "$assembled" | grep -q "$2" || echo "$source"
    done
}
name="with CET or BTI asked for, assembly is marked as what keeps to it"
case $($CC -dumpmachine) in
x86_64-*) tap_empty "$(cd "$abs_top_builddir" && unmarked -fcf-protection=full 'IBT, SHSTK')" "$name" ;;
aarch64-*) tap_empty "$(cd "$abs_top_builddir" && unmarked -mbranch-protection=standard BTI)" "$name" ;;
*) tap_skip "$name" "another machine" ;;
esac
rm -f "$assembled"

found=$(nm -D --defined-only "$object" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort -u)
thunks=$(sed -n '/define OH_NCCL_QUERIES/,/^$/d; s/^ *X(\([A-Za-z]*\),.*/nccl\1/p' "$abs_top_srcdir/src/comm/nccl.h")
own=$(sed -n 's/^ONEHOP_API .*\<\(onehop[A-Z][A-Za-z]*\)(.*/\1/p' "$abs_top_srcdir/include/onehop/onehop.h")
wanted=$(printf '%s\n' $thunks $(sed 's/^/p/' <<<"$thunks") $own dlsym dlvsym __libc_start_main onehop_loaded_objects ncclNetPlugin_v{6,11,12} ncclProfiler_v5 | sort)
tap_empty "$(diff <(echo "$wanted") <(echo "$found"))" \
    "it exports NCCL's functions of src/comm/nccl.h, which have thunks, by both names, its plugins, onehop.h's functions, dlsym, dlvsym, the program's start, and what it asks the loader by"

undefined=$(nm -D --undefined-only "$object" | awk '{print $2}')
foreign=$(grep -E '^(cuda|cu[A-Z]|p?nccl|nvml|hwloc|json_)' <<<"$undefined")
tap_empty "$foreign" "nothing of CUDA, NVML, NCCL, hwloc or jansson is linked"

# Most of it is device code, which grows by what is compiled for what (doc/design.md).
most=$((8 << 20)) bytes=$(wc -c <"$object")
if [ ! -s "$abs_top_builddir/kernels/twoshot.fatbin" ]; then
    tap_skip "it has less than 8 MiB" "built without kernels"
elif [ -n "$OH_SANITIZERS" ] || ! grep -q '^NVCC_COMPRESS = .' "$abs_top_builddir/Makefile"; then
    tap_skip "it has less than 8 MiB" "a sanitizer is built in, or nvcc is that of CUDA 12, whose code is not compressed for size"
else
    [ "$bytes" -lt $most ]
    tap_point $? "it has less than 8 MiB" "$bytes bytes"
fi
tap_done
