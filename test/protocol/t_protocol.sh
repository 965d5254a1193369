# SPDX-License-Identifier: MIT
# The kernels for the CPU, on a memory as weak as a GPU's, with random delays and under ThreadSanitizer: the protocols are
# clean, and what mutations.list takes out of them is missed (README.md). OH_PROTOCOL_FULL=1: the whole list.
. "$abs_top_srcdir/test/hygiene/tap.sh"
here=$abs_top_srcdir/test/protocol
sets=quick jobs=1 # other tests run beside this one
[ "${OH_PROTOCOL_FULL-0}" = 0 ] || { sets='quick|full'; jobs=$(nproc 2>/dev/null || echo 2); }

tap_scratch
echo 'int main() { return 0; }' >"$scratch/try.cpp"
read -ra cxx <<<"$CXX"
"${cxx[@]}" -fsanitize=thread -o "$scratch/try" "$scratch/try.cpp" 2>/dev/null ||
    tap_skip_all "no ThreadSanitizer with ${CXX} (Debian: libtsan2)"
# Older ones start only now and then where the kernel makes addresses very random.
for _ in $(seq 20); do
    "$scratch/try" 2>/dev/null ||
        tap_skip_all "ThreadSanitizer does not start (vm.mmap_rnd_bits is $(cat /proc/sys/vm/mmap_rnd_bits))"
done

result=$("$here/one.sh" "$scratch/whole" "$scratch/tests.o" 120)
[ "$result" = clean ]
tap_point $? "the whole protocols: $result" "$(tail -n 60 "$scratch/whole/log")"

grep -E "^($sets) " "$here/mutations.list" >"$scratch/mutations"
# A mutation in each line, as it stands, for one bash each.
nl -ba "$scratch/mutations" | xargs -d '\n' -P "$jobs" -n 1 bash -c '
    read -r number set name file expression <<<"$3"
    "$0" "$1/$number" "$1/tests.o" "$2" "$name" "$file" "$expression" >"$1/$number.result" 2>&1
    rm -rf "$1/${number:?}"' "$here/one.sh" "$scratch" 5

number=0
while read -r _ name _; do
    number=$((number + 1))
    result=$(cat "$scratch/$number.result" 2>/dev/null)
    [ "${result%%[ :]*}" = found ]
    tap_point $? "$name: ${result:-no result}" "expected: found"
done <"$scratch/mutations"
[ "$number" -gt 1 ]
tap_point $? "all mutations of the list were tried"
tap_done
