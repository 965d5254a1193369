# SPDX-License-Identifier: MIT
# The completion for bash offers what the command's own help names: commands, options, arguments.
. "$abs_top_srcdir/test/hygiene/tap.sh"

onehop=$abs_top_builddir/src/tools/onehop
. "$abs_top_srcdir/completion/onehop.bash"

# offer WORD...: what the completion offers for the last word of `onehop WORD...`, in $offered.
offer() {
    COMP_WORDS=("$onehop" "$@")
    COMP_CWORD=$#
    _onehop "$onehop" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    offered=$(printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' ')
}

# expect_offer NAME WANTED WORD...
expect_offer() {
    local name=$1 wanted=$2
    shift 2
    offer "$@"
    [ "$offered" = "$wanted" ]
    tap_point $? "$name" "onehop $*: wanted '$wanted', offered '$offered'"
}

complete -p onehop 2>/dev/null | grep -q -- '-F _onehop onehop'
tap_point $? "it is bound to the command" "$(complete -p onehop 2>&1)"
commands=$("$onehop" --help | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p')
offer ''
[ "$offered" = "$(printf '%s\n' $commands --help --version | sort | tr '\n' ' ')" ]
tap_point $? "all of them are offered" "$offered"
expect_offer "the beginning of a command" "doctor " do
expect_offer "options" "--help --invariant --stats --via " run --
expect_offer "what follows an option" "audit plugin preload " doctor --via ''
expect_offer "the beginning of that" "plugin preload " run --via p
offer stat --pid "$$"
[[ " $offered" == *" $$ "* ]]
tap_point $? "process ids" "$offered"
offer run --stats bas
[[ " $offered" == *" bash "* ]]
tap_point $? "a program" "$offered"
tap_scratch
touch "$scratch/input.txt"
expect_offer "files for a program" "$scratch/input.txt " run -- cat "$scratch/in"
expect_offer "options of a program are its own" " " run cat --sta
expect_offer "an unknown command" " " nothing --

tap_done
