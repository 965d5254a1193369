# SPDX-License-Identifier: MIT
# onehop tune on the simulated node: what it measures, what it writes and where, that the plugin takes it, and what becomes
# of it when time runs out, or a signal comes.
. "$abs_top_srcdir/test/e2e/lib.sh"

export SIMNODE_TOPOLOGY=h200x2 ONEHOP_DEBUG=WARN ONEHOP_STATS=0
export XDG_CACHE_HOME=$scratch/cache
name=SIMULATED-NVIDIA-H200-n2-driver-580.00.00-nccl-2.28.9.tuning
err=$scratch/err work=$scratch/work
mkdir "$work" "$scratch/tmp"
export TMPDIR=$scratch/tmp
small=(--iters 2 --rounds 2 --time 300)

# tune ARGUMENT...: sets $status, fills $out (stdout) and $err.
tune() {
    run_limited "$onehop" tune "$@"
}

# --- usage ---------------------------------------------------------------------------------------------------------

for arguments in "-n 1" "-n 9" "-n 2,3" "-b 0" "-b 2K -e 1K" "-b 1 -e 1M" "-d ring" "--collective reduce" "--rounds 0" "--time 0" "more"; do
    # shellcheck disable=SC2086
    expect_sentence "wrong usage: $arguments" 2 '^onehop: tune: ' -- tune $arguments
done
expect "more ranks than GPUs: exit status 1" 1 'CUDA sees 2' -- tune -n 4 "${small[@]}"
CUDA_VISIBLE_DEVICES=1 refuses "one GPU" 1 \
    '^onehop: tune: at least 2 GPUs are needed; CUDA sees 1 here$' -- tune "${small[@]}"

refuses "no size holds an element of the types" 2 '^onehop: tune: --minbytes 1 --maxbytes 2: no size holds an element' \
    -- tune -b 1 -e 2 -d float -o "$work/none.tuning" "${small[@]}"

# Where a table cannot be left is told before anything is measured: there is no report.
touch "$scratch/no-folder"
for place in "$scratch/none/x" "$scratch" /dev/full; do
    refuses "-o $place" 1 "^onehop: tune: $place: " \
        -- tune -b 2K -e 2K -o "$place" "${small[@]}"
done
XDG_CACHE_HOME=$scratch/no-folder refuses "a cache that cannot be made" 1 \
    'no-folder.* cannot be made|Not a directory' -- tune -b 2K -e 2K "${small[@]}"
refuses "stdout is full: no table" 1 'the report cannot be written: No space' \
    -- run_full "$onehop" tune -b 2K -e 2K -o "$work/kept.tuning" "${small[@]}"

# --- a table for the cache -----------------------------------------------------------------------------------------

expect "each size has its times beside stock NCCL's, eager and in a graph; in a pipe there is no progress" 0 SIMULATED silent \
    '3:^ +[124]K +(oneshot|twoshot|nccl) .*# graph [0-9.]+ us, stock [0-9.]+; eager [0-9.]+ us, stock [0-9.]+$' \
    -- tune --simulated -b 1K -e 4K "${small[@]}"
table=$XDG_CACHE_HOME/onehop/$name
[ "$(ls -A "$XDG_CACHE_HOME/onehop")" = "$name" ] && grep -qE "^# $table: ([5-7]) of \\1 candidates" "$out" && tail -n +2 "$out" | cmp -s - "$table" &&
    grep -q '^  gpu SIMULATED NVIDIA H200$' "$table" && grep -q '^  source SIMULATED' "$table"
tap_point $? "it lies in the cache under GPU, ranks, driver and NCCL, alone" "$(ls -lA "$XDG_CACHE_HOME/onehop")"

# What it chose is what serves: 4 KiB of fp32 and of int32 (2 of each for two ranks), by the row of the table.
ONEHOP_DEBUG=INFO ONEHOP_STATS=1 run_app --nranks 2 --counts 1024 --types f32,i32 --batch 4
expect_counts "the plugin takes it" "1:tuning table of rank 0: $table .SIMULATED" 0:WARN

# Times on this machine say nothing; so the table is made to say something.
sed -i '/^ *[0-9]/d; s/^ allgather$/  4K twoshot 2 64\n allgather/' "$table"
ONEHOP_DEBUG=INFO ONEHOP_STATS=1 run_app --nranks 2 --counts 1024 --types f32,i32 --batch 4
expect_served "by what stands in it" twoshot
expect_counts "and by nothing else" twoshot=8 oneshot=0

# Another collective: rows of its own, while those of allreduce stay what they were; and then it serves by them.
tune --collective allgather -b 4K -e 4K -d bfloat16 --eager "${small[@]}"
[ "$status" = 0 ] && [ "$(grep -cE '^ +4K +twoshot +2 +64$' "$table")" = 1 ] &&
    sed -n '/^ allgather$/,/^ reducescatter$/p' "$table" | grep -qE '^ +4K +(oneshot|nccl) .*# eager [0-9.]+ us, stock' &&
    [ "$(grep -cE '^ (allgather|reducescatter|broadcast)$' "$table")" = 3 ]
tap_point $? "--collective allgather: the rows of other collectives stay" "$(diagnosis; cat "$table")"
sed -i '/^ allgather$/,/^ reducescatter$/{/^ *[0-9]/d}; s/^ reducescatter$/  2K oneshot 1 64\n reducescatter/' "$table"
ONEHOP_DEBUG=INFO ONEHOP_STATS=1 run_app --nranks 2 --counts 256,257,200000 --collectives allgather,allreduce --batch 6
expect_counts "the plugin takes both" twoshot=4 allreduce=4 allgather=2 size=6 0:WARN

# --- a file; another number of ranks; one type ---------------------------------------------------------------------

file=$scratch/all.tuning
for n in 2 3; do
    SIMNODE_TOPOLOGY=h200x3 expect "$n ranks" 0 -- tune -n $n -b 2K -e 2K -d bfloat16 --eager -o "$file" "${small[@]}"
    expect_file "--output has the table for $n ranks" "$file" '1:^table$' "1:^  ranks $n\$" '1:eager .* us, stock' \
        '!graph .* us'
    [ "$(grep -c '^  .*# as shipped$' "$file")" -gt 4 ]
    tap_point $? "what was not measured is as shipped: larger sizes" "$(cat "$file")"
    SIMNODE_TOPOLOGY=h200x3 ONEHOP_DEBUG=INFO ONEHOP_STATS=1 ONEHOP_TUNING_FILE=$file run_app --nranks $n --counts 40000,600 --types i32 --batch 2
    expect_served "$n ranks, integers"
done
sed -i '/^ *[0-9]/d; s/^ allgather$/  4K twoshot 2 64\n allgather/' "$file"
broadcast=(tune -n 3 --collective broadcast -b 2K -e 2K -d float --eager -o "$file" "${small[@]}")
SIMNODE_TOPOLOGY=h200x3 expect "--output, --collective broadcast" 0 -- "${broadcast[@]}"
expect_file "the file's rows of the others stay" "$file" '^ +4K +twoshot +2 +64$' 'eager .* us, stock'
sed -i 's/^  ranks 3$/  ranks 4/' "$file"
SIMNODE_TOPOLOGY=h200x3 expect "a file for another number of ranks: that is said" 0 \
    "WARN tuning table $file line .*: a table for 4 x .*; nothing of it is kept" -- "${broadcast[@]}"
expect_file "nothing of it is kept" "$file" '!^ +4K +twoshot +2 +64$'
expect "-o -: the table on stdout" 0 silent -- tune -b 2K -e 2K -d float --eager -o - "${small[@]}"
[ "$(sed -n '1p; $p' "$out" | xargs)" = "onehop-tuning 3 end" ]
tap_point $? "... and nothing else" "$(diagnosis)"
folder=$scratch/$(printf '%0200d/%0200d/%0200d' 1 2 3)
mkdir -p "$folder"
tune -b 2K -e 2K -d float --eager -o "$folder/long.tuning" "${small[@]}"
[ "$status" = 0 ] && [ "$(head -n 1 "$folder/long.tuning")" = "onehop-tuning 3" ] && grep -q "^# $folder/long.tuning: " "$out"
tap_point $? "-o: a long path" "$(diagnosis; find "$scratch/$(printf %0200d 1)")"
# A size is that of the larger buffer: of 8 bytes each of two ranks has a float.
expect "sizes of which a rank has no element are left out" 0 '^ +8 +(oneshot|nccl) .*# graph ' \
    -- tune -b 4 -e 8 -d float,double --collective allgather --graph -o - "${small[@]}"

# The user's settings neither force an algorithm on trials nor turn onehop off.
ONEHOP_ALGO=twoshot ONEHOP_MAX_BYTES=1K ONEHOP_DISABLE=1 ONEHOP_COLLECTIVES=broadcast ONEHOP_TUNING_FILE=none expect \
    "settings that would stand in the way do not" 0 -- tune -b 2K -e 2K -d float --eager -o "$file" "${small[@]}"

# --- what goes wrong -----------------------------------------------------------------------------------------------

rm -rf "$XDG_CACHE_HOME"
expect "a time that runs out" 0 ': [1-3] of [5-7] candidates' \
    -- tune -b 256K -e 256K -d float --graph --iters 20 --rounds 50 --time 1
expect_file "what was measured counts, the shipped choice first" "$table" '^ +256K  (oneshot|nccl) .*graph .* us, stock'
rm -rf "$XDG_CACHE_HOME"
NCCL_P2P_DISABLE=1 expect "GPUs that onehop does not serve: exit status 1, the reason" 1 'hands this communicator back' \
    -- tune -b 2K -e 2K "${small[@]}"
SIMNODE_FAIL=cuLaunchKernelEx expect "a driver that fails: the same" 1 '^onehop: ' -- tune -b 2K -e 2K "${small[@]}"
[ ! -e "$table" ]
tap_point $? "no table" "$(ls -R "$XDG_CACHE_HOME" 2>&1)"

# Interrupted while it measures: ends by that signal, leaves no process and no file.
has_ranks() {
    [ "$(cat /proc/$pid/task/$pid/children 2>/dev/null | wc -w)" -ge 2 ]
}
for signal in INT TERM; do
    signalled $signal has_ranks "$onehop" tune -b 1M -e 8M --iters 1000 --rounds 900 -o "$work/kept.tuning"
    expect_ended "SIG$signal" $((128 + $(kill -l $signal))) "$work"
done

# A rank that does not go on, on a clock that is put forward by 1,000 s.
cat >"$scratch/clock.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *time)
{
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const int status = real(id, time);
    time->tv_sec += access(getenv("CLOCK_FORWARD"), F_OK) == 0 ? 1000 : 0;
    return status;
}
END
if [ -n "${OH_SANITIZERS-}" ]; then
    tap_skip "a rank that does not go on" "a sanitizer's runtime would have to come first"
elif build_or_skip "a rank that does not go on" -shared -fPIC -o "$scratch/clock.so" "$scratch/clock.c"; then
    "${interruptible[@]}" CLOCK_FORWARD="$scratch/forward" LD_PRELOAD="$scratch/clock.so" "$onehop" tune -b 8M -e 8M -n 2 -o "$work/kept.tuning" >"$out" 2>"$err" &
    pid=$!
    await 60 has_ranks
    children=$(cat /proc/$pid/task/$pid/children)
    kill -STOP $children
    sleep 0.2 # the command has seen what they had done
    touch "$scratch/forward"
    status=0
    wait $pid || status=$?
    expect_sentence "a rank that does not go on" 1 '^onehop: tune: no progress for 120 s; all ranks are ended$'
    expect_ended "a rank that does not go on" 1 "$work"
fi
tap_done
