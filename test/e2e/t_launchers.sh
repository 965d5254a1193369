# SPDX-License-Identifier: MIT
# How programs come to be started under `onehop run`, and those that onehop cannot follow. (Launchers: t_loading.sh.)
. "$abs_top_srcdir/test/e2e/lib.sh"

library=$objects/libsimcaller.so
launch=$abs_top_srcdir/test/e2e/launch.py
export TMPDIR=$scratch SIMNODE_TOPOLOGY=h200x2

# launch COMMAND...: runs it by `onehop run --stats`. Fills $out.
launch() {
    run_limited "$onehop" run --stats -- "$@"
}

# expect_all NAME CALLS: the last command ended well; all its calls were served, and NCCL saw none.
expect_all() {
    expect_counts "$1: all served" "1:^onehop: $2 of $2 collective calls served" nccl_allreduce=0
}

# expect_none NAME: it ended well, by stock NCCL alone, and that is said.
expect_none() {
    expect_counts "$1: works on stock NCCL, and that is said" '1:^onehop: no communicator was seen' 0:stats: \
        '0:served by onehop'
}

launch env -i SIMNODE_TOPOLOGY=h200x2 bash -c "$pair" "$live" "$(new_id)"
expect_none "env -i between onehop run and the program"
run_limited env -i PATH="$PATH" TMPDIR="$scratch" ASAN_OPTIONS="${ASAN_OPTIONS-}" SIMNODE_TOPOLOGY=h200x2 \
    SIMNODE_REPORT="$SIMNODE_REPORT" \
    "$onehop" run --stats -- bash -c "$pair" "$live" "$(new_id)"
expect_all "env -i before onehop run" 6

if [ -n "$OH_SANITIZERS" ]; then
    tap_skip "python" "a sanitizer's runtime would have to come first"
elif ! command -v python3 >/dev/null; then
    tap_skip "python" "no python3"
else
    # Children of fork leave by _exit: their communicators are destroyed, so that they are counted all the same.
    launch python3 "$launch" fork "$library" "$live" "$(new_id)"
    expect_all "python, fork before NCCL is used" 6
    launch python3 "$launch" fork-after "$library" "$live" "$(new_id)"
    expect_all "python, fork after NCCL was used, and a new job by exec" 12
    child=$(sed -n 's/^child \([0-9]*\)$/\1/p' "$out")
    [ -n "$child" ] && [ "$(count_of "^onehop: [^ ]*:$child ")" = 0 ]
    tap_point $? "the forked child is left alone" "$(diagnosis)"
fi

# The dynamic linker keeps preloads out of set-user-ID programs. Another user's program, run by root, is one.
if [ "$(id -u)" != 0 ]; then
    tap_skip "a set-user-ID program" "not root"
elif [ -n "$OH_SANITIZERS" ]; then
    tap_skip "a set-user-ID program" "a sanitizer's runtime is not found by one"
else
    mkdir -m 777 "$scratch/open"
    chmod 755 "$scratch"
    cp "$live" "$scratch/setuid"
    chown 65534 "$scratch/setuid"
    chmod 4755 "$scratch/setuid"
    launch bash -c "$pair" "$scratch/setuid" "$scratch/open/id"
    if grep -q '^set-user-ID' "$out"; then
        expect_none "a set-user-ID program"
    else
        tap_skip "a set-user-ID program" "$(tail -n 1 "$out")"
    fi
    # Linked with onehop itself, as good as named in /etc/ld.so.preload: loaded, and inert.
    cp "$libs/libonehop.so" "$scratch/libonehop.so"
    $CC $OH_CPPFLAGS -I"$abs_top_srcdir/test/e2e" -o "$scratch/linked" "$abs_top_srcdir/test/e2e/sim_live.c" \
        -Wl,--no-as-needed "$scratch/libonehop.so" "$objects/libsimcaller.so" -Wl,-rpath,"$scratch:$objects" >"$out" 2>&1
    linked() {
        rm -f "$scratch/open/trace"
        SIMNODE_TRACE=$scratch/open/trace SIMNODE_CALLER=libonehop.so SIMNODE_REPORT=$scratch/open/report \
            run_limited bash -c "$pair" "$scratch/linked" "$scratch/open/$1"
        mv "$scratch"/open/report.* "$scratch"
    }
    linked id.plain
    [ "$status" = 0 ] && [ "$(count_of 'served by onehop')" = 2 ] && [ "$(report_of nccl_allreduce)" = 0 ] &&
        [ -s "$scratch/open/trace" ]
    tap_point $? "a program linked with onehop is served" "$(diagnosis)"
    chown 65534 "$scratch/linked"
    chmod 4755 "$scratch/linked"
    linked id.secure
    if grep -q '^set-user-ID' "$out"; then
        [ "$status" = 0 ] && [ "$(count_of 'onehop:')" = 0 ] && [ "$(report_of nccl_allreduce)" = 6 ] &&
            [ -e "$scratch/open/trace" ] && [ ! -s "$scratch/open/trace" ]
        tap_point $? "the same as a set-user-ID program: all calls go to NCCL, none of onehop's to the driver" "$(diagnosis)"
    else
        tap_skip "the same as a set-user-ID program" "$(tail -n 1 "$out")"
    fi
fi

expect "a statically linked NCCL works, and is not reached" 0 '^NCCL version 2.27.3\+static: result' \
    '^onehop: no communicator was seen' -- launch "$abs_top_builddir/test/e2e/sim_static"
tap_empty "$(find "$scratch" -name 'onehop-stats.*')" "no file of statistics is left"
tap_done
