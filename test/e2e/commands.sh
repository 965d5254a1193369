# SPDX-License-Identifier: MIT
# commands.sh - what a command says, and commands that end by a signal. Sourced.

# run_first WORD... [-- COMMAND...]: runs the command, if there is one; the words before it go to $asked. By it, functions whose
# name begins with expect take "-- COMMAND..." as their last arguments: what they look at is that run then.
run_first() {
    asked=()
    while [ $# -gt 0 ]; do
        if [ "$1" = -- ]; then
            "${@:2}"
            return
        fi
        asked+=("$1")
        shift
    done
}

# says PATTERN: is it found in what the last command said ($out, and stderr in $err, where that is kept apart)? "!PATTERN": it
# is not; "NUMBER:PATTERN": in so many lines; "silent": there is nothing in $err.
says() {
    if [ "$1" = silent ]; then
        [ ! -s "$err" ]
    elif [[ $1 =~ ^([0-9]+):(.*)$ ]]; then
        [ "$(cat "$out" ${err:+"$err"} | grep -cE -- "${BASH_REMATCH[2]}")" = "${BASH_REMATCH[1]}" ]
    elif [ "${1#!}" != "$1" ]; then
        ! says "${1#!}"
    else
        grep -qE -- "$1" "$out" ${err:+"$err"}
    fi
}

# expect NAME STATUS PATTERN...: the last command ended with that status, and says so.
expect() {
    local name=$1 wanted=$2 good=1 tell='' pattern
    run_first "${@:3}"
    set -- "${asked[@]}"
    [ "$status" = "$wanted" ] && good=0
    for pattern in "$@"; do
        says "$pattern" || good=1
    done
    [ $good = 0 ] || tell=$(printf 'exit status %s, wanted %s and: %s\n' "$status" "$wanted" "$*"; tail -n 25 "$out" ${err:+"$err"})
    tap_point $good "$name" "$tell"
}

# expect_file NAME FILE PATTERN...: the same of a file.
expect_file() {
    local out=$2 err='' wrong='' pattern
    for pattern in "${@:3}"; do
        says "$pattern" || wrong+=" $pattern"
    done
    tap_empty "${wrong:+not$wrong: $(cat "$out")}" "$1"
}

# expect_sentence NAME STATUS PATTERN: the last command ended with that status, with one line on stderr, which has the pattern, and
# nothing on stdout.
expect_sentence() {
    run_first "$@"
    [ "$status" = "$2" ] && [ ! -s "$out" ] && [ "$(wc -l <"$err")" = 1 ] && grep -qE -- "$3" "$err"
    tap_point $? "$1: exit status $2, one sentence" "$(printf 'exit status %s\n' "$status"; tail -n 25 "$out" "$err")"
}

# Before a command that is to end by a signal. A shell has what it starts in the background ignore SIGINT, and may itself
# have been started so; bash cannot undo that.
interruptible=(env --default-signal=HUP,INT,PIPE,TERM)

# await SECONDS COMMAND...: waits until the command succeeds. Returns 1 when it has not by then.
await() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

# has_died PID: the process has ended, collected or not: a dead one has no command line.
has_died() {
    [ -z "$({ tr -d '\0' <"/proc/$1/cmdline"; } 2>/dev/null)" ]
}

# living PID...: prints those that still live after some seconds.
living() {
    local one
    for one in "$@"; do
        await 10 has_died "$one" || echo "$one"
    done
}

# signalled SIGNAL READY COMMAND...: runs the command, and sends it the signal once the function READY succeeds, or after a
# minute. Sets $pid, $children (its processes then) and $status; fills $out and $err.
signalled() {
    "${interruptible[@]}" "${@:3}" >"$out" 2>"$err" </dev/null &
    pid=$!
    await 60 "$2"
    children=$(cat /proc/$pid/task/*/children 2>/dev/null)
    kill -"$1" $pid
    status=0
    wait $pid 2>/dev/null || status=$?
}

# expect_ended NAME STATUS FOLDER...: that command ended with the status, its processes have gone, and the folders are empty.
expect_ended() {
    local left
    left=$(living $children; find "${@:3}" -mindepth 1)
    [ "$status" = "$2" ] && [ -n "$children" ] && [ -z "$left" ]
    tap_point $? "$1: no process, no file is left" "status $status, $children, left: $left; $(tail -n 25 "$out" "$err")"
}
