#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# one.sh - checks one model exhaustively: one.sh FOLDER LIMIT MODEL [-DNAME[=VALUE]]...
# FOLDER is for what is made on the way. OH_MODEL_TABLE: the binary logarithm of the size of the table of states. Prints one
# line: "holds STATES", "fails: WHAT" (a counterexample was found), or "broken: WHY" when the model cannot be built, or was not
# searched to the end within LIMIT seconds.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$1 limit=$2 model=$3
shift 3
mkdir -p "$folder" && cd "$folder" || exit 2
# The preprocessor call of spin would not find what a model includes. -P: no line marks.
if ! cpp -P -undef -I "$here" "$@" "$here/$model.pml" >model.pml 2>cpp.log; then
    echo "broken: $(head -n 3 cpp.log | tr '\n' ' ')"
    exit
fi
if ! spin -a model.pml >spin.log 2>&1; then
    echo "broken: $(tail -n 3 spin.log | tr '\n' ' ')"
    exit
fi
${OH_MODEL_CC:-cc -O0} -w -DSAFETY -DNOCLAIM -DMEMLIM=2500 -o pan pan.c 2>cc.log || { echo "broken: $(head -n 3 cc.log)"; exit; }
# Few searches are deep, and the kernel takes longer for the memory of a deep stack than most take.
for depth in 100000 4000000; do
    timeout "$limit" ./pan -m$depth -w"${OH_MODEL_TABLE:-20}" >pan.log 2>&1
    status=$?
    grep -q 'max search depth too small' pan.log || break
done
if grep -q '^pan:1:' pan.log; then
    echo "fails: $(sed -n 's/^pan:1: \([^()]*\).*(at depth \([0-9]*\)).*/\1 at depth \2/p' pan.log | head -n 1)"
elif [ $status = 0 ] && grep -q 'errors: 0' pan.log && ! grep -q -e 'Search not completed' -e 'max search depth too small' -e '^Warning: Search' pan.log; then
    echo "holds $(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log) states"
else
    echo "broken: status $status, $(grep -i -m 2 -e error -e 'not completed' -e warning -e 'memory' pan.log | tr '\n' ' ')"
fi
