# SPDX-License-Identifier: MIT
# What SECURITY.md promises, seen from outside: no secrets in logs, no files but the segment's, another user at a live
# segment, and a name that is known beforehand and was taken.
. "$abs_top_srcdir/test/e2e/lib.sh"

secrets=$scratch/secrets

# turned HEX: the bytes of each 8-byte word in reverse, as a number is printed.
turned() {
    local word
    for word in ${1:0:16} ${1:16:16}; do
        sed 's/\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)/\8\7\6\5\4\3\2\1/' <<<"$word" | tr -d '\n'
    done
}

# take_key ID: sets $secret_key, the hash of a unique id that is the communicator's key, and $file, the hash of the key that, but for
# the build's part, names its file. False when they cannot be had. (test/unit/t_segment.c has vectors.)
take_key() {
    read -r secret_key file < <("$abs_top_builddir/test/e2e/key_of_id" "$1")
    [[ $secret_key/$file =~ ^[0-9a-f]{32}/[0-9a-f]{32}$ ]]
}

# --- secrets ---

# These are what onehop uses: a job that is killed leaves a file of that name.
rm -f "$secrets"
(plugin=$faulty_plugin
    SIMNODE_SECRETS=$secrets SIMNODE_CALLER=libonehop.so SIMNODE_KILL=ftruncate:1 run_app --nranks 2 --counts 1000)
id=$(sed -n 's/^id //p' "$secrets")
[ -n "$id" ] && take_key "$id" && ls "$shm" | grep -q "$file"
tap_point $? "this test knows how keys are made" "$id $file $(ls "$shm")"
rm -f "$shm"/*

rm -f "$secrets"
SIMNODE_SECRETS=$secrets ONEHOP_DEBUG=TRACE ONEHOP_STATS=1 ONEHOP_STATS_FILE=$scratch/stats run_app --nranks 3 \
    --make split --split-colors 0,0,0 --counts 1000
[ "$status" = 0 ] && [ "$(count_of 'served by onehop')" -ge 3 ] && [ "$(count_of TRACE)" -ge 3 ] &&
    [ "$(grep -c '^handle ' "$secrets")" -ge 3 ] && [ "$(grep -c '^id ' "$secrets")" = 1 ]
tap_point $? "a job with all that can be said, and secrets" "$(cat "$secrets"; diagnosis)"
take_key "$(sed -n 's/^id //p' "$secrets")"
tap_point $? "the key of that job" "$secret_key $file"
# Any half of a secret counts, with its bytes in either order.
found=
for secret in "$secret_key" $(sed -n 's/^handle //p; s/^id simnccl-//p' "$secrets"); do
    for text in "$secret" "$(turned "$secret")"; do
        for part in $(sed 's/.\{8\}/& /g' <<<"$text"); do
            ! grep -qiE "$part" "$out" "$scratch/stats" 2>/dev/null || found="$found $part"
        done
    done
done
tap_empty "$found" "no unique id, key or handle in what is said"

# --- files ---

# list_written COMMAND...: what a run leaves in the folders that programs write to, each empty before.
list_written() {
    local home=$scratch/home-$1
    rm -rf "$home" && mkdir -p "$home/home" "$home/cache" "$home/tmp" "$home/work"
    (cd "$home/work" && unset ONEHOP_SHM_DIR &&
        HOME=$home/home XDG_CACHE_HOME=$home/cache TMPDIR=$home/tmp SIMNODE_REPORT= "$1" --nranks 2 --counts 1,1000 &&
        [ "$status" = 0 ] && echo right >"$scratch/right-$1")
    (cd "$home" && find . | sort)
}
stock=$(list_written run_stock) ours=$(list_written run_app)
[ -e "$scratch/right-run_app" ] && [ -e "$scratch/right-run_stock" ] && [ "$stock" = "$ours" ]
tap_point $? "nothing is written to the home, the cache, temporary files, or the folder of work" "$ours"

# --- another user ---

if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups true 2>/dev/null; then
    other() {
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@" >/dev/null 2>&1
    }
    chmod 1777 "$shm" # as /dev/shm is
    SIMNODE_NCCL_DELAY_US=3000000 LD_PRELOAD=$plugin timeout $limit "$app" --timeout $limit --nranks 2 \
        --make nonblocking --counts 1000 --pause 200 --batch 4 --iterations 3 >"$out" 2>&1 &
    job=$!
    await 10 compgen -G "$shm/onehop-*" >"$scratch/live"
    file=$(head -n 1 "$scratch/live")
    got=
    ! other cat "$file" || got="$got read"
    ! other bash -c "printf x >>'$file'" || got="$got written"
    ! other truncate -s 0 "$file" || got="$got cut"
    ! other flock -n "$file" true || got="$got locked"
    ! other rm -f "$file" || got="$got removed"
    ! other mv "$file" "$file.x" || got="$got renamed"
    ! other ln "$file" "$shm/link" || got="$got linked"
    ! other chmod 666 "$file" || got="$got opened up"
    [ -e "$file" ] || got="$got (it has gone too soon)"
    tap_empty "$got" "another user can do nothing to a live segment"
    status=0
    wait "$job" || status=$?
    expect_counts "the job is served" '2:served by onehop'
    chmod 700 "$shm"
else
    tap_skip "another user" "this user cannot become another"
fi
expect_no_files

# --- a name that is known ---

# An id without a random part (NCCL_COMM_ID): whoever knows it can be first. What they put there stays as it is.
export NCCL_COMM_ID=127.0.0.1:$RANDOM$$
rm -f "$secrets"
SIMNODE_SECRETS=$secrets expect_served "a known id" -- run_app --nranks 2 --counts 1000
id=$(sed -n 's/^id //p' "$secrets")
(plugin=$faulty_plugin
    SIMNODE_CALLER=libonehop.so SIMNODE_KILL=posix_fallocate:1 run_app --nranks 2 --counts 1000)
[ -z "$id" ] || rm -f /dev/shm/"$id"* # NCCL's own, of the job that was killed
take_key "$id"
tap_point $? "the key of a known id" "$secret_key $file"
name=$(ls -d "$shm"/onehop-*"$file")
size=$(stat -c %s "$name")
rm -f "$name"

# state: of what stands under the name. hostile NAME: a job whose name has been taken.
state() {
    stat -c '%F %s %a %u %h' "$name"
    [ ! -f "$name" ] || cksum <"$name"
}
hostile() {
    local before
    before=$(state)
    expect_counts "$1 under the name: right on stock NCCL" served=0 nccl_allreduce=1+ '2:falls back to NCCL: ' \
        -- run_app --nranks 2 --counts 1000
    tap_empty "$(diff <(echo "$before") <(state))" "$1 under the name: left as it was"
    rm -f "$name"
}
# (A folder, a FIFO, a file of another user: test/unit/t_segment.c.)
echo precious >"$scratch/precious"
ln -s "$scratch/precious" "$name"
hostile "a link"
[ "$(cat "$scratch/precious")" = precious ]
tap_point $? "nothing goes through the link" "$(cat "$scratch/precious")"
head -c "$size" /dev/urandom >"$name"
chmod 666 "$name"
hostile "a file that all may write to"
tap_done
