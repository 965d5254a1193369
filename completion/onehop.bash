# SPDX-License-Identifier: MIT
# Bash completion of the onehop command. Commands and options are those that `onehop --help` and `onehop COMMAND --help`
# name at this moment, so nothing here has to follow them. Works with and without the bash-completion package.

# The options that a help text names in front of its example, one a line.
_onehop_options() {
    sed '/^\(For e\|E\)xample/,$d' <<<"$1" | grep -oE -- '(^|[ [(,|])--?[a-zA-Z][a-z0-9_-]*' | grep -oE -- '--?[a-zA-Z].*' | sort -u
}

# What may follow an option: the words of "--option a|b|c" in the help text, one a line.
_onehop_choices() {
    grep -oE -- "$2[ =][a-z]+(\|[a-z]+)+" <<<"$1" | head -n 1 | sed 's/^[^ =]*[ =]//' | tr '|' '\n'
}

# True when the help text shows an option with an argument behind it: "--option WORD", or with choices.
_onehop_takes_argument() {
    grep -qE -- "$2(, --[a-z_-]+)?( |=)([A-Z]|[a-z0-9]+\|)" <<<"$1"
}

# The index of the first word behind `onehop COMMAND` and its options; COMP_CWORD or more: we are not that far.
_onehop_first_operand() {
    local i help=$1
    for ((i = 2; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            --) ((i++)); break ;;
            -*) _onehop_takes_argument "$help" "${COMP_WORDS[i]}" && ((i++)) ;;
            *) break ;;
        esac
    done
    echo "$i"
}

_onehop() {
    local onehop=$1 word=$2 before=$3 command=${COMP_WORDS[1]-} help choices operand
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        choices="$("$onehop" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p') --help --version"
        mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
        return
    fi
    help=$("$onehop" "$command" --help 2>/dev/null) || return
    operand=$(_onehop_first_operand "$help")
    if [ "$operand" -lt "$COMP_CWORD" ]; then # the program's own words
        if [[ $help == *PROGRAM* ]] && declare -F _command_offset >/dev/null; then
            _command_offset "$operand"
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        return
    fi
    if [[ $before == -* ]] && _onehop_takes_argument "$help" "$before"; then
        choices=$(_onehop_choices "$help" "$before")
        if [ -n "$choices" ]; then
            mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
        elif [ "$before" = --pid ]; then
            mapfile -t COMPREPLY < <(compgen -W "$(cd /proc 2>/dev/null && printf '%s\n' [0-9]*)" -- "$word")
        elif grep -qE -- "$before[ =](FILE|PATH|DIR)" <<<"$help"; then
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_onehop_options "$help")" -- "$word")
    elif [[ $help == *PROGRAM* ]]; then
        mapfile -t COMPREPLY < <(compgen -c -- "$word")
    fi
}

complete -o filenames -F _onehop onehop
