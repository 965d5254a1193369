# SPDX-License-Identifier: MIT
# The help of each command fits a screen and shows an example; what cannot be shown, or is no option, is told in one sentence.
. "$abs_top_srcdir/test/hygiene/tap.sh"
. "$abs_top_srcdir/test/e2e/commands.sh"

onehop=$abs_top_builddir/src/tools/onehop
tap_scratch
out=$scratch/help err=$scratch/error
commands=$("$onehop" --help | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p')
[ "$(wc -w <<<"$commands")" -ge 5 ]
tap_point $? "the command names its subcommands" "$commands"

# run COMMAND...: sets $status, fills $out and $err. run_full, run_closed, run_cut: stdout is full, closed, or a file that
# may not grow.
run() {
    status=0
    timeout 20 "$@" >"$out" 2>"$err" || status=$?
}
run_full() {
    out=/dev/full run "$@"
}
run_closed() {
    status=0
    timeout 20 "$@" >&- 2>"$err" || status=$?
}
run_cut() {
    (
        ulimit -c 0
        ulimit -f 0
        timeout 20 "$@" >"$scratch/cut"
    ) 2>&1 | cat >"$err"
    status=${PIPESTATUS[0]}
}

# point COMMAND STATUS NAME DIAGNOSTIC
point() {
    tap_point "$2" "onehop ${1:+$1 }--help $3" "$4"
}

for command in '' $commands; do
    run "$onehop" $command --help
    lines=$(wc -l <"$out") columns=$(LC_ALL=C.UTF-8 wc -L <"$out")
    [ "$status" = 0 ] && [ ! -s "$err" ] && [ "$lines" -le 24 ] && [ "$columns" -le 80 ]
    point "$command" $? "fits a screen of 24 lines and 80 columns" \
        "exit status $status, $lines lines, $columns columns: $(awk 'length > 80' "$out")"
    [ -z "$command" ] || grep -qE '[Ee]xample' "$out"
    point "$command" $? "shows an example" "$(cat "$out")"
    [ -z "$command" ] || sed -n 1p "$out" | grep -q "^usage: onehop $command"
    point "$command" $? "begins with its usage" "$(cat "$out")"
done

for words in --help --version $(printf '%s/--help ' $commands); do
    name=${words%%--*} name=${name%/}
    : >"$out"
    for stdout in 'full:No space left on device' 'closed:Bad file descriptor' 'cut:File too large'; do
        expect_sentence "onehop ${words/\// }, and stdout is ${stdout%:*}" 2 \
            "^onehop: ${name:+$name: }stdout: ${stdout#*:}\$" -- "run_${stdout%:*}" "$onehop" ${words/\// }
    done
done
for command in $commands; do
    for option in --nonsense -Z; do
        expect_sentence "onehop $command $option" 2 \
            "^onehop: $command: $option: unknown option; see onehop $command --help\$" -- run "$onehop" $command $option
    done
    expect_sentence "onehop $command --help=yes" 2 "^onehop: $command: --help: takes no value; see" \
        -- run "$onehop" $command --help=yes
done
for words in run/--via perf/--minbytes tune/-o topo/--save doctor/--pid stat/--output; do
    expect_sentence "onehop ${words/\// } and no more" 2 \
        "^onehop: [a-z]+: --[a-z]+: value missing; see onehop [a-z]+ --help\$" -- run "$onehop" ${words/\// }
done
for words in perf/--csv perf/--json perf/--from perf/--nccl perf/--onehop tune/-o topo/--save topo/--load stat/--output; do
    expect_sentence "onehop ${words/\// } '': a name that is empty" 2 "^onehop: [a-z]+: --[a-z]+ '': expected a path\$" \
        -- run "$onehop" ${words/\// } ''
done
for words in perf/--si:simulated:simulated-times perf/--m=8:minbytes:maxbytes stat/--o:openmetrics:output; do
    IFS=: read -r words one two <<<"$words"
    expect_sentence "onehop ${words/\// }, which more than one option begins with" 2 \
        "^onehop: ${words%/*}: ${words#*/}: not clear: --$one or --$two; see onehop ${words%/*} --help\$" -- run "$onehop" ${words/\// }
done
for words in --via/plugin --via/audit/--json --via/preload/--pid/$$; do
    expect_sentence "onehop doctor ${words//\// }: nothing is run that way" 2 \
        '^onehop: doctor: --via [a-z]+: expected a program; see onehop doctor --help$' -- run "$onehop" doctor ${words//\// }
done

expect_sentence "the nearest option is suggested" 2 \
    '^onehop: perf: --itres: unknown option [(]did you mean --iters[?][)]; see onehop perf --help$' \
    -- run "$onehop" perf --itres 3
expect_sentence "so is the nearest command" 2 \
    '^onehop: docter: unknown command [(]did you mean doctor[?][)]; see onehop --help$' -- run "$onehop" docter
expect_sentence "but only a near one" 2 '^onehop: frobnicate: unknown command; see onehop --help$' \
    -- run "$onehop" frobnicate

# The scripts that people start: their help fits a screen as well, and what they do not know they do not do.
for script in apps compare-nccl-tests plot results quickstart check deb rpm wheel check-gpu; do
    run bash "$abs_top_srcdir/scripts/$script" --help
    [ "$status" = 0 ] && [ ! -s "$err" ] && [ "$(wc -l <"$out")" -le 24 ] &&
        [ "$(LC_ALL=C.UTF-8 wc -L <"$out")" -le 80 ] && sed -n 1p "$out" | grep -q "^usage: .*$script"
    tap_point $? "scripts/$script --help fits a screen of 24 lines and 80 columns" \
        "exit status $status: $(cat "$out" "$err")"
    expect_sentence "scripts/$script --nonsense: nothing is done" 2 "^$script: .*--nonsense" \
        -- run bash "$abs_top_srcdir/scripts/$script" --nonsense
done
for words in --build 'abc' '-1' '--build /nowhere'; do
    expect_sentence "scripts/fuzz $words: its usage" 2 '^scripts/fuzz \[--build DIR\] SECONDS \[TARGET...\]$' \
        -- run bash "$abs_top_srcdir/scripts/fuzz" $words
done
if command -v python3 >/dev/null; then
    mkdir -p "$scratch/built/.libs"
    touch "$scratch/built/.libs/libnccl-net-onehop.so"
    run python3 "$abs_top_srcdir/scripts/nccl-wheels" --build "$scratch/built" "$scratch/none/libnccl.so.2"
    [ "$status" = 1 ] && [ "$(cat "$err")" = "nccl-wheels: $scratch/none/libnccl.so.2: neither a file nor PACKAGE==VERSION" ] &&
        [ ! -e "$scratch/none" ]
    tap_point $? "scripts/nccl-wheels, a file that is not there: no folder is made for it" "$(cat "$err"; find "$scratch/none")"
else
    tap_skip "scripts/nccl-wheels, a file that is not there" "no python3"
fi
tap_done
