# SPDX-License-Identifier: MIT
# A short run of each fuzzing target; longer ones: scripts/fuzz.
. "$abs_top_srcdir/test/hygiene/tap.sh"
seconds=2
tap_scratch
status=0
out=$("$abs_top_srcdir/scripts/fuzz" --build "$scratch" $seconds 2>&1) || status=$?
[ $status != 77 ] || tap_skip_all "${out#fuzz: }"
targets=0
while read -r line; do
    case $line in
    'ok '*) targets=$((targets + 1)); tap_point 0 "${line#ok }" ;;
    'FAIL '*) tap_point 1 "${line#FAIL }" "$out" ;;
    esac
done <<<"$out"
[ "$targets" = "$(ls "$abs_top_srcdir"/test/fuzz/fuzz_*.c | wc -l)" ]
tap_point $? "every target has run" "$out"
tap_done
