# SPDX-License-Identifier: MIT
# The programs of test/apps: that report.py tells runs that agree from runs that do not, and, where PyTorch is there,
# that each program is right by itself, on gloo.
. "$abs_top_srcdir/test/hygiene/tap.sh"

apps=$abs_top_srcdir/test/apps
tap_scratch
export PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || { echo '1..0 # SKIP no python3'; exit 0; }

# run NAME RANKS WAY LOSSES TOKENS MS [LOGITS]: a made-up result of a program "demo", and what onehop counted: 19 calls of
# the 19 that it asked for.
run() {
    mkdir -p "$scratch/$1"
    printf '{"program": "demo", "ranks": %d, "device": "none", "torch": "0", "nccl": "0", "seed": 1, "logit_bound": 0.05,
        "collectives": {"allreduce": 15, "allgather": 4},
        "rows": [{"name": "demo row", "step_ms": %s, "last_loss": 1.0}],
        "values": {"loss demo": [%s], "tokens demo": [%s], "gaps demo": [5.0, 0.1], "logits demo": [%s],
        "sparse demo": {"sha256": "0", "count": 1, "some": [1.5]}}}\n' \
        "$2" "$6" "$4" "$5" "${7-9.5,9.25}" >"$scratch/$1/demo.$3.json"
    counted=
    case $3 in
        onehop* | segments* | pool*) counted='onehop: stats: rank 0 nranks 2 served=12 (oneshot=12) fallback=7 (size=7) collectives (allreduce=9 allgather=3 reducescatter=0 broadcast=0) bytes=9' ;;
    esac
    echo "$counted" >"$scratch/$1/demo.$3.log"
}

# report NAME STATUS PATTERN TEXT: what report.py makes of the folder NAME.
report() {
    python3 "$apps/report.py" "$scratch/$1" >"$scratch/out" 2>&1
    status=$?
    [ $status = "$2" ] && grep -qE -- "$3" "$scratch/out"
    tap_point $? "$4" "status $status: $(cat "$scratch/out")"
}

# compare NAME RANKS LOSSES TOKENS LOGITS STATUS PATTERN TEXT: the report of a run with onehop that came to these values.
compare() {
    run "$1" "$2" stock.1 1.0,2.0 7,8 1.0
    run "$1" "$2" onehop.1 "$3" "$4" 1.0 "$5"
    report "$1" "${@:6}"
}

run equal 2 stock.1 1.0,2.0 7,8 6.0
run equal 2 stock.2 1.0,2.0 7,8 4.0
run equal 2 onehop.1 1.0,2.0 7,8 2.0
printf 'date: 2026-01-02\nmachine: 2 x GPU\ndriver: 5\nNVLS: off\ncommit: abc\ncommand: scripts/apps demo\n' \
    >"$scratch/equal/about.txt"
printf '| program | stock |\n|---|---|\n| in C | right |\n' >"$scratch/equal/programs-in-c.md"
report equal 0 '^\| demo row \| step_ms \| 4 \| 2 \| 2\.00x \|' "runs that agree; the best of two is compared"
grep -q '^| demo | onehop | allreduce 9, allgather 3 | 7 | allreduce 15, allgather 4 |$' "$scratch/out"
tap_point $? "calls are counted" "$(cat "$scratch/out")"
grep -q '^2026-01-02. 2 x GPU, driver 5. NVLS off. Commit abc. ' "$scratch/out" &&
    grep -q '^    scripts/apps demo$' "$scratch/out" && grep -q '^| in C | right |' "$scratch/out"
tap_point $? "the page has machine, commit, command, and the tables of other programs" "$(cat "$scratch/out")"
compare loss-2 2 1.0,2.0001 7,8 9.5,9.25 1 'loss demo: 1 of 2 values differ' "two ranks: a loss that differs at all"
compare loss-4 4 1.0,2.0001 7,8 9.5,9.25 0 '4 results, 3 of them the same bit for bit, 0 faults' \
    "four ranks: a loss that differs a little"
compare tokens-near 4 1.0,2.0 7,9 9.5,9.25 0 ' 0 faults' "a token that differs where two words are near"
compare tokens-far 4 1.0,2.0 6,8 9.5,9.25 1 'tokens demo: token 0: 7 and 6' "a token that differs where they are not"
compare logits-2 2 1.0,2.0 7,8 9.5,9.2501 0 '4 results, 3 of them the same bit for bit, 0 faults' \
    "two ranks: a logit that differs a little"
compare logits-near 4 1.0,2.0 7,8 9.5,9.30 0 ' 0 faults' "four ranks: a logit that differs as rounding lets it"
compare logits-far 4 1.0,2.0 7,8 9.5,9.6 1 'logits demo: logit 1: 9.25 and 9.6' "a logit that differs more"
compare logits-rms 4 1.0,2.0 7,8 9.7,9.4 1 'logits demo: 0.177 apart on the average' "logits that differ more on the average"
compare slow 4 1.0,2.5 7,8 9.5,9.25 1 'loss demo: step 1: 2.0 and 2.5' "four ranks: a loss that differs much"
for name in some missing off on lost unserved kind sparse pool; do
    run $name 2 stock.1 1.0,2.0 7,8 4.0
    [ $name = missing ] || run $name 2 onehop.1 1.0,2.0 7,8 2.0
done
run some 2 segments.1 1.0,2.0 7,8 3.0
sed -i 's/"loss demo": [^]]*\], //' "$scratch/some/demo.segments.1.json"
report some 0 '^\| demo row, segments \| step_ms \|  \| 3 \|  \|  \|$' "a way that runs some of the values is compared in these"
run pool 2 pool.1 1.0,2.0 7,8 1.0
report pool 0 '^\| demo row \| step_ms \| 4 \| 2 \| 2\.00x \|' "a pool's own run is not the best of the others"
grep -q '^| demo row, by itself | step_ms |  | 1 |  |  |$' "$scratch/out"
tap_point $? "but has a row" "$(cat "$scratch/out")"
run unrun-onehop 2 stock.1 1.0,2.0 7,8 4.0
mkdir "$scratch/unrun-all" "$scratch/empty"
printf 'demo.onehop.1\nallreduce_all, onehop\n' | tee "$scratch/unrun-onehop/not-run.txt" >"$scratch/unrun-all/not-run.txt"
report unrun-onehop 0 '^- demo.onehop.1: not run: no time left$' "what there was no time for is told, and no fault"
grep -q '^- allreduce_all, onehop: not run: no time left$' "$scratch/out"
tap_point $? "all of it" "$(cat "$scratch/out")"
report unrun-all 0 '^- demo.onehop.1: not run: no time left$' "no time for anything"
run missing 2 onehop.1 1.0,2.0 7,8 2.0
sed -i 's/"loss demo": [^]]*\], //' "$scratch/missing/demo.onehop.1.json"
report missing 1 'missing with onehop: loss demo' "but each value runs with onehop in some way"
run off 2 off.1 1.0,2.0 7,8 4.0
report off 0 '^\| demo row \| step_ms \| 4 \| 2 \| 2\.00x \| 4 \|$' "onehop switched off: no statistics"
run on 2 off.1 1.0,2.0 7,8 4.0
cp "$scratch/on/demo.onehop.1.log" "$scratch/on/demo.off.1.log"
report on 1 'off: calls are counted, although' "switched off, but served"
sed -i 's/allreduce=9/allreduce=8/' "$scratch/lost/demo.onehop.1.log"
report lost 1 'onehop: allreduce 15, allgather 4 were asked for, more than the 11 served and 7 fallbacks' "a call that is not counted"
: >"$scratch/unserved/demo.onehop.1.log"
report unserved 1 'onehop: no call was served' "a run with onehop that is not served"
sed -i 's/allgather=3/allgather=0/; s/fallback=7/fallback=10/' "$scratch/kind/demo.onehop.1.log"
report kind 1 'onehop: no allgather was served' "a kind of call that the program made and that is not served"
sed -i 's/"sha256": "0"/"sha256": "1"/' "$scratch/sparse/demo.onehop.1.json"
report sparse 1 'sparse demo: not the same bits' "other bits of a sparse scheme"
report empty 2 'has no program' "nothing to compare"

# scripts/apps with programs that stand in for torchrun and for those in C: who fails, who has no time, what was left by others.
prefix=$scratch/prefix bin=$scratch/bin
mkdir -p "$prefix/lib" "$bin" "$scratch/built/test/apps" "$scratch/nccl"
touch "$prefix/lib/libonehop.so" "$scratch/nccl/libnccl.so.2" "$scratch/nccl/libcuda.so.1"
cat >"$bin/python" <<'END'
#!/bin/bash
[ "$1" = -m ] || exec python3 "$@"
[ -z "${FAIL-}" ] || { echo "it has failed"; exit 9; }
sleep "${TAKES-0}"
while [ "$1" != --out ]; do shift; done
cp "$DEMO" "$2"
case $2 in
*.onehop.* | *.segments.* | *.pool.*) echo 'onehop: stats: rank 0 nranks 2 served=12 (oneshot=12) fallback=7 (size=7) collectives (allreduce=9 allgather=3 reducescatter=0 broadcast=0) bytes=9' ;;
esac
END
printf '#!/bin/bash\nsleep "${TAKES_C-0}"\necho right\ncase $ONEHOP_STATS$ONEHOP_DISABLE in\n1) echo "onehop: stats: rank 0 nranks 2 %s" >&2 ;;\nesac\n' \
    'served=1 (oneshot=1) fallback=0 (size=0) collectives (allreduce=1) bytes=9' >"$scratch/built/test/apps/allreduce_all"
chmod +x "$bin/python" "$scratch"/built/test/apps/*
export DEMO=$scratch/equal/demo.stock.1.json PYTHON=$bin/python NCCL_LIB=$scratch/nccl
unset LD_PRELOAD LD_AUDIT NCCL_NET_PLUGIN CUDA_VISIBLE_DEVICES

# run_apps STATUS PATTERN TEXT SETTING... -- ARGUMENT...: what scripts/apps says. (The prefix's library cannot be preloaded.)
run_apps() {
    local wanted=$1 pattern=$2 text=$3 settings=()
    shift 3
    while [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    status=0
    env LD_LIBRARY_PATH="$scratch/nccl:${LD_LIBRARY_PATH-}" "${settings[@]}" timeout 100 bash "$abs_top_srcdir/scripts/apps" \
        --prefix "$prefix" --build "$scratch/built" --gpus 2 --out "$scratch/apps" "${@:2}" >"$scratch/out" 2>&1 || status=$?
    [ $status = "$wanted" ] && grep -qE -- "$pattern" "$scratch/out"
    tap_point $? "scripts/apps: $text" "status $status: $(cat "$scratch/out")"
}
mkdir "$scratch/apps"
touch "$scratch/apps/decode.onehop.7.json" "$scratch/apps/mine"
run_apps 0 '^- train: onehop run 1 against stock run 1: 4 results, .* 0 faults$' "all well" -- train
[ ! -e "$scratch/apps/decode.onehop.7.json" ] && [ -e "$scratch/apps/mine" ] && [ -e "$scratch/apps/train.off.1.json" ]
tap_point $? "what an earlier run has left is not reported" "$(ls "$scratch/apps")"
run_apps 1 'train.stock.1 failed after [0-9]+ s \(status 9\)' "a program that fails" FAIL=1 -- train
run_apps 3 '^apps: train.onehop.1: not run: no time left' "no time left is no failure" TAKES=4 -- --seconds 8 train
! grep -qE 'failed|missing' "$scratch/out" && grep -q '^apps: not run for want of time: 2$' "$scratch/out"
tap_point $? "and nothing is called failed or missing" "$(cat "$scratch/out")"
run_apps 3 '^apps: allreduce_all, stock: not run' "no time left for programs in C" TAKES_C=30 -- --seconds 6 programs-in-c
grep -q '^| allreduce_all | not run: no time left | not run: no time left | 0 | 0 | not run: no time left |' "$scratch/apps/programs-in-c.md" &&
    ! grep -qE 'exit status [0-9]|not that with|no call was served' "$scratch/out"
tap_point $? "in their table, too" "$(cat "$scratch/out" "$scratch/apps/programs-in-c.md")"
run_apps 0 '^\| allreduce_all \| right \| right \| 1 \| 0 \| right \|' "programs in C" -- programs-in-c
run_apps 2 'apps: two GPUs at least are needed; 2 of 1 visible' "two GPUs asked for, and one visible" \
    CUDA_VISIBLE_DEVICES=3 -- train
run_apps 2 'apps: LD_PRELOAD is .*libonehop.so: nothing here would run' "onehop in the environment" \
    LD_PRELOAD="$prefix/lib/libonehop.so" -- train
unset DEMO PYTHON NCCL_LIB

if python3 -c 'import torch' 2>/dev/null; then
    CUDA_VISIBLE_DEVICES= timeout 250 bash "$abs_top_srcdir/scripts/apps" --cpu --out "$scratch/cpu" >"$scratch/out" 2>&1
    tap_point $? "the programs on gloo" "$(cat "$scratch/out")"
else
    tap_skip "the programs on gloo" "python3 has no torch"
fi
bash "$abs_top_srcdir/scripts/apps" nonsense >"$scratch/out" 2>&1
[ $? = 2 ] && grep -q 'unknown argument nonsense' "$scratch/out"
tap_point $? "an unknown program" "$(cat "$scratch/out")"
tap_done
