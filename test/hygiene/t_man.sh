# SPDX-License-Identifier: MIT
# Manual pages: there is one for each command, they name every variable, and the formatter has nothing to say.
. "$abs_top_srcdir/test/hygiene/tap.sh"

onehop=$abs_top_builddir/src/tools/onehop
pages=$abs_top_builddir/doc/man
commands=$("$onehop" --help | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p')
for command in $commands; do
    [ -s "$pages/onehop-$command.1" ]
    tap_point $? "onehop-$command(1) is there" "add it to doc/man/man.am"
    grep -qF "onehop\\-$command" "$pages/onehop.1"
    tap_point $? "onehop(1) names it"
    options=$("$onehop" "$command" --help | sed '/^\(For e\|E\)xample/,$d' | grep -oE -- '--[a-z][a-z-]+' | sort -u)
    missing=$(for option in $options; do
        grep -qF -- "${option//-/\\-}" "$pages/onehop-$command.1" || echo "$option"
    done)
    tap_empty "$missing" "and its page has every option of its help"
    wrong=$(sed '/^\.SH SYNOPSIS/,/^\.SH/!d; /^\.SH/d; /^\.br/d; s/^usage: //' "$pages/onehop-$command.1" |
        grep -vE '^(onehop|\[)' || true)
    [ -z "$wrong" ] && [ "$(grep -c '^\.PP' <(sed '/^\.SH SYNOPSIS/,/^\.SH/!d' "$pages/onehop-$command.1"))" = 0 ]
    tap_point $? "and its synopsis is of commands" "$wrong"
done
for command in $(sed -n 's/^    {"\([a-z]*\)", .* OH_EXIT_USAGE, .*/\1/p' "$abs_top_srcdir/src/tools/main.c"); do
    sed '/^\.SH EXIT STATUS/,/^\.SH/!d' "$pages/onehop.1" | grep -q "^\.B $command\$"
    tap_point $? "onehop(1) says that $command, which fails with 2, is another one"
done
variables=$(awk -F '`' '/^The `onehop` command alone/ { exit } /^[|] `ONEHOP_/ { print $2 }' "$abs_top_srcdir/doc/environment.md")
[ "$(wc -w <<<"$variables")" -ge 9 ]
tap_point $? "doc/environment.md has variables" "$variables"
tap_empty "$(for variable in $variables; do grep -q "^\.BR $variable " "$pages/onehop.7" || echo "$variable"; done)" \
    "onehop(7) has each of them"
tap_empty "$(grep -oE '\bonehop[A-Z][A-Za-z]+\(' "$abs_top_srcdir/include/onehop/onehop.h" | sort -u | while read -r function; do
    grep -q "${function%?}" "$pages/onehop.3" || echo "$function"
done; sed -n 's| */\*.*||; s/^    [a-z].* \([a-z_]*\)\(\[.*\)\{0,1\};$/\1/p' "$abs_top_srcdir/include/onehop/onehop.h" | while read -r field; do
    grep -qE "^\.I .*\b$field\b" "$pages/onehop.3" || echo "$field"
done)" "onehop(3) has every function and field of onehop.h"
for page in "$pages"/*.[137]; do
    name=${page##*/}
    tap_empty "$(grep -oE "@[a-zA-Z_]+@|[$][{].*" "$page")" "$name: everything is filled in"
    tap_empty "$(grep '^\.SH ' "$page" | sort | uniq -d)" "$name: each section once"
    if command -v groff >/dev/null; then
        tap_empty "$(groff -man -ww -z -Tutf8 "$page" 2>&1)" "$name: groff has nothing to say"
        columns=$(groff -man -Tutf8 -P -c -rLL=80n "$page" 2>/dev/null | sed 's/\x1b\[[0-9;]*m//g; s/.\x08//g' |
            LC_ALL=C.UTF-8 wc -L)
        [ "$columns" -le 80 ]
        tap_point $? "$name: 80 columns are enough" "$columns"
    else
        tap_skip "$name: groff has nothing to say" "no groff"
    fi
done
tap_done
