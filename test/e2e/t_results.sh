# SPDX-License-Identifier: MIT
# scripts/results on the simulated node: the page that it writes, and what it leaves when it fails or is ended.
. "${abs_top_srcdir:?}/test/e2e/lib.sh" || exit 1
[ -d "${scratch:?}" ] || exit 1

results=$abs_top_srcdir/scripts/results
work=$scratch/work err=$scratch/err
mkdir "$work" "$scratch/tmp"
export TMPDIR=$scratch/tmp SIMNODE_TOPOLOGY=h200x2 ONEHOP_LIBRARY=$plugin
unset ONEHOP_STATS ONEHOP_DEBUG LD_PRELOAD CUDA_VISIBLE_DEVICES

# results ARGUMENT...: sets $status, fills $out and $err.
results() {
    run_limited bash "$results" --onehop "$onehop" "$@"
}

few="-b 64 -e 4K -f 64 -n 2 -w 1 --rounds 2 --graph"
expect "a page" 0 "^$work/[0-9-]*-test\.md$" -- results --out "$work" --name test -- $few
page=$(cat "$out")
[ -s "${page%.md}.csv" ] && grep -q '^# 2 x SIMULATED' "$page" && grep -q '^SIMULATED: ' "$page" &&
    grep -q 'Commit [0-9a-z]' "$page" && grep -q "^    onehop perf $few" "$page" && grep -qE '^ +4096 +1024 +float' "$page" &&
    { ! command -v gnuplot >/dev/null || { [ -s "${page%.md}.svg" ] && grep -q '!\[.*-test\.svg)' "$page"; }; }
tap_point $? "it has machine, commit, command, table and picture" "$(cat "$page"; ls -A "$work")"
before=$(cat "$page")
expect "the same name again" 1 'is there already \(--force' -- results --out "$work" --name test -- $few
[ "$(cat "$page")" = "$before" ] && [ -z "$(ls -A "$TMPDIR")" ]
tap_point $? "the page stays" "$(cat "$page"; ls -A "$TMPDIR")"

# scripts/plot, by gnuplot, or by a stand-in that draws a whole picture, none, half of one
mkdir "$scratch/bin"
csv=$scratch/page.csv
mv "${page%.md}.csv" "$csv"
rm -f "$work"/*-test.*
stand_in() {
    printf '#!/bin/sh\nto=$(sed -n "s/^set output .\\(.*\\).$/\\1/p" "$1")\n%s\n' "$1" >"$scratch/bin/gnuplot"
    chmod +x "$scratch/bin/gnuplot"
}
# draw ARGUMENT...: sets $status, fills $out and $err; leaves no file but a picture.
draw() {
    run_limited env PATH="${path-$scratch/bin:$PATH}" "$BASH" "$abs_top_srcdir/scripts/plot" "$@"
}
stand_in 'cp "$1" "$to"; echo "</svg>" >>"$to"'
draw "$csv" "$scratch/drawn.svg"
[ "$status" = 0 ] && grep -q 'SIMULATED (times mean nothing): 2 x' "$scratch/drawn.svg" &&
    [ "$(grep -c '^plot ' "$scratch/drawn.svg")" = 2 ] && [ "$(ls "$scratch" | grep -c 'drawn')" = 1 ]
tap_point $? "plot asks gnuplot for a picture that says SIMULATED" "$(cat "$err"; ls "$scratch")"
mkdir "$scratch/odd"
for odd in a=1 'b\tc' 'd e'; do
    cp "$csv" "$scratch/odd/$odd.csv"
    run_limited env -C "$scratch/odd" PATH="$scratch/bin:$PATH" "$BASH" "$abs_top_srcdir/scripts/plot" "$odd.csv"
    [ "$status" = 0 ] && [ -s "$scratch/odd/$odd.svg" ] && [ "$(find "$scratch/odd" -type f | wc -l)" = 2 ]
    tap_point $? "plot: a file with the name $odd.csv" "$(cat "$err"; find "$scratch/odd")"
    rm -rf "$scratch/odd"/*
done
stand_in 'exit 3'
refuses "gnuplot that fails" 1 'gnuplot did not write the whole picture' -- draw "$csv" "$work/none.svg"
stand_in 'echo "<svg>" >"$to"'
refuses "half a picture" 1 'gnuplot did not write the whole picture' -- draw "$csv" "$work/none.svg"
refuses "no CSV file" 1 'README.md: no measurement in it' -- draw "$abs_top_srcdir/README.md" "$work/none.svg"
refuses "a picture of another kind" 2 'none.png: expected a name that ends in .svg' -- draw "$csv" "$work/none.png"
mkdir "$scratch/path"
ln -s "$(command -v dirname)" "$(command -v readlink)" "$scratch/path"
path=$scratch/path refuses "no gnuplot" 1 'plot: gnuplot is missing' -- draw "$csv" "$work/none.svg"
rm -f "$scratch/bin/gnuplot"
if command -v gnuplot >/dev/null; then
    expect "gnuplot itself takes the script without a word" 0 silent -- draw "$csv" "$scratch/real.svg"
    expect_file "... and draws a picture" "$scratch/real.svg" '</svg>' SIMULATED
else
    tap_skip "gnuplot itself takes the script" "no gnuplot"
fi
refuses "no folder" 1 'results: /nowhere: no folder that can be written' -- results --out /nowhere -- $few
refuses "wrong usage: a name" 2 '^results: --name ' -- results --out "$work" --name '../x' -- $few
refuses "wrong usage: a word" 2 "^results: 'word' is not an option" -- results --out "$work" word
expect "onehop perf fails" 1 'cannot load /nowhere' 'results: onehop perf failed' \
    -- results --out "$work" -- --nccl /nowhere
[ -z "$(ls -A "$work")$(ls -A "$TMPDIR")" ]
tap_point $? "and leaves nothing" "$(ls -A "$work" "$TMPDIR")"

has_row() {
    grep -qsE '^ +64 +64 +int8' "$TMPDIR"/tmp.*/table
}
signalled INT has_row bash "$results" --onehop "$onehop" --out "$work" -- -b 64 -e 64 -d all -o all --rounds 1000
expect_ended SIGINT 130 "$work" "$TMPDIR"
tap_done
