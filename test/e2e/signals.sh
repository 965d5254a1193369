# SPDX-License-Identifier: MIT
# signals.sh - commands that end by a signal, and whether they have. Sourced.

# Before a command that is to end by a signal. A shell has what it starts in the background ignore SIGINT, and may itself
# have been started so; bash cannot undo that.
interruptible=(env --default-signal=HUP,INT,PIPE,TERM)

# await_death PID: waits some seconds for the end of a process, collected or not: a dead one has no command line. Returns
# 1 when it lives.
await_death() {
    for _ in $(seq 100); do
        [ -n "$({ tr -d '\0' <"/proc/$1/cmdline"; } 2>/dev/null)" ] || return 0
        sleep 0.1
    done
    return 1
}
