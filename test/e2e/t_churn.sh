# SPDX-License-Identifier: MIT
# Communicators made and ended many times, in every way, and 64 at once, leave nothing behind. The program measures, and
# fails when something has grown. OH_CHURN_ROUNDS sets the number of rounds (scripts/check --full: 10000).
. "$abs_top_srcdir/test/e2e/lib.sh"

rounds=${OH_CHURN_ROUNDS:-45}
stress=$abs_top_builddir/test/gpu/stress_comms
export ONEHOP_DEBUG=WARN ONEHOP_STATS=0

# churn ARGUMENT...
churn() {
    limit=$((limit + rounds)) run_with "$plugin" "$stress" "$@"
    sed 's/^/# /' "$out"
}

if [ -n "${OH_SANITIZERS-}" ]; then
    tap_skip "nothing grows" "a sanitizer keeps freed memory for a while"
else
    expect "$rounds rounds, 2 ranks: nothing grows, every communicator is served" 0 \
        -- churn --ranks 2 --rounds "$rounds" --served
    expect "3 ranks, with shrinking: nothing grows, every communicator is served" 0 \
        -- churn --ranks 3 --rounds $((rounds < 45 ? rounds : 45)) --served
    churn --ranks 2 --rounds 10000 --warm 5 --seconds 2 --handles 100 --served # pools grow at first
    made=$(sed -n 's/^rounds made: //p' "$out")
    [ "$status" = 0 ] && [ "$made" -gt 5 ] && [ "$made" -lt 10000 ]
    tap_point $? "as many rounds as there is time for" "$(tail -n 5 "$out")"
    expect "no time to measure growth in: that is no success" 1 'only [0-9]* rounds, of which 9999 warm up$' \
        -- churn --ranks 2 --rounds 10000 --warm 9999 --seconds 1
    expect "64 communicators at once: every one is served, nothing is left" 0 -- churn --ranks 2 --rounds 25 --live 64 --served
fi
expect_no_files
tap_done
