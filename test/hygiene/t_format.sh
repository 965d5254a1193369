# SPDX-License-Identifier: MIT
# The tree is laid out as .clang-format says.
. "$abs_top_srcdir/test/hygiene/tap.sh"

log=$("$abs_top_srcdir/scripts/format" --check 2>&1)
status=$?
[ "$status" != 77 ] || tap_skip_all "$log"
where=$(sed -n 's/^\([^:]*\):[0-9:]* error:.*/\1/p' <<<"$log" | sort | uniq -c)
tap_point "$status" "clang-format changes nothing (scripts/format)" "$where"
tap_done
