# SPDX-License-Identifier: MIT
# header-page.awk - the manual page onehop(3) out of include/onehop/onehop.h
#
#   awk -v version=0.1.0 -f header-page.awk include/onehop/onehop.h
#
# Takes the comment of @file, and each /** comment with what it documents: the members of an enum or a structure, macros, a
# function with @param and @return.
function quoted(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    return text
}
function line(text) {
    text = quoted(text)
    print (text ~ /^[.']/ ? "\\&" : "") text
}
# The text of a comment: paragraphs, examples (indented), parameters and result.
function show_comment(count, i, text, examples) {
    for (i = 1; i <= count; i++) {
        text = comment[i]
        if (text ~ /^@file/) {
            continue
        }
        if (examples && text !~ /^  /) {
            print ".fi"
            examples = 0
        }
        if (text == "") {
            if (i < count && i > 1 && comment[i + 1] != "" && comment[i + 1] !~ /^(@|  )/) print ".PP"
        } else if (text ~ /^@param/) {
            sub(/^@param +/, "", text)
            name = text
            sub(/ .*/, "", name)
            sub(/^[^ ]+ +/, "", text)
            print ".TP\n.I " quoted(name)
            line(text)
        } else if (text ~ /^@return/) {
            sub(/^@return +/, "", text)
            print ".TP\nReturns"
            line(text)
        } else if (text ~ /^  /) {
            if (!examples) print ".PP\n.nf"
            examples = 1
            sub(/^  /, "", text)
            line(text)
        } else {
            line(text)
        }
    }
    if (examples) print ".fi"
}
# A member of an enum or structure, and its comment, which may take several lines.
function show_member(text, note) {
    note = ""
    if (text ~ /\/\*\*</) {
        note = text
        sub(/.*\/\*\*< */, "", note)
        sub(/ *\/\*\*<.*/, "", text)
    } else if (text ~ /^ +\* /) {
        note = text
        sub(/^ +\* /, "", note)
        text = ""
    }
    sub(/ *\*\/$/, "", note)
    gsub(/^ +|[;,] *$/, "", text)
    if (text != "") {
        print ".TP"
        print ".I \"" quoted(text) "\""
    }
    if (note != "") line(note)
}
# Prototypes and macros as they stand; the members of a type.
function show_source(count, i) {
    if (kind != "type") print ".PP"
    for (i = 1; i <= count; i++) {
        if (kind != "type") {
            line(source[i])
            print ".br"
        } else if (source[i] ~ /^ /) {
            show_member(source[i])
        }
    }
}
function flush() {
    if (kind == "function") {
        title = source[1]
        sub(/\(.*/, "", title)
        sub(/.*[ *]/, "", title)
        print ".SS " title
        for (i = 1; i <= sources; i++) sub(/^ONEHOP_API /, "", source[i])
    } else if (sources > 0) {
        print ".SS " (kind == "macro" ? "Limits" : what)
    }
    if (kind == "type") {
        show_comment(comments)
        show_source(sources)
    } else {
        if (sources > 0) {
            show_source(sources)
            print ".PP"
        }
        show_comment(comments)
    }
    comments = sources = 0
    kind = ""
}
BEGIN {
    print ".\\\" SPDX-License-Identifier: MIT\n.TH ONEHOP 3 \"\" \"onehop " version "\" \"onehop\""
    print ".SH NAME\nonehop \\- what onehop did with the NCCL calls of this program"
    print ".SH SYNOPSIS\n.B #include <onehop/onehop.h>\n.SH DESCRIPTION"
}
/^\/\*\*/ {
    if (comments > 0) flush()
    inside = 1
    sub(/^\/\*\* ?/, "")
    if ($0 ~ /\*\/$/) inside = 0
    sub(/ ?\*\/$/, "")
    if ($0 != "") comment[++comments] = $0
    next
}
inside {
    if ($0 ~ /\*\/$/) {
        inside = 0
        next
    }
    sub(/^ \* ?/, "")
    comment[++comments] = $0
    next
}
comments > 0 && kind == "" && /^(enum|typedef struct) / { kind = "type"; what = $1 == "enum" ? "enum " $2 : "struct " $3 }
comments > 0 && kind == "" && /^ONEHOP_API / { kind = "function" }
comments > 0 && kind == "" && /^#define ONEHOP_MAX/ { kind = "macro" }
kind != "" && /^$/ { flush(); next }
kind != "" { source[++sources] = $0 }
comments > 0 && kind == "" && /^#ifndef/ { flush() }
END {
    print ".SH SEE ALSO\n.BR onehop (1),\n.BR onehop (7)"
}
