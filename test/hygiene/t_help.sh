# SPDX-License-Identifier: MIT
# The help of each command fits a screen and shows an example; what cannot be shown, or is no option, is told in one sentence.
. "$abs_top_srcdir/test/hygiene/tap.sh"

onehop=$abs_top_builddir/src/tools/onehop
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
commands=$("$onehop" --help | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p')
[ "$(wc -w <<<"$commands")" -ge 5 ]
tap_point $? "the command names its subcommands" "$commands"

# run COMMAND...: sets $status, fills help and error.
run() {
    status=0
    timeout 20 "$@" >"$scratch/help" 2>"$scratch/error" || status=$?
}

# point COMMAND STATUS NAME DIAGNOSTIC
point() {
    tap_point "$2" "onehop ${1:+$1 }--help $3" "$4"
}

for command in '' $commands; do
    run "$onehop" $command --help
    lines=$(wc -l <"$scratch/help") columns=$(LC_ALL=C.UTF-8 wc -L <"$scratch/help")
    [ "$status" = 0 ] && [ ! -s "$scratch/error" ] && [ "$lines" -le 24 ] && [ "$columns" -le 80 ]
    point "$command" $? "fits a screen of 24 lines and 80 columns" \
        "exit status $status, $lines lines, $columns columns: $(awk 'length > 80' "$scratch/help")"
    [ -z "$command" ] || grep -qE '[Ee]xample' "$scratch/help"
    point "$command" $? "shows an example" "$(cat "$scratch/help")"
    [ -z "$command" ] || sed -n 1p "$scratch/help" | grep -q "^usage: onehop $command"
    point "$command" $? "begins with its usage" "$(cat "$scratch/help")"
done

# refused PATTERN NAME: the last command ended with status 2 and one line on stderr, which has the pattern.
refused() {
    [ "$status" = 2 ] && [ "$(wc -l <"$scratch/error")" = 1 ] && grep -qE "$1" "$scratch/error"
    tap_point $? "$2" "exit status $status: $(cat "$scratch/error")"
}

for words in --help --version $(printf '%s/--help ' $commands); do
    name=${words%%--*} name=${name%/}
    status=0
    "$onehop" ${words/\// } >/dev/full 2>"$scratch/error" || status=$?
    refused "^onehop: ${name:+$name: }stdout: No space left on device\$" "onehop ${words/\// }, and stdout is full"
    status=0
    "$onehop" ${words/\// } >&- 2>"$scratch/error" || status=$?
    refused "^onehop: ${name:+$name: }stdout: Bad file descriptor\$" "onehop ${words/\// }, and stdout is closed"
done
for command in $commands; do
    run "$onehop" $command --nonsense
    refused "^onehop: $command: --nonsense: unknown option; see onehop $command --help\$" "onehop $command --nonsense"
    run "$onehop" $command -Z
    refused "^onehop: $command: -Z: unknown option; see onehop $command --help\$" "onehop $command -Z"
    run "$onehop" $command --help=yes
    refused "^onehop: $command: --help: takes no value; see" "onehop $command --help=yes"
done
for words in run/--via perf/--minbytes tune/-o topo/--save doctor/--pid stat/--output; do
    run "$onehop" ${words/\// }
    refused "^onehop: [a-z]+: --[a-z]+: value missing; see onehop [a-z]+ --help\$" "onehop ${words/\// } and no more"
done

run "$onehop" perf --itres 3
refused '^onehop: perf: --itres: unknown option [(]did you mean --iters[?][)]; see onehop perf --help$' "the nearest option is suggested"
run "$onehop" docter
refused '^onehop: docter: unknown command [(]did you mean doctor[?][)]; see onehop --help$' "so is the nearest command"
run "$onehop" frobnicate
refused '^onehop: frobnicate: unknown command; see onehop --help$' "but only a near one"

# The scripts that people start: their help fits a screen as well, and what they do not know they do not do.
for script in apps compare-nccl-tests plot results quickstart check deb rpm wheel check-gpu; do
    run bash "$abs_top_srcdir/scripts/$script" --help
    [ "$status" = 0 ] && [ ! -s "$scratch/error" ] && [ "$(wc -l <"$scratch/help")" -le 24 ] &&
        [ "$(LC_ALL=C.UTF-8 wc -L <"$scratch/help")" -le 80 ] && sed -n 1p "$scratch/help" | grep -q "^usage: .*$script"
    tap_point $? "scripts/$script --help fits a screen of 24 lines and 80 columns" \
        "exit status $status: $(cat "$scratch/help" "$scratch/error")"
    run bash "$abs_top_srcdir/scripts/$script" --nonsense
    [ ! -s "$scratch/help" ]
    tap_point $? "scripts/$script --nonsense: nothing is done" "$(cat "$scratch/help")"
    refused "^$script: .*--nonsense" "and one sentence says so"
done
tap_done
