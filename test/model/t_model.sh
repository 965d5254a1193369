# SPDX-License-Identifier: MIT
# The models of the protocols, checked exhaustively, and their mutations, each of which must be found (README.md).
# OH_MODEL_FULL=1: with larger bounds, too.
. "$abs_top_srcdir/test/hygiene/tap.sh"
here=$abs_top_srcdir/test/model
for tool in spin cpp cc; do
    command -v $tool >/dev/null || tap_skip_all "no $tool (Debian: apt-get install spin gcc)"
done
sets='quick|long' limit=400 jobs=1 # other tests run beside this one
if [ "${OH_MODEL_FULL-0}" != 0 ]; then
    sets='quick|long|full' limit=900 jobs=$(nproc 2>/dev/null || echo 2)
    export OH_MODEL_CC=${OH_MODEL_CC:-cc -O2 -DCOLLAPSE} # half of the memory
fi

tap_scratch
grep -E "^($sets) " "$here/checks.list" >"$scratch/checks"
# Each check in a folder of its own. Most are searched faster than they are optimized.
nl "$scratch/checks" | xargs -P "$jobs" -L 1 bash -c '
    [ "$4" != long ] || export OH_MODEL_CC=${OH_MODEL_CC:-cc -O1} OH_MODEL_TABLE=23
    "$0" "$1/$3" "$2" "${@:6}" >"$1/$3.result" 2>&1; rm -rf "$1/${3:?}"' "$here/one.sh" "$scratch" "$limit"

number=0
while read -r _ expected check; do
    number=$((number + 1))
    result=$(cat "$scratch/$number.result" 2>/dev/null)
    [ "${result%%[ :]*}" = "$expected" ]
    tap_point $? "$check: ${result:-no result}" "expected: $expected"
done <"$scratch/checks"
[ "$number" -gt 30 ]
tap_point $? "all checks of the list were made"
tap_done
