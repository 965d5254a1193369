# SPDX-License-Identifier: MIT
# Stock NCCL or onehop for each size, on the simulated node: what is chosen follows from the times; a rank that stalls ends
# the command; of unequal ranks the slowest counts; and scripts/apps shows the table.
. "$abs_top_srcdir/test/e2e/lib.sh"

choice=$abs_top_builddir/test/apps/choice
odd=$abs_top_builddir/test/apps/.libs/liboddrank.so
err=$scratch/err
export SIMNODE_TOPOLOGY=h200x2 ONEHOP_DEBUG=WARN ONEHOP_STATS=0 ONEHOP_SHM_DIR=$meeting

# choose ARGUMENT...: sets $status, fills $out (the table) and $err.
choose() {
    status=0
    timeout -k 5 $((limit + 60)) "$choice" -i 2 -r 3 "$@" >"$out" 2>"$err" || status=$?
}

# row BYTES: the choice and the reason.
row() {
    awk -F ' *[|] *' -v bytes="$1" '$2 == bytes { print $(NF - 2) ": " $(NF - 1) }' "$out"
}

what_it_said() {
    printf 'exit status %s\n' "$status"
    cat "$out" "$err"
}

choose -b 1K -e 8K "$plugin"
[ "$status" = 0 ] && [ ! -s "$err" ] && grep -q '^SIMULATED' "$out" &&
    [ "$(grep -cE '^\| (1024|2048|4096|8192) ' "$out")" = 4 ]
tap_point $? "each size has its line" "$(what_it_said)"
# Bytes, stock, onehop, times, choice: onehop is chosen unless NCCL is more than 2 % faster; times have two decimals.
wrong=$(awk -F ' *[|] *' '$2 ~ /^[0-9]+$/ {
    if ($3 <= 0 || $4 <= 0 || ($6 == "onehop" && $4 - 0.01 > 1.02 * ($3 + 0.01)) ||
        ($6 == "stock" && $4 + 0.01 < 1.02 * ($3 - 0.01)) || ($6 != "stock" && $6 != "onehop")) print }' "$out")
tap_empty "$wrong" "and goes to onehop unless stock NCCL is more than 2 % faster"
choose -b 2K -e 2K -m graph,eager "$plugin"
[ "$status" = 0 ] && grep -qE '^\| 2048 \|( [0-9.]+ \|){6} (stock|onehop) ' "$out"
tap_point $? "graphs and eager calls in one table" "$(what_it_said)"
choose -b 64M -e 64M "$plugin"
[ "$status" = 0 ] && [ "$(row 67108864)" = "stock: onehop falls back at this size" ]
tap_point $? "a size that onehop does not serve needs no trial" "$(what_it_said)"

# 2 KiB of bfloat16. Its trial never ends by itself.
ODD_COUNT=1024 ODD_STALLS=1 choose -b 1K -e 4K -T 10 "$odd"
[ "$status" = 1 ] && [ ! -s "$out" ] && grep -q '^onehop: choice: no progress for 10 s' "$err"
tap_point $? "a rank that stalls: exit status 1 and the reason" "$(what_it_said)"

# The last rank alone is 100 ms late in each measured call: a mean, or rank 0's time, would be half of that or less.
ODD_COUNT=1024 ODD_SLOW_US=100000 choose -b 1K -e 4K -m eager -i 1 "$odd"
us=$(awk -F ' *[|] *' '$2 == 2048 { print int($4) }' "$out")
[ "$status" = 0 ] && [ "${us:-0}" -ge 80000 ] && [[ $(row 2048) = "stock: faster than: "* ]]
tap_point $? "a slow rank: its time counts" "$(what_it_said)"

NCCL_P2P_DISABLE=1 choose -b 1K -e 1K "$plugin"
[ "$status" = 1 ] && [ ! -s "$out" ] && grep -q 'hands this communicator back' "$err"
tap_point $? "GPUs that onehop does not serve: exit status 1 and the reason" "$(what_it_said)"
choose -n 4 "$plugin"
[ "$status" = 1 ] && grep -q 'CUDA sees 2' "$err"
tap_point $? "more ranks than GPUs: exit status 1" "$(what_it_said)"
wrong=
for arguments in "" "-n 1 x" "-b 1K -e 1 x" "-b 1 -e 1M x" "-m never x" "-T 0 x" "x more"; do
    # shellcheck disable=SC2086
    choose $arguments
    [ "$status" = 2 ] && [ -s "$err" ] || wrong+="$arguments: $status; "
done
tap_empty "$wrong" "wrong usage: exit status 2"
expect_no_files

# As on a machine with GPUs: an installed onehop, and the build tree. (python3 comes before a sanitizer's runtime.)
mkdir -p "$scratch/prefix/lib" "$scratch/apps"
ln -s "$plugin" "$scratch/prefix/lib/libonehop.so"
others=(choice programs-in-c bindings)
[ -z "${OH_SANITIZERS-}" ] && command -v python3 >/dev/null || others=(choice programs-in-c)
status=0
CHOICE_OPTIONS="-e 4K -i 2 -r 3" NCCL_LIB=$stand_ins timeout -k 5 280 bash "$abs_top_srcdir/scripts/apps" --commit none \
    --prefix "$scratch/prefix" --build "$abs_top_builddir" --gpus 2 --out "$scratch/apps" "${others[@]}" >"$out" \
    2>"$err" || status=$?
[ "$status" = 0 ] && [ "$(grep -cE '^\| [0-9]+ .* \| (stock|onehop) \| ' "$scratch/apps/apps.md")" = 3 ] &&
    [ "$(grep -cE '^\| (cupy_allreduce|nccl4py_allreduce|psum) ' "$scratch/apps/apps.md")" = $((3 * ${#others[@]} - 6)) ]
tap_point $? "scripts/apps has the tables in its report" "$(what_it_said; cat "$scratch/apps"/*.{md,log})"
# 200 calls of the two GPUs of allreduce_all; without onehop the same sums.
sums='2 GPUs, 100 sums of 10000 elements: 0 wrong'
grep -q "^| allreduce_all | $sums | $sums | 200 | 0 | $sums |\$" "$scratch/apps/apps.md" &&
    grep -qE '^\| sparse_collectives \| (overlap [^|]*) \| \1 \| [1-9][0-9]* \| 0 \| \1 \|$' "$scratch/apps/apps.md"
tap_point $? "and the programs in C, which are right and served" "$(what_it_said; cat "$scratch/apps"/*.{md,log})"
tap_done
