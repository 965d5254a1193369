# SPDX-License-Identifier: MIT
# onehop run: what it sets, how it finds its files, that the program cannot tell it from a plain start, and the sums
# that --stats gives at the end.
. "$abs_top_srcdir/test/e2e/lib.sh"

unset ONEHOP_STATS

# run ARGUMENT...: onehop run. Sets $status, fills $out (stdout and stderr). sums: of a program with two ranks.
run() {
    run_limited "$onehop" run "$@"
}
sums() {
    run --stats -- "$app" --nranks 2 --counts 7 "$@"
}

# --- what it sets

expect "a program is served, without --stats nothing is added to the output" 0 '^ok' 'nranks 2: served by onehop' '!stats:' \
    '!calls served' -- run -- "$app" --nranks 2 --counts 5,5000
LD_PRELOAD=libm.so.6 expect "LD_PRELOAD: in front of what is there" 0 "^LD_PRELOAD=$plugin:libm.so.6\$" -- run env
expect "LD_PRELOAD: alone" 0 "^LD_PRELOAD=$plugin\$" -- run_limited env -u LD_PRELOAD "$onehop" run env

# A folder of its own, so that both objects are there whatever the build has.
mkdir "$scratch/lib"
cp "$plugin" "$scratch/lib/libonehop.so"
export ONEHOP_LIBRARY=$scratch/lib/libonehop.so
for object in plugin:libnccl-net-onehop audit:libonehop-audit; do
    expect "--via ${object%:*} without the object: one sentence" 1 "^onehop: run: this installation has no ${object#*:}.so " \
        1:^ -- run --via "${object%:*}" env
done
cp "$plugin" "$scratch/lib/libnccl-net-onehop.so"
net=$scratch/lib/libnccl-net-onehop.so
expect "NCCL_NET_PLUGIN: the full path, and no preload" 0 "^NCCL_NET_PLUGIN=$net\$" '!^LD_PRELOAD=' \
    -- run_limited env -u NCCL_NET_PLUGIN "$onehop" run --via plugin env
NCCL_NET_PLUGIN=aws,other expect "NCCL_NET_PLUGIN: in front of a list" 0 "^NCCL_NET_PLUGIN=$net,aws,other\$" \
    -- run --via plugin env
NCCL_NET_PLUGIN=none expect "NCCL_NET_PLUGIN=none: no other plugin" 0 "^NCCL_NET_PLUGIN=$net\$" -- run --via plugin env
mkdir "$scratch/site"
cp "$plugin" "$scratch/site/libnccl-net.so"
LD_LIBRARY_PATH=$scratch/site:$LD_LIBRARY_PATH run_limited env -u NCCL_NET_PLUGIN "$onehop" run --via plugin env
expect "the site's own libnccl-net.so stays" 0 "^NCCL_NET_PLUGIN=$net,libnccl-net.so\$"
SIMNODE_NCCL_VERSION=22702 LD_LIBRARY_PATH=$scratch/site:$LD_LIBRARY_PATH \
    run_limited env -u NCCL_NET_PLUGIN "$onehop" run --via plugin env
expect "no list for an NCCL that cannot read one" 0 "^NCCL_NET_PLUGIN=$net\$" 'libnccl-net.so is left out'
SIMNODE_NCCL_VERSION=22702 NCCL_NET_PLUGIN=aws expect "nor is another plugin taken away" 1 \
    'NCCL 2.27.2 takes one network plugin only' -- run --via plugin env
echo 'unsigned la_version(unsigned version) { return version; }' >"$scratch/audit.c"
if $CC -shared -fPIC -o "$scratch/lib/libonehop-audit.so" "$scratch/audit.c" 2>"$scratch/cc.log"; then
    expect "--via audit: both variables" 0 "^LD_PRELOAD=$scratch/lib/libonehop.so\$" \
        "^LD_AUDIT=$scratch/lib/libonehop-audit.so\$" -- run --via audit env
else
    tap_skip "--via audit: both variables" "no compiler"
fi
mkdir "$scratch/a b" "$scratch/a,b"
cp "$plugin" "$scratch/a b/libonehop.so"
cp "$plugin" "$scratch/a,b/libonehop.so"
cp "$plugin" "$scratch/a,b/libnccl-net-onehop.so"
ONEHOP_LIBRARY="$scratch/a b/libonehop.so" expect "a path that cannot be preloaded" 1 \
    "LD_PRELOAD accepts no path with ' ' in it" -- run env
ONEHOP_LIBRARY="$scratch/a,b/libonehop.so" expect "a path that cannot stand in a list" 1 \
    "NCCL_NET_PLUGIN accepts no path with ',' in it" -- run --via plugin env
# Nothing is loaded from these paths: they only have the names.
# run_behind PRELOAD: onehop run with that preload, which is not the test's.
run_behind() {
    run_limited bash -c 'LD_PRELOAD=$1 exec "$0" run env' "$onehop" "$1"
}
runtime=/nowhere/libasan.so.8 ours=$scratch/lib/libonehop.so
for front in "$runtime" "$runtime:/nowhere/libubsan.so.1" /nowhere/libclang_rt.asan-x86_64.so; do
    expect "behind ${front//:/ and }" 0 "^LD_PRELOAD=$front:$ours:/nowhere/libother.so\$" \
        -- run_behind "$front /nowhere/libother.so"
done
expect "behind a sanitizer's runtime alone" 0 "^LD_PRELOAD=$runtime:$ours\$" -- run_behind "$runtime"
expect "behind a runtime that others precede" 0 "^LD_PRELOAD=/nowhere/libmylibasan.so $runtime:$ours:libm.so.6\$" \
    -- run_behind "/nowhere/libmylibasan.so $runtime libm.so.6"
expect "in front of what only sounds like one" 0 "^LD_PRELOAD=$ours:/nowhere/libmylibasan.so\$" \
    -- run_behind /nowhere/libmylibasan.so
# A program that brings a runtime of its own; not every compiler has one.
echo 'int main(void) { return 0; }' >"$scratch/empty.c"
for sanitizer in address thread undefined; do
    if gcc -fsanitize=$sanitizer "$scratch/empty.c" -o "$scratch/empty" 2>/dev/null && "$scratch/empty" 2>/dev/null; then
        ONEHOP_LIBRARY=$plugin run "$scratch/empty"
        expect "a program with the runtime of -fsanitize=$sanitizer" 0
        ASAN_OPTIONS=exitcode=7 ONEHOP_LIBRARY=$plugin run env
        expect "and its settings stay" 0 '^ASAN_OPTIONS=.*:exitcode=7$'
    else
        tap_skip "a program with the runtime of -fsanitize=$sanitizer" "gcc has none here"
    fi
done
ONEHOP_LIBRARY=lib/libonehop.so expect "a relative path is made a full one" 0 "^LD_PRELOAD=$ours\$" \
    -- run_limited env -C "$scratch" "$onehop" run env
ONEHOP_LIBRARY=/nowhere/x.so expect "ONEHOP_LIBRARY that is not there" 1 'ONEHOP_LIBRARY=/nowhere/x.so: No such file' \
    -- run env
unset ONEHOP_LIBRARY

# --- where it finds its files

ln -s "$onehop" "$scratch/link"
expect "called by a symbolic link" 0 "^LD_PRELOAD=$plugin\$" -- run_limited "$scratch/link" run env
# An installed tree, and the same moved elsewhere.
make -s -C "$abs_top_builddir" install DESTDIR="$scratch/stage" >"$scratch/install.log" 2>&1
tree=$(cd "$(dirname "$(find "$scratch/stage" -path '*/bin/onehop')")/.." && pwd)
expect "an installed tree" 0 "^LD_PRELOAD=$tree/lib.*/libonehop.so\$" -- run_limited "$tree/bin/onehop" run env
mv "$tree" "$scratch/moved"
expect "a relocated tree" 0 "^LD_PRELOAD=$scratch/moved/lib.*/libonehop.so\$" \
    -- run_limited "$scratch/moved/bin/onehop" run env
mkdir -p "$scratch/apart/flat" "$scratch/apart/bare"
cp "$onehop" "$plugin" "$scratch/apart/flat"
expect "all in one folder" 0 "^LD_PRELOAD=$scratch/apart/flat/libonehop.so\$" \
    -- run_limited "$scratch/apart/flat/onehop" run env
cp "$onehop" "$scratch/apart/bare"
if [ -e "$(sed -n 's/^libdir = //p' "$abs_top_builddir/Makefile")/libonehop.so" ]; then
    tap_skip "libonehop.so is nowhere" "one is installed"
else
    run_limited "$scratch/apart/bare/onehop" run env
    expect "libonehop.so is nowhere: one sentence" 1 '^onehop: run: libonehop.so is neither in .*; ONEHOP_LIBRARY can name it'
fi

# --- a program cannot tell

for with in '' --stats; do
    say="run${with:+ $with}"
    expect "$say: exit status" 37 -- run $with -- bash -c 'exit 37'
    expect "$say: ended by a signal" $((128 + $(kill -l USR1))) -- run $with -- bash -c 'kill -USR1 $$'
    expect "$say: not found" 127 'nothing: No such file' -- run $with -- "$scratch/nothing"
    run $with -- cat <<<hello
    expect "$say: stdin" 0 '^hello$'
    ignored=$(timeout 10 grep SigIgn /proc/self/status) # as run_limited has it, which ends ignoring of some
    expect "$say: ignored signals" 0 "^$ignored\$" -- run $with -- grep SigIgn /proc/self/status
    touch "$scratch/plain"
    expect "$say: not executable" 126 'plain: Permission denied' -- run $with -- "$scratch/plain"
    # A signal sent to the command is the program's; its handler decides.
    "${interruptible[@]}" "$onehop" run $with -- bash -c \
        'trap "echo got it; exit 5" TERM; echo ready; for ((i = 0; i < 400; i++)); do sleep 0.05; done' >"$out" 2>&1 &
    job=$!
    await 10 grep -q ready "$out"
    kill -TERM $job
    status=0
    wait $job || status=$?
    expect "$say: SIGTERM goes to the program" 5 'got it'
done
"$onehop" run -- bash -c 'echo pid $$' >"$out" 2>&1 &
job=$! status=0
wait $job || status=$?
expect "run: becomes the program" 0 "^pid $job\$"
# The command is killed outright: nothing stays behind.
TMPDIR=$scratch "$onehop" run --stats -- bash -c 'echo $$ >'"$scratch/pid"'; exec sleep 60' >"$out" 2>&1 &
job=$!
await 10 test -s "$scratch/pid"
kill -KILL $job
wait $job 2>/dev/null
await 5 has_died "$(cat "$scratch/pid")"
tap_point $? "run --stats: the program dies with it" "process $(cat "$scratch/pid") is still there"
rm -f "$scratch"/onehop-stats.?????? # a killed command leaves its file
# The kernel tells only the leader of a session that its terminal has hung up. Here that is the command.
hang_up='import os, pty, signal, sys
pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while b"ready" not in os.read(terminal, 100):
    pass
os.close(terminal)
print("ended by signal", os.WTERMSIG(os.waitpid(pid, 0)[1]))'
if command -v python3 >/dev/null; then
    expect "run --stats: its terminal hangs up, and the program is told" 0 '^ended by signal 1$' \
        -- run_limited python3 -c "$hang_up" "$onehop" run --stats -- bash -c 'echo ready; exec sleep 60'
else
    tap_skip "run --stats: its terminal hangs up" "no python3"
fi

# --- the sums

export TMPDIR=$scratch
expect "--stats: all served, and no fallback is named" 0 'stats: rank' '^onehop: 12 served: allreduce$' \
    '^onehop: 12 of 12 collective calls served, 1386 bytes, in 3 processes$' '!onehop: .*fallbacks' \
    -- run --stats -- "$app" --nranks 3 --counts 7,70 --types f32,f16
expect "--stats: by collective" 0 '^onehop: 10 of 10 collective calls served, 392 bytes, in 2 processes$' \
    '^onehop: 2 served: allgather$' '^onehop: 2 served: reducescatter$' '^onehop: 4 served: broadcast$' \
    -- sums --collectives $kinds,broadcast --batch 5
ONEHOP_MAX_BYTES=1K expect "--stats: by size" 0 '^onehop: 2 of 4 collective calls' '^onehop: 2 fallbacks: a size ' \
    -- sums --counts 7,257 --types f32
ONEHOP_MAX_BYTES=0 expect "--stats: nothing fits" 0 '^onehop: 0 of 2 collective calls' \
    '^onehop: 2 fallbacks: .* leave no message to serve' -- sums
# (Each rank may name its own pair.)
SIMNODE_TOPOLOGY=pcie-only expect "--stats: not served, with the reason" 0 '^onehop: 0 of 4 collective calls' \
    '^onehop: [24] fallbacks: the communicator is not served: .*NVLink' -- sums --counts 7,8
expect "--stats: two ranks of one process" 0 '^onehop: 2 of 2 collective calls served, .* in 1 process$' \
    -- sums --local 2
ONEHOP_STATS=0 expect "ONEHOP_STATS=0: the sum alone" 0 '^onehop: 2 of 2 ' '!stats:' -- sums
ONEHOP_DISABLE=1 expect "--stats: onehop is off" 0 '^onehop: 0 of 2 collective calls' \
    '^onehop: 2 fallbacks: .* made by .* while onehop was off' -- sums
expect "--stats: no communicator at all" 0 '^onehop: no communicator was seen' -- run --stats -- true
expect "--stats: env -i takes onehop away, and that is said" 0 '^ok' '^onehop: no communicator was seen' \
    -- run --stats -- env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" SIMNODE_TOPOLOGY=h200x4 "$app" --nranks 2 --counts 7

# By the other ways, with two ranks in one folder.
ctypes=$abs_top_srcdir/test/e2e/reach_ctypes.py
export SIMNODE_TOPOLOGY=h200x2
SIMNODE_NCCL_LAZY=1 run --via plugin --stats -- bash -c "$pair" "$linked" "$(new_folder)" linked
expect "--via plugin --stats, linked" 0 '^onehop: 10 of 12 collective calls served, .* in 2 processes$' \
    '^onehop: 2 fallbacks: the communicator is not served'
expect "--via plugin --stats, addresses from before the first communicator: that is said, and no sum of nothing" 0 \
    '^onehop: in 2 processes no collective call came to onehop: .* before the first communicator' \
    '!^onehop: [0-9]+ (of|handed)' \
    -- run --via plugin --stats -- bash -c "$pair" "$reach" "$(new_folder)" dlsym:libnccl.so.2
REACH_IDLE=1 run --via plugin --stats -- bash -c "$pair" "$reach" "$(new_folder)" dlsym:libnccl.so.2
expect "--via plugin --stats, a program that makes no call: nothing is said of it that is not so" 0 \
    '^onehop: in 2 processes no collective call came to onehop: if the program makes any, they go to NCCL by addresses that'
expect "--via plugin --stats, addresses for each communicator" 0 '^onehop: [0-9]+ of 12 collective calls served' \
    '!before the first communicator' \
    -- run --via plugin --stats -- bash -c "$pair" "$reach" "$(new_folder)" late:libnccl.so.2
if [ -n "${OH_SANITIZERS-}" ]; then
    tap_skip "--via audit --stats" "a sanitizer's runtime does not run in an audit library"
else
    expect "--via audit --stats, linked" 0 '^onehop: 12 of 12 collective calls served, .* in 2 processes$' \
        -- run --via audit --stats -- bash -c "$pair" "$linked" "$(new_folder)" linked
fi
if [ -n "${OH_SANITIZERS-}" ] || ! command -v python3 >/dev/null; then
    tap_skip "--stats, ctypes" "no python3, or a sanitizer's runtime would have to come first"
else
    python='python3 "$0" 1 2 "$@" & python3 "$0" 0 2 "$@" && wait $!'
    expect "--via plugin --stats, ctypes" 0 '^onehop: in 2 processes no collective call came to onehop: ' \
        -- run --via plugin --stats -- bash -c "$python" "$ctypes" "$(new_folder)" libnccl.so.2
    expect "--via audit --stats, ctypes" 0 '^onehop: 12 of 12 collective calls served, .* in 2 processes$' \
        -- run --via audit --stats -- bash -c "$python" "$ctypes" "$(new_folder)" libnccl.so.2
fi
# Several signals at once, of which one at a time is passed on. The command is stopped, so that all wait with the program's end.
run --stats -- bash -c 'command=$PPID; kill -STOP $command; kill -USR1 $command; kill -USR2 $command; kill -TERM $command
    { sleep 0.3; kill -CONT $command; } >/dev/null 2>&1 & exit 3'
expect "--stats: signals that come with the program's end" 3 '^onehop: no communicator was seen'
tap_empty "$(find "$scratch" -name 'onehop-stats.*')" "no file of statistics is left"
TMPDIR=/nowhere run --stats -- true
expect "--stats: no room for the file" 1 '/nowhere/onehop-stats'
# A disk of its own, full before the program begins, or filled by it.
mkdir "$scratch/disk"
# shellcheck disable=SC2016
on_disk='mount -t tmpfs -o size=256k none "$0" || exit 99
    [ -z "$1" ] || head -c 300k /dev/zero >"$0/filler" 2>/dev/null
    shift
    TMPDIR=$0 "$@"'
run_limited unshare -rm sh -c "$on_disk" "$scratch/disk" full "$onehop" run --stats -- echo begun
if [ "$status" = 99 ] || grep -q '^unshare: ' "$out"; then
    tap_skip "--stats: a full disk" "tmpfs cannot be mounted here"
else
    expect "--stats: a full disk: one sentence, and the program does not begin" 1 "^onehop: run: $scratch/disk/.*: No space left" '!begun' 1:.
    # shellcheck disable=SC2016
    expect "--stats: a program that fills the disk" 0 '^onehop: 2 of 2 collective calls served, .* in 2 processes$' \
        -- run_limited unshare -rm sh -c "$on_disk" "$scratch/disk" '' "$onehop" run --stats -- \
        sh -c 'head -c 300k /dev/zero >"$TMPDIR/filler" 2>/dev/null; exec "$@"' sh "$app" --nranks 2 --counts 7
fi
# shellcheck disable=SC2016
expect "--stats: a record that is cut is told" 0 '^onehop: run: .*/onehop-stats.*: a record is cut, as on a full disk: calls are missing here$' \
    -- run --stats -- sh -c 'printf "{\"pid\":1,\"comm\":" >>"$ONEHOP_STATS_FILE"'

# --- usage

expect "no program" 2 'no program given' -- run
expect "an unknown way" 2 'expected preload, plugin, audit$' -- run --via magic true
tap_done
