# SPDX-License-Identifier: MIT
# The programs of test/apps: that report.py tells runs that agree from runs that do not, and, where PyTorch is there,
# that each program is right by itself, on gloo.
. "$abs_top_srcdir/test/hygiene/tap.sh"

apps=$abs_top_srcdir/test/apps
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || { echo '1..0 # SKIP no python3'; exit 0; }

# run NAME RANKS WAY LOSSES TOKENS MS: a made-up result of a program "demo".
run() {
    printf '{"program": "demo", "ranks": %d, "device": "none", "torch": "0", "nccl": "0", "seed": 1,
        "rows": [{"name": "demo row", "step_ms": %s, "last_loss": 1.0}],
        "values": {"loss demo": [%s], "tokens demo": [%s], "gaps demo": [5.0, 0.1], "sparse demo": [1.5]}}\n' \
        "$2" "$6" "$4" "$5" >"$scratch/$1/demo.$3.json"
}

# report NAME STATUS PATTERN TEXT: what report.py makes of the folder NAME.
report() {
    python3 "$apps/report.py" "$scratch/$1" --markdown "$scratch/$1.md" >"$scratch/out" 2>&1
    status=$?
    [ $status = "$2" ] && grep -qE -- "$3" "$scratch/out"
    tap_point $? "$4" "status $status: $(cat "$scratch/out")"
}

for name in equal loss-2 loss-4 tokens-near tokens-far slow empty; do
    mkdir "$scratch/$name"
done
run equal 2 stock.1 1.0,2.0 7,8 6.0
run equal 2 stock.2 1.0,2.0 7,8 4.0
run equal 2 onehop.1 1.0,2.0 7,8 2.0
echo 'onehop: stats: comm 0x1 nranks 2 served=12 (oneshot 12) handed_back=3 (size 3)' >"$scratch/equal/demo.onehop.1.log"
report equal 0 '^demo row +step_ms +4 +2 +2\.00x' "runs that agree; the best of two is compared"
grep -q 'demo: onehop: served 12, handed back 3 calls' "$scratch/out"
tap_point $? "calls are counted" "$(cat "$scratch/out")"
grep -q '^| demo row | step_ms | 4 | 2 | 2.00x |' "$scratch/equal.md"
tap_point $? "the same as a page" "$(cat "$scratch/equal.md")"
for ranks in 2 4; do
    run loss-$ranks $ranks stock.1 1.0,2.0 7,8 1.0
    run loss-$ranks $ranks onehop.1 1.0,2.0001 7,8 1.0
done
report loss-2 1 'loss demo: 1 of 2 values differ' "two ranks: a loss that differs at all"
report loss-4 0 '3 of 3 results agree, 2 bit for bit' "four ranks: a loss that differs a little"
for name in near far; do
    run tokens-$name 4 stock.1 1.0,2.0 7,8 1.0
done
run tokens-near 4 onehop.1 1.0,2.0 7,9 1.0
run tokens-far 4 onehop.1 1.0,2.0 6,8 1.0
report tokens-near 0 '3 of 3 results agree' "a token that differs where two words are near"
report tokens-far 1 'tokens demo: token 0: 7 and 6' "a token that differs where they are not"
run slow 4 stock.1 1.0,2.0 7,8 1.0
run slow 4 onehop.1 1.0,2.5 7,8 1.0
report slow 1 'loss demo: step 1: 2.0 and 2.5' "four ranks: a loss that differs much"
report empty 2 'has no program' "nothing to compare"

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
