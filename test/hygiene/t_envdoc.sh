# SPDX-License-Identifier: MIT
# doc/environment.md says what the table in src/util/env.h and the tools say: each variable, default, accepted values.
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
tap_done
