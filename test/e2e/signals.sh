# SPDX-License-Identifier: MIT
# signals.sh - commands that end by a signal, and whether they have. Sourced.

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
