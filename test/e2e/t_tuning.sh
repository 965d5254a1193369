# SPDX-License-Identifier: MIT
# The plugin and tuning tables: the user's is taken, rank 0's by all ranks, in whatever way a communicator is made; one
# that cannot be taken gives one WARN and leaves the shipped one.
. "$abs_top_srcdir/test/e2e/lib.sh"

work=(--nranks 4 --counts 250,65537 --batch 2)

# head_of RANKS [GPU]: the head of a table for the simulated node.
head_of() {
    printf 'onehop-tuning 3\ntable\n gpu %s\n ranks %d\n driver *\n nccl *\n source a test\n' "${2-SIMULATED NVIDIA H200}" "$1"
}

# table_of ALGORITHM RANKS...: a file with tables in which that algorithm has all up to 64 KiB.
table_of() {
    local file=$scratch/$1.tuning n algorithm=$1
    shift
    for n in "$@"; do
        head_of "$n"
        printf '64K %s 3 96\nend\n' "$algorithm"
    done | awk 'NR == 1 || !/^onehop-tuning/' >"$file"
    echo "$file"
}
oneshot=$(table_of oneshot 2 4)
twoshot=$(table_of twoshot 2 4)

# expect_shipped NAME LINES [PATTERN]: served as without a table (4 ranks, 1000 bytes and 128 KiB + 4 of fp32, which
# the tables above fall back), with so many WARNs, the one of them with that text.
expect_shipped() {
    run_first "$@"
    set -- "${asked[@]}"
    expect_counts "$1: $2 WARN, and the shipped table" "$2:WARN" "$2:WARN.*${3-.}" '1+:tuning table of rank 0: shipped'
    expect_served "$1" oneshot twoshot
}

# --- whose table, and which ----------------------------------------------------------------------------------------

expect_shipped "nothing is set" 0 -- run_work
ONEHOP_TUNING_FILE=$twoshot expect_served "a table" twoshot -- run_app --nranks 4 --counts 250,16384 --batch 2
expect_counts "INFO names the file, and no other algorithm serves" oneshot=0 "1:tuning table of rank 0: $twoshot .a test."
ONEHOP_TUNING_FILE=$twoshot expect_counts "above the end of the table NCCL serves" served=4 fallback=4 \
    -- run_app --nranks 4 --counts 16384,16385 --batch 2

{ head_of 4; printf '1K nccl\n4K twoshot 3 96\nend\n'; } >"$scratch/middle.tuning"
ONEHOP_TUNING_FILE=$scratch/middle.tuning expect_counts "fallbacks below what the table serves are counted by size" \
    served=4 fallback=8 size=8 -- run_app --nranks 4 --counts 100,1000,2000 --batch 3

# Rows of each collective, by the size of the larger buffer; reduce-scatter has those of the model.
{
    head_of 4
    printf '64K twoshot 3 96\n allgather\n4K oneshot 2 64\n broadcast # from any root\n1K nccl\n8K oneshot 1 32\nend\n'
} >"$scratch/kinds.tuning"
ONEHOP_TUNING_FILE=$scratch/kinds.tuning run_app --nranks 4 --counts 200,1000 --batch 8 --collectives $kinds
expect_counts "each collective has rows of its own" allreduce=8 twoshot=8 allgather=4 reducescatter=8 broadcast=4 size=8 0:WARN

run_app --nranks 4 --counts 250,16384 --batch 2 --rank-env "0:ONEHOP_TUNING_FILE=$oneshot" --rank-env "1:ONEHOP_TUNING_FILE=$twoshot" \
    --rank-env 2:ONEHOP_TUNING_FILE=none
expect_served "ranks with different tables" oneshot
expect_counts "rank 0's is used by all" twoshot=0 oneshot=8
expect_shipped "a table on another rank than 0 is not read" 0 \
    -- run_work --rank-env "3:ONEHOP_TUNING_FILE=$twoshot"

ONEHOP_TUNING_FILE=$twoshot expect_right "set up in the background" \
    -- run_app --nranks 4 --make nonblocking --counts 250 --batch 4 --iterations 4 --pause 1000
expect_counts "set up in the background: with the table" twoshot=1+ oneshot=0
ONEHOP_TUNING_FILE=$twoshot expect_served "children of a split" twoshot \
    -- run_app --nranks 4 --make split --split-colors 0,0,1,1 --counts 250 --batch 2
expect_counts "children of a split: with the table for their number" oneshot=0

cache=$scratch/cache
mkdir -p "$cache/onehop" "$scratch/home/.cache/onehop"
name=SIMULATED-NVIDIA-H200-n4-driver-580.00.00-nccl-2.28.9.tuning
cp "$twoshot" "$cache/onehop/$name"
cp "$oneshot" "$scratch/home/.cache/onehop/$name"
XDG_CACHE_HOME=$cache expect_served "the cache" twoshot -- run_app --nranks 4 --counts 250,16384 --batch 2
expect_served "the cache in the home folder" oneshot -- run_with "$plugin" env -u XDG_CACHE_HOME HOME="$scratch/home" \
    "$app" --timeout $limit --nranks 4 --counts 250,16384 --batch 2
XDG_CACHE_HOME=$cache ONEHOP_TUNING_FILE=none expect_shipped "none" 0 -- run_work
XDG_CACHE_HOME=$cache SIMNODE_NCCL_VERSION=22803 expect_shipped "another NCCL than the cache's" 0 -- run_work
XDG_CACHE_HOME=$cache ONEHOP_ALGO=oneshot expect_served "ONEHOP_ALGO goes before a table" oneshot \
    -- run_app --nranks 4 --counts 250 --batch 2

# --- what cannot be taken ------------------------------------------------------------------------------------------

# expect_refused NAME FILE PATTERN: three communicators, one WARN. (All that the text may have wrong: test/unit/t_tuning.c.)
expect_refused() {
    ONEHOP_TUNING_FILE=$2 expect_shipped "$1" 1 "tuning table $2 $3.*using the shipped table" \
        -- run_work --comms 3 --batch 6
}
bad=$scratch/bad.tuning
sed 's/twoshot/ring/' "$twoshot" >"$bad"
expect_refused "an algorithm that is none" "$bad" "line 8: .*accepted:"
sed 's/^end/allgather\n1K twoshot 1 32\nend/' "$twoshot" >"$bad"
expect_refused "an algorithm that the collective has not" "$bad" "line 10: a row that cannot be served"
for lines in 'broadcast\nallgather' 'allgather\nallgather' 'allreduce' 'reduce'; do
    sed "0,/^end/s/^end/$lines\nend/" "$twoshot" >"$bad"
    expect_refused "collectives out of order, or none: $lines" "$bad" "line [0-9]*: '[a-z]*' .accepted: .*a collective, or end"
done
# The largest size that one-shot takes, as doc/tuning.md has it.
most=$(sed -n 's/.* one-shot serves up to \([0-9]*\) MiB with eight ranks.*/\1/p' "$abs_top_srcdir/doc/tuning.md")
for size in "$most:0" "$((most + 1)):1"; do
    { head_of 8 '*'; printf '%sM oneshot\nend\n' "${size%:*}"; } >"$bad"
    ONEHOP_TUNING_FILE=$bad expect_counts "eight ranks, one-shot up to ${size%:*} MiB: refused ${size#*:} times" \
        "${size#*:}:WARN.*a row that cannot be served" -- run_app --nranks 8 --counts 7
done
{ head_of 4 'NVIDIA H200'; echo end; } >"$bad"
expect_refused "a real GPU's table on simulated GPUs" "$bad" "line .*a table for 4 x NVIDIA H200.*accepted: 4 x SIMULATED"
expect_refused "no such file" "$scratch/none.tuning" "cannot be opened"
rm -f "$bad"
mkfifo "$bad"
expect_refused "a pipe" "$bad" "is no regular file"
rm -f "$bad"
head -c 70000 /dev/zero >"$bad"
expect_refused "a file that is too large" "$bad" "line 0: not a tuning table .accepted: at most 65536 bytes."
ONEHOP_TUNING_FILE=relative expect_shipped "a path that is not absolute" 1 'ONEHOP_TUNING_FILE=relative is not accepted' \
    -- run_work
sed 's/twoshot/ring/' "$twoshot" >"$cache/onehop/$name"
XDG_CACHE_HOME=$cache expect_shipped "a damaged cache" 1 "line 8: " -- run_work

expect_no_files
tap_done
