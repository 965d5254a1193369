# SPDX-License-Identifier: MIT
# Every function that a released NCCL exports is hooked, or passes by on purpose: src/comm/nccl.h has the former, and each
# has a line in doc/loading.md, "Functions of NCCL".
. "$abs_top_srcdir/test/hygiene/tap.sh"

header=$abs_top_srcdir/src/comm/nccl.h
names_of() { # LIST: of src/comm/nccl.h
    sed -n "/define $1(X)/,/^\$/s/^ *X(\([A-Za-z]*\),.*/nccl\1/p" "$header" | sort
}
released=$(grep -v '^#' "$abs_top_srcdir/test/hygiene/nccl-functions.txt" | tr ' ' '\n' | grep '^nccl' | sort)
oldest=$(sed -n '/^2\.19/,/^2\.2[^1]/{/^2\.2[2-9]/q;p}' "$abs_top_srcdir/test/hygiene/nccl-functions.txt" | tr ' ' '\n' | grep '^nccl' | sort)
required=$(names_of OH_NCCL_REQUIRED) queries=$(names_of OH_NCCL_QUERIES)
hooked=$(printf '%s\n' "$required" "$(names_of OH_NCCL_OPTIONAL)" | sort)
# line FUNCTION: the last cell of its row in the table of the page.
table=$(sed -n '/^### Functions of NCCL/,/^##* [^F]/p' "$abs_top_srcdir/doc/loading.md" | grep '^|')

[ "$(wc -l <<<"$released")" -gt 90 ] && [ "$(wc -l <<<"$hooked")" -gt 30 ] && [ "$(wc -l <<<"$oldest")" = 31 ]
tap_point $? "the lists are found" "$(wc -l <<<"$released") $(wc -l <<<"$hooked") $(wc -l <<<"$oldest")"
tap_empty "$(comm -13 <(echo "$released") <(printf '%s\n' "$hooked" "$queries" | sort))" "what onehop exports or calls is NCCL's"
tap_empty "$(comm -13 <(echo "$oldest") <(printf '%s\n' "$required" "$queries" | sort))" "what onehop requires is in NCCL 2.19"
tap_empty "$(for name in $released; do
    rows=$(grep -c "\`$name\`" <<<"$table")
    [ "$rows" = 1 ] || echo "$name: $rows lines"
done)" "each function of a released NCCL has one line in doc/loading.md"
tap_empty "$(for name in $hooked; do
    grep "\`$name\`" <<<"$table" | grep -q '| passes |' && echo "$name"
done)" "no hooked function is said to pass"
tap_empty "$(comm -23 <(echo "$released") <(echo "$hooked") | while read -r name; do
    grep "\`$name\`" <<<"$table" | grep -q '| passes |' || echo "$name"
done)" "every other function is said to pass"
tap_empty "$(printf '%s\n' $(grep -o '`nccl[A-Za-z0-9]*`' <<<"$table" | tr -d '`') | sort | comm -13 <(echo "$released") -)" \
    "the page names no function that no NCCL has"
tap_done
