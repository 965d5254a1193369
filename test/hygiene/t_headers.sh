# SPDX-License-Identifier: MIT
# Every header compiles by itself: the host's in C11, the public one in C++17 too, the kernels' in C++17 for the CPU. Include
# guards have the names of their files.
. "$abs_top_srcdir/test/hygiene/tap.sh"

read -ra cc <<<"$CC"
read -ra cxx <<<"$CXX"
read -ra cppflags <<<"$OH_CPPFLAGS"

# check_header LANGUAGE STANDARD HEADER COMPILER...
check_header() {
    local language=$1 standard=$2 header=$3 log
    shift 3
    log=$(printf '#include "%s"\n' "$header" | "$@" "-std=$standard" -x "$language" -Wall -Wextra -Werror \
        -fsyntax-only -DOH_SIMNODE -I. "${cppflags[@]}" - 2>&1)
    tap_point $? "$header in $standard" "$log"
}

check_header c++ c++17 include/onehop/onehop.h "${cxx[@]}"
while read -r header; do
    case $header in
        kernels/*.cuh | test/simnode/primitives_cpu.h) check_header c++ c++17 "$header" "${cxx[@]}" ;;
        *) check_header c c11 "$header" "${cc[@]}" ;;
    esac
done < <(cd "$abs_top_srcdir" && find include src kernels test -name '*.h' -o -name '*.cuh' | LC_ALL=C sort)

wrong=$(cd "$abs_top_srcdir" && find src test -name '*.h' | while read -r header; do
    guard=$(tr 'a-z/.-' 'A-Z___' <<<"${header#src/}")_
    [ "$header" = "${header#src/}" ] || guard=OH_$guard
    grep -qx "#ifndef $guard" "$header" || echo "$header: expected $guard"
done)
tap_empty "$wrong" "include guards have the names of their files"
tap_done
