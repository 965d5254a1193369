# SPDX-License-Identifier: MIT
# doc/environment.md has what the table in src/util/env.h and the tools have: each variable, default, accepted values, once.
. "$abs_top_srcdir/test/hygiene/tap.sh"

read -ra cc <<<"$CC"
read -ra cppflags <<<"$OH_CPPFLAGS"
export LC_ALL=C

# One line for each row of the X-macro table: name|default|accepted
table=$(printf '%s\n' '#include "util/env.h"' \
    '#define ROW(id_, name_, default_, accepted_, ...) @name_|default_|accepted_' 'OH_ENV_VARIABLES(ROW)' |
    "${cc[@]}" -E -P "${cppflags[@]}" - | tr '@' '\n' | grep '^"ONEHOP_' |
    sed 's/" *| *"/|/g; s/^"//; s/" *$//' | sort)
# The same from the document: | `name` | `default` | accepted | meaning |
documented=$(awk -F ' *[|] *' -v OFS='|' '$2 ~ /^`ONEHOP_/ { print $2, $3, $4 }' "$abs_top_srcdir/doc/environment.md" |
    tr -d '`' | sort)

[ -n "$table" ]
tap_point $? "src/util/env.h has a table" "nothing found"
tap_empty "$(comm -23 <(echo "$table") <(echo "$documented"))" "doc/environment.md has each row of the table"
named=$(grep -rhoE --include='*.[ch]' '"ONEHOP_[A-Z_]+"' "$abs_top_srcdir/src" | tr -d '"' | sort -u)
different=$(diff <(echo "$named") <(cut -d'|' -f1 <<<"$documented" | sort))
tap_empty "$different" "src/ and doc/environment.md name the same variables"

# settings PAGE...: the variables that have a row of a table of their own: | `NAME` |, or several names in one cell.
settings() {
    awk -F ' *[|] *' '$2 ~ /^`[A-Za-z][A-Za-z0-9_]+(=[^`]*)?`(, `[A-Za-z0-9_]+(=[^`]*)?`)*$/ {
        names = split($2, name, /, /)
        for (n = 1; n <= names; n++) { gsub(/`|=.*/, "", name[n]); print name[n] }
    }' "$@" | sort
}

tap_empty "$(settings "$abs_top_srcdir"/*.md "$abs_top_srcdir"/doc/*.md | grep '^ONEHOP_' | uniq -d)" \
    "no variable has two rows, on whatever pages"
read_of_others=$(grep -rhoE --include='*.c' '"(NCCL_[A-Z_0-9]+|XDG_CACHE_HOME|HOME)"' "$abs_top_srcdir"/src --exclude-dir=tools |
    tr -d '"' | sort -u)
[ -n "$read_of_others" ]
tap_point $? "src/ reads variables of others" "nothing found"
tap_empty "$(comm -23 <(echo "$read_of_others") <(settings "$abs_top_srcdir/doc/environment.md" | uniq -u))" \
    "each of them has one row in doc/environment.md"
tap_done
