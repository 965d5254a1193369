# SPDX-License-Identifier: MIT
# t_tools.sh [STEP...] - the command onehop, on GPUs. Steps: topo tools.
. "$(dirname "$0")/lib.sh"

# The page with measurements, and the same page from its recording, which stays in --out: as a fixture it goes to
# test/fixtures (README.md there).
step_topo() {
    step topo 330 "$prefix/bin/onehop" topo --measure --save "$out/node.json"
    step topo-load 30 "$prefix/bin/onehop" topo --load "$out/node.json"
    cmp -s "$out/topo.log" "$out/topo-load.log" ||
        bad "topo: the page of the recording is another one"
    note_of topo '%s' "$(grep '^verdict' "$out/topo.log")"
}

# The command ended in the middle, with one GPU and with none, and beside a run.
step_tools() {
    step tools 200 env LD_LIBRARY_PATH="$libraries" bash "$top/test/gpu/tools.sh" "$prefix" "$out"
    note_of tools '%s right, %s wrong, %s skipped' "$(grep -c '^ok' "$out/tools.log")" \
        "$(grep -c '^not ok' "$out/tools.log")" "$(grep -c '# SKIP' "$out/tools.log")"
    if ! grep -q '^1\.\.' "$out/tools.log" || grep -q '^not ok' "$out/tools.log"; then
        bad "tools: $(grep -m 1 '^not ok' "$out/tools.log" || echo "it did not come to its end")"
    fi
    grep -h '^not ok' -A 6 "$out/tools.log" | head -n 60 >&2
}

run_steps "topo tools" "$@"
