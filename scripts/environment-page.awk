# SPDX-License-Identifier: MIT
# environment-page.awk - puts the library's variables, out of doc/environment.md, into a manual page.
#   awk -v version=0.1.0 -f environment-page.awk doc/environment.md onehop.7.in
# @OH_ENVIRONMENT@ on a line of its own becomes the list, @PACKAGE_VERSION@ the version.

function escaped(text,    link, shown) {
    gsub(/ *\(\[[^]]*\]\([^)]*\)\)/, "", text) # a link to another page alone
    while (match(text, /\[[^]]*\]\([^)]*\)/)) { # a link with text of its own: the text
        link = substr(text, RSTART, RLENGTH)
        shown = substr(link, 2, index(link, "]") - 2)
        text = substr(text, 1, RSTART - 1) shown substr(text, RSTART + RLENGTH)
    }
    gsub(/`/, "", text)
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    sub(/ +$/, "", text)
    return text
}

FNR == 1 { file++ }

file == 1 && /command alone reads/ { others = 1 }

file == 1 && !others && /^\| `ONEHOP_/ {
    split($0, column, / *\| */)
    list = list ".TP\n.BR " escaped(column[2]) " \"  (" escaped(column[4]) "; default " escaped(column[3]) ")\"\n" \
        escaped(column[5]) "\n"
}

file == 2 && /^@OH_ENVIRONMENT@$/ { printf "%s", list; next }

file == 2 { gsub(/@PACKAGE_VERSION@/, version); print }
