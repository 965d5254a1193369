# SPDX-License-Identifier: MIT
# The help of each command fits a screen and shows an example.
. "$abs_top_srcdir/test/hygiene/tap.sh"

onehop=$abs_top_builddir/src/tools/onehop
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
commands=$("$onehop" --help | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p')
[ "$(wc -w <<<"$commands")" -ge 5 ]
tap_point $? "the command names its subcommands" "$commands"

# point COMMAND STATUS NAME DIAGNOSTIC
point() {
    tap_point "$2" "onehop ${1:+$1 }--help $3" "$4"
}

for command in '' $commands; do
    "$onehop" $command --help >"$scratch/help" 2>"$scratch/error"
    status=$?
    lines=$(wc -l <"$scratch/help") columns=$(LC_ALL=C.UTF-8 wc -L <"$scratch/help")
    [ "$status" = 0 ] && [ ! -s "$scratch/error" ] && [ "$lines" -le 24 ] && [ "$columns" -le 80 ]
    point "$command" $? "fits a screen of 24 lines and 80 columns" \
        "exit status $status, $lines lines, $columns columns: $(awk 'length > 80' "$scratch/help")"
    [ -z "$command" ] || grep -qE '[Ee]xample' "$scratch/help"
    point "$command" $? "shows an example" "$(cat "$scratch/help")"
    [ -z "$command" ] || sed -n 1p "$scratch/help" | grep -q "^usage: onehop $command"
    point "$command" $? "begins with its usage" "$(cat "$scratch/help")"
done
tap_done
