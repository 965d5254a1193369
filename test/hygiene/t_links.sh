# SPDX-License-Identifier: MIT
# Every link of every page leads to a file of the tree, and every anchor to a heading of that file.
. "$abs_top_srcdir/test/hygiene/tap.sh"

# links FILE...: "FILE:LINE TARGET" for each link to a file or heading, and each picture; none out of code.
links() {
    LC_ALL=C.UTF-8 awk '
        FNR == 1 { fence = 0 }
        /^```/ { fence = !fence }
        fence || /^    / { next }
        {
            gsub(/`[^`]*`/, "")
            while (match($0, /\]\([^) ]+\)/)) {
                target = substr($0, RSTART + 2, RLENGTH - 3)
                $0 = substr($0, RSTART + RLENGTH)
                if (target !~ /^[a-z]+:/) print FILENAME ":" FNR, target
            }
        }' "$@"
}

# anchors FILE: the anchors of its headings, as GitHub makes them: lower case, blanks as "-", no other punctuation.
anchors() {
    LC_ALL=C.UTF-8 awk '
        /^```/ { fence = !fence }
        !fence && /^#+ / {
            sub(/^#+ +/, ""); gsub(/\]\([^)]*\)/, ""); $0 = tolower($0)
            gsub(/[^a-z0-9_ -]/, ""); gsub(/ /, "-")
            print $0 (seen[$0]++ ? "-" seen[$0] - 1 : "")
        }' "$1"
}

# dead FILE...: the links that lead nowhere.
dead() {
    local at target file anchor folder
    links "$@" | while read -r at target; do
        file=${target%%#*} anchor=
        [ "$file" = "$target" ] || anchor=${target#*#}
        folder=${at%:*}
        case $folder in */*) folder=${folder%/*} ;; *) folder=. ;; esac
        if [ -z "$file" ]; then
            file=${at%:*}
        else
            file=$folder/$file
        fi
        if [ ! -e "$file" ]; then
            echo "$at: $target: no such file"
        elif [ -n "$anchor" ] && ! anchors "$file" | grep -qxF -e "$anchor"; then
            echo "$at: $target: no such heading"
        fi
    done
}

cd "$abs_top_srcdir" || exit 1
mapfile -t pages < <(find . \( -name '.?*' -o -name 'build*' -o -name b \) -prune -o -name '*.md' -print | LC_ALL=C sort)
[ "$(links "${pages[@]}" | wc -l)" -gt 80 ]
tap_point $? "the links are found" "$(links "${pages[@]}" | wc -l) in ${#pages[@]} pages"
tap_empty "$(dead "${pages[@]}")" "no link is dead"

tap_scratch
printf '# A `b`, c\n\n[x](#a-b-c) [x](y.md) [x](#d)\n\n    [x](code.md)\n' >"$scratch/page.md"
[ "$(dead "$scratch/page.md" | wc -l)" = 2 ]
tap_point $? "a dead link and a dead anchor are found" "$(dead "$scratch/page.md")"
tap_done
