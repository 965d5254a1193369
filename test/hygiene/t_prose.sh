# SPDX-License-Identifier: MIT
# The pages are written as CONTRIBUTING.md asks: no sentence is too long, no word is misspelled.
. "$abs_top_srcdir/test/hygiene/tap.sh"

most=35 # words of a sentence, numbers apart; 25 is the aim

# prose FILE...: "FILE:LINE TEXT" for each paragraph, list item and table cell; code as the word "code".
prose() {
    LC_ALL=C.UTF-8 awk '
        function flush() {
            gsub(/`[^`]*`/, "code", text)
            gsub(/\]\([^)]*\)/, "]", text)
            if (text != "") print name ":" line, text
            text = ""
        }
        FNR == 1 { flush(); fence = 0; name = FILENAME }
        /^```/ { flush(); fence = !fence; next }
        fence || (/^    / && text == "") { next }
        /^$/ || /^!\[/ { flush(); next }
        /^#/ { flush(); line = FNR; text = $0; sub(/^#+ /, "", text); flush(); next }
        /^\|/ {
            flush()
            cells = split($0, cell, /\|/)
            for (c = 2; c < cells; c++) { line = FNR; text = cell[c]; flush() }
            next
        }
        /^ *([-*]|[0-9]+\.) / { flush() }
        { if (text == "") line = FNR; text = text " " $0 }
        END { flush() }' "$@"
}

# long FILE...: "FILE:LINE: N words: BEGINNING" for each sentence over the limit.
long() {
    prose "$@" | awk -v most="$most" '{
        at = $1
        sub(/^[^ ]* /, "")
        sentences = split($0, sentence, /[.!?]["\047)*_]*( |$)/)
        for (s = 1; s <= sentences; s++) {
            words = split(sentence[s], word, /[ \t]+/)
            count = 0
            for (w = 1; w <= words; w++) count += word[w] ~ /[[:alpha:]]/
            if (count > most) print at ": " count " words: " substr(sentence[s], 1, 80)
        }
    }'
}

# unknown FILE...: "FILE:LINE: WORD" for each word that neither the dictionary nor words.txt has. What has a digit, an
# underscore, a dot, a slash or a capital inside is a name.
unknown() {
    prose "$@" | awk '{
        at = $1
        sub(/^[^ ]* /, "")
        gsub(/[^[:space:]]*[0-9_\/@=][^[:space:]]*/, " ")
        gsub(/[[:alpha:]]*[[:upper:]][[:alpha:]]*[[:upper:]][[:alpha:]]*/, " ")
        gsub(/[[:alpha:]]*[[:lower:]][[:upper:]][[:alpha:]]*/, " ")
        gsub(/[[:alnum:]]+\.[[:alnum:].]+/, " ")
        gsub(/[^[:alpha:]\047]+/, " ")
        words = split($0, word, " ")
        for (w = 1; w <= words; w++) {
            sub(/^\047+/, "", word[w]); sub(/\047+s?$/, "", word[w]); sub(/\047s$/, "", word[w])
            if (length(word[w]) > 2 && word[w] !~ /^[[:upper:]]+s?$/) print at, word[w]
        }
    }' | LC_ALL=C sort -u >"$scratch/words"
    cut -d' ' -f2 "$scratch/words" | sort -u |
        aspell list --lang=en --encoding=utf-8 --ignore-case --personal=/dev/null 2>/dev/null |
        tr '[:upper:]' '[:lower:]' | sort -u | comm -23 - <(grep -v '^#' test/hygiene/words.txt | sort -u) >"$scratch/bad"
    awk 'NR == FNR { bad[$1] = 1; next } tolower($2) in bad { print $1 ": " $2 }' "$scratch/bad" "$scratch/words"
}

cd "$abs_top_srcdir" || exit 1
export LC_ALL=C
tap_scratch
for page in README.md CONTRIBUTING.md SECURITY.md doc/*.md doc/dev/*.md; do
    tap_empty "$(long "$page")" "$page: no sentence has more than $most words"
done
[ "$(wc -l <README.md)" -le 120 ]
tap_point $? "README.md has at most 120 lines" "$(wc -l <README.md)"
[ "$(wc -l <doc/design.md)" -le 350 ]
tap_point $? "doc/design.md has at most 350 lines" "$(wc -l <doc/design.md)"
tap_empty "$(for page in doc/results/*.md; do
    for part in '[*][*]NVLS o(n|ff)[*][*]' '[^0-9a-f][0-9a-f]{7}[^0-9a-f]' '^## Observations' '^## Not measured'; do
        grep -qE "$part" "$page" || echo "$page: no $part"
    done
done)" "every page of results has NVLS, a commit, observations, and what was not measured"
[ "$(cat doc/results/* | wc -c)" -le 400000 ]
tap_point $? "doc/results has at most 400 kB" "$(cat doc/results/* | wc -c) bytes"

printf 'One two. %s.\n\n    %s\n' "$(printf 'word %.0s' {1..36})" "$(printf 'code %.0s' {1..40})" >"$scratch/page.md"
[ "$(long "$scratch/page.md" | wc -l)" = 1 ]
tap_point $? "a sentence of 36 words is found" "$(long "$scratch/page.md")"
# Dictionaries differ: the list of words is made with those of Debian 12.
debian12=$(grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release && echo yes)
if [ -z "$debian12" ]; then
    tap_skip "spelling" "another dictionary than that of Debian 12"
    tap_done
    exit
fi
if ! command -v aspell >/dev/null || [ -z "$(aspell dicts 2>/dev/null | grep '^en')" ]; then
    tap_skip "every word is in the dictionary or in test/hygiene/words.txt" "no aspell (Debian: aspell aspell-en)"
else
    tap_empty "$(unknown README.md CONTRIBUTING.md SECURITY.md doc/*.md doc/dev/*.md)" \
        "every word is in the dictionary or in test/hygiene/words.txt"
    printf 'The kernel recieves a `wrod` of oh_thing.\n' >"$scratch/page.md"
    [ "$(unknown "$scratch/page.md")" = "$scratch/page.md:1: recieves" ]
    tap_point $? "a misspelled word is found" "$(unknown "$scratch/page.md")"
fi
if ! command -v codespell >/dev/null; then
    tap_skip "no usual misspelling in sources, scripts and tests" "no codespell (Debian: codespell)"
else
    tap_empty "$(find include src kernels scripts completion test NEWS.md configure.ac Makefile.am -type f \
        ! -path 'test/fixtures/*' -print0 | xargs -0 codespell -L froms,recieves 2>&1)" \
        "no usual misspelling in sources, scripts and tests"
fi
tap_done
