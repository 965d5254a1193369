# SPDX-License-Identifier: MIT
# help-page.awk - makes a manual page out of what `onehop COMMAND --help` prints.
#   onehop run --help | awk -v command=run -v purpose="run a program ..." -v version=0.1.0 -f help-page.awk
# The text: lines of usage, paragraphs, lines of options (those with two runs of blanks name two), "Exit status: ...",
# "Example: ...".

function escaped(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/) {
        text = "\\&" text
    }
    return text
}

function section(name) {
    if (name != current) {
        print ".SH " name
        current = name
    }
}

# A sentence on the exit status may stand in the middle of a paragraph.
function paragraph(text,    at) {
    at = index(text, "Exit status:")
    if (at > 1) {
        paragraph(substr(text, 1, at - 1))
        text = substr(text, at)
    }
    if (text ~ /^Exit status: /) {
        section("EXIT STATUS")
        sub(/^Exit status: /, "", text)
    } else if (text ~ /^Environment: /) {
        section("ENVIRONMENT")
        sub(/^Environment: /, "", text)
    } else if (text ~ /^Example: /) {
        section("EXAMPLE")
        sub(/^Example: /, "", text)
        print ".EX\n" escaped(text) "\n.EE"
        return
    } else if (text == "Examples:") { # lines to be shown as they are follow
        section("EXAMPLE")
        return
    } else if (text ~ /^For example/) {
        section("EXAMPLE")
    } else if (current != "EXAMPLE") {
        section("DESCRIPTION")
    }
    sub(/ +$/, "", text)
    print ".PP\n" escaped(text)
}

function flush() {
    if (held != "") {
        paragraph(held)
    }
    held = ""
}

BEGIN {
    printf ".TH ONEHOP\\-%s 1 \"\" \"onehop %s\" \"onehop\"\n", toupper(command), version
    printf ".SH NAME\nonehop\\-%s \\- %s\n", command, escaped(purpose)
    usage = 1
}

# Lines of usage come first; one that names no command goes on with the one before.
usage && !/^(usage: | +)(onehop |[[])/ { usage = 0 }

usage {
    section("SYNOPSIS")
    sub(/^usage: /, "")
    sub(/^ +/, "")
    print (lines++ && /^onehop / ? ".br\n" : "") escaped($0)
    next
}

/^$/ { flush(); next }

/^ +--?[a-zA-Z]/ {
    flush()
    section("OPTIONS")
    sub(/^ +/, "")
    at = match($0, /  +[^ ]([^ ]| [^ ])*$/)
    tag = at ? substr($0, 1, at - 1) : $0
    text = at ? substr($0, at) : ""
    gsub(/  +/, ", ", tag)
    sub(/^ +/, "", text)
    print ".TP\n.B " escaped(tag)
    if (text != "") {
        print escaped(text)
    }
    next
}

# What goes on: of an option, or lines to be shown as they are.
/^  / {
    flush()
    sub(/^ +/, "")
    if (current == "OPTIONS") {
        print escaped($0)
    } else {
        print ".PP\n.EX\n" escaped($0) "\n.EE"
    }
    next
}

# Sentences keep their lines apart: a statement on its own line begins a paragraph of its own.
/^(Exit status|Environment|Example):/ { flush() }

{ held = held (held == "" ? "" : " ") $0 }

END { flush(); print ".SH SEE ALSO\n.BR onehop (1),\n.BR onehop (7)" }
