#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# one.sh - the kernels with one thing taken out, under ThreadSanitizer: one.sh FOLDER TESTS SECONDS [NAME FILE EXPRESSION]
# FOLDER is for what is made on the way, TESTS the object of t_kernels.c (t_protocol.sh). FILE is changed by sed in a copy.
# SECONDS without the end of a call count as for ever. CXX and OH_CPPFLAGS as make check sets them. Prints one line: "clean",
# "found: WHAT", or "broken: WHY" when it cannot be built, or nothing was changed.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1 tests=$2 seconds=$3
shift 3
mkdir -p "$folder/test/protocol" && cp -r "$top/kernels" "$folder" && chmod -R u+w "$folder" || exit 2
cp "$top/test/protocol/kernels.cpp" "$folder/test/protocol" || exit 2
if [ $# -gt 0 ]; then
    cp "$folder/$2" "$folder/whole" || exit 2
    sed -i "${*:3}" "$folder/$2"
    if cmp -s "$folder/$2" "$folder/whole"; then
        echo "broken: nothing of $2 was changed"
        exit
    fi
fi
read -ra cxx <<<"${CXX:-c++}"
read -ra cppflags <<<"${OH_CPPFLAGS-}"
small=(-DOH_PART_BYTES=57344u
    -DOH_SEND_ALL_FIRST=0)
build=("${cxx[@]}" -fsanitize=thread -g1 -O1)
# The copies come first. The tests are the same for all: one object of their four files.
if [ ! -e "$tests" ]; then
    read -ra cc <<<"${CC:-cc}"
    for part in unit/t_kernels unit/kernel_node unit/kernel_reference common/number; do
        "${cc[@]}" -fsanitize=thread -g1 -O1 -std=gnu11 -I "$folder" "${cppflags[@]}" "${small[@]}" \
            -c "$top/test/$part.c" -o "$folder/${part#*/}.o" || break
    done >"$folder/build.log" 2>&1
    ld -r -o "$tests" "$folder"/{t_kernels,kernel_node,kernel_reference,number}.o >>"$folder/build.log" 2>&1 ||
        { echo "broken: $(head -n 3 "$folder/build.log")"; exit; }
fi
if ! "${build[@]}" -std=c++17 -I "$folder" "${cppflags[@]}" "${small[@]}" -o "$folder/t_kernels" \
    "$folder/test/protocol/kernels.cpp" -x none "$tests" -lpthread -lm >"$folder/build.log" 2>&1; then
    echo "broken: $(grep -m 3 error "$folder/build.log" | tr '\n' ' ')"
    exit
fi
# run: one run with a seed; prints as above.
run() {
    local status=0 load limit=600
    read -r load _ </proc/loadavg
    [ "${load%.*}" -lt $((3 * $(nproc))) ] || limit=2400 # the machine has far more to do than it can
    TSAN_OPTIONS="halt_on_error=1 exitcode=66" timeout -k 5 $limit "$folder/t_kernels" "${OH_PROTOCOL_SEED:-$RANDOM}" "$seconds" \
        >"$folder/log" 2>&1 || status=$?
    if grep -q '^# no rank has ended' "$folder/log"; then
        echo "found: ranks wait for ever ($(grep '^# seed' "$folder/log"))"
    elif grep -q 'WARNING: ThreadSanitizer: data race' "$folder/log"; then
        echo "found: a data race ($(grep '^# seed' "$folder/log"))"
    elif grep -q '^not ok' "$folder/log"; then
        echo "found: wrong results, $(grep -m 1 '^not ok' "$folder/log" | sed 's/^not ok [0-9]* - //') ($(grep '^# seed' "$folder/log"))"
    elif [ $status = 0 ] && grep -q '^1\.\.' "$folder/log"; then
        echo "clean"
    else
        echo "broken: status $status, $(tail -n 3 "$folder/log" | tr '\n' ' ')"
    fi
}

# A run is random, and misses a mutation now and then: up to five seeds.
result=$(run)
for _ in 2 3 4 5; do
    [ $# -gt 0 ] && [ "$result" = clean ] && [ -z "${OH_PROTOCOL_SEED-}" ] || break
    result=$(run)
done
echo "$result"
