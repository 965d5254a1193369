# SPDX-License-Identifier: MIT
# tap.sh - TAP from bash. Sourced; the tests run in the top of the build tree with abs_top_srcdir set (Makefile.am).

tap_points=0

# tap_point STATUS NAME [DIAGNOSTIC]: one test point, passed when STATUS is 0; the diagnostic shows when it is not.
tap_point() {
    tap_points=$((tap_points + 1))
    if [ "$1" = 0 ]; then
        printf 'ok %d - %s\n' "$tap_points" "$2"
    else
        printf 'not ok %d - %s\n' "$tap_points" "$2"
        [ -z "${3-}" ] || printf '%s\n' "$3" | sed 's/^/# /'
    fi
}

# tap_empty TEXT NAME: passed when TEXT, a list of what is wrong, is empty.
tap_empty() {
    [ -z "$1" ]
    tap_point $? "$2" "$1"
}

# tap_skip NAME REASON: one test point that cannot run here.
tap_skip() {
    tap_points=$((tap_points + 1))
    printf 'ok %d - %s # SKIP %s\n' "$tap_points" "$1" "$2"
}

# tap_done: the plan, at the end.
tap_done() {
    printf '1..%d\n' "$tap_points"
}

# tap_skip_all REASON: leaves; nothing of this file can run here.
tap_skip_all() {
    printf '1..0 # SKIP %s\n' "$1"
    exit 0
}

# tap_scratch: makes a folder, $scratch, that goes when the test ends.
tap_scratch() {
    scratch=$(mktemp -d) || exit 1
    trap 'rm -rf "$scratch"' EXIT
}
