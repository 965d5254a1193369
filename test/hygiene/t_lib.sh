# SPDX-License-Identifier: MIT
# scripts/lib.sh: oh_limited (the status of a command, its time limit, that it ends with the script), and the top folder.
. "$abs_top_srcdir/test/hygiene/tap.sh"
. "$abs_top_srcdir/test/e2e/commands.sh"
tap_scratch

# limited ARGUMENT...: a script of its own that runs oh_limited.
limited() {
    bash -c '. "$0"; oh_limited "$@"' "$abs_top_srcdir/scripts/lib.sh" "$@"
}

limited 20 true && ! limited 20 false
tap_point $? "the command's status"
limited 1 sleep 60
[ $? = 124 ]
tap_point $? "the time limit"

# xargs says by which signal a command has ended; a shell's status may be that of an exit.
for signal in INT:2 TERM:15 HUP:1; do
    rm -f "$scratch/pid"
    LC_ALL=C "${interruptible[@]}" xargs bash -c 'echo $$ >"$1"; . "$0"; oh_limited "${@:2}"' "$abs_top_srcdir/scripts/lib.sh" \
        "$scratch/script" 60 bash -c 'echo $$ >"$0.new" && mv "$0.new" "$0" && sleep 50' "$scratch/pid" </dev/null 2>"$scratch/ended" &
    await 10 test -e "$scratch/pid"
    command=$(cat "$scratch/pid")
    kill -"${signal%:*}" "$(cat "$scratch/script")"
    wait $!
    grep -q "by signal ${signal#*:}\$" "$scratch/ended" && [ -n "$command" ] && ! kill -0 "$command" 2>/dev/null
    tap_point $? "SIG${signal%:*} ends a script, which takes its command along" "command: $command; $(cat "$scratch/ended")"
done

# Machines whose linker knows libraries of another one, too.
mkdir "$scratch/bin"
printf '#!/bin/sh\nprintf "\\t%%s\\n" "libx.so.2 (libc6,AArch64) => /arm/libx.so.2" "libx.so.2 (libc6,x86-64) => /intel/libx.so.2"\n' >"$scratch/bin/ldconfig"
for machine in "x86_64 /intel" "aarch64 /arm"; do
    printf '#!/bin/sh\necho %s\n' "${machine% *}" >"$scratch/bin/uname"
    chmod +x "$scratch"/bin/*
    folder=$(PATH=$scratch/bin:$PATH LD_LIBRARY_PATH='' bash -c '. "$0"; oh_library_folder libx.so.2' "$abs_top_srcdir/scripts/lib.sh")
    [ "$folder" = "${machine#* }" ]
    tap_point $? "where ${machine% *} finds a library" "$folder"
done

# An nvcc behind another command.
mkdir -p "$scratch/toolkit"/{bin,include}
printf '#!/bin/sh\n' >"$scratch/toolkit/bin/an-nvcc"
chmod +x "$scratch/toolkit/bin/an-nvcc"
touch "$scratch/toolkit/include"/{cuda,nccl}.h
found=$(PATH=$scratch/toolkit/bin:$PATH bash -c '. "$0"; oh_find_toolkit "NVCC=env an-nvcc"; echo "$oh_nvcc $oh_lacks"' "$abs_top_srcdir/scripts/lib.sh")
[ "$found" = "$scratch/toolkit/bin/an-nvcc " ]
tap_point $? "NVCC=COMMAND NVCC: the toolkit of that nvcc" "$found"

# The arguments of configure that scripts/deb and rpm hand on.
for words in "" "--with-nccl=/n CFLAGS=-O2_-g CC=it's '' --x"; do
    mapfile -t words < <(tr ' _' '\n ' <<<"$words" | sed '/^$/d')
    text=$(bash -c '. "$0"; oh_quoted "$@"' "$abs_top_srcdir/scripts/lib.sh" "${words[@]}")
    eval "again=($text)"
    [ "${#again[@]}" = "${#words[@]}" ] && [ "${again[*]}" = "${words[*]}" ]
    tap_point $? "${#words[@]} words are quoted for a shell" "$text"
done

# The date of scripts/deb, by which all clones of a commit make the same package.
if command -v git >/dev/null; then
    mkdir "$scratch/clone"
    touch "$scratch/clone/NEWS.md"
    (cd "$scratch/clone" && git init -q && git add NEWS.md &&
        GIT_COMMITTER_DATE='1700000000 +0100' git -c user.name=x -c user.email=x commit -qm x) >"$scratch/git.log" 2>&1
    date=$(cd "$scratch/clone" && unset SOURCE_DATE_EPOCH && eval "$(grep '^date=' "$abs_top_srcdir/scripts/deb")" && echo "$date")
    [ "$date" = "Tue, 14 Nov 2023 22:13:20 +0000" ]
    tap_point $? "a Debian package has the date of the commit" "$date; $(cat "$scratch/git.log")"
    date=$(cd "$scratch/clone" && rm -rf .git && touch -d @1600000000 NEWS.md && unset SOURCE_DATE_EPOCH &&
        eval "$(grep '^date=' "$abs_top_srcdir/scripts/deb")" && echo "$date")
    [ "$date" = "Sun, 13 Sep 2020 12:26:40 +0000" ]
    tap_point $? "without git, that of NEWS.md" "$date"
else
    tap_skip "a Debian package has the date of the commit" "no git"
fi

# BUILD_DIR may have files of others.
mkdir -p "$scratch/dist/scripts" "$scratch/out/source"
touch "$scratch/out/source/theirs"
cp "$abs_top_srcdir/scripts/lib.sh" "$scratch/dist/scripts"
printf '#!/bin/sh\nprintf "dist-gzip:\\n\\ttouch onehop-1.tar.gz\\n" >Makefile\n' >"$scratch/dist/configure"
chmod +x "$scratch/dist/configure"
bash -c '. "$0"; oh_dist "$1"' "$scratch/dist/scripts/lib.sh" "$scratch/out" >"$scratch/dist.log" 2>&1
[ -e "$scratch/out/onehop-source/onehop-1.tar.gz" ] && [ -e "$scratch/out/source/theirs" ]
tap_point $? "a tarball for packages leaves what is others'" "$(cat "$scratch/dist.log"; find "$scratch/out")"

# A script that goes on where a command fails, as check --full does: what configures is told apart from other steps.
mkdir -p "$scratch/conf/scripts"
cp "$abs_top_srcdir/scripts/lib.sh" "$scratch/conf/scripts"
printf '#!/bin/sh\nexit "$FAILS"\n' >"$scratch/conf/configure"
chmod +x "$scratch/conf/configure"
for FAILS in 1 0; do
    export FAILS
    bash -c 'set +e; . "$0"; oh_configure "$1" --x; echo went on' "$scratch/conf/scripts/lib.sh" "$scratch/conf/b" >"$scratch/conf.log" 2>&1
    [ "$(grep -c 'went on' "$scratch/conf.log") $(cat "$scratch/conf/b/configure.args" 2>/dev/null)" = "$((1 - FAILS)) $([ $FAILS = 1 ] || echo --x)" ]
    tap_point $? "a configure that ends with $FAILS: the script $([ $FAILS = 1 ] && echo ends || echo goes on)" "$(cat "$scratch/conf.log")"
done

# A tree in a folder whose name configure refuses.
mkdir -p "$scratch/a tree's \$folder/scripts"
cp "$abs_top_srcdir/scripts/lib.sh" "$scratch/a tree's \$folder/scripts"
top=$(bash -c '. "$0"; echo "$oh_top"' "$scratch/a tree's \$folder/scripts/lib.sh")
[[ $top = /tmp/onehop-* && $top != *[\ \'\$]* ]] && [ "$(readlink "$top")" = "$scratch/a tree's \$folder" ]
tap_point $? "a folder with blanks is reached by a link without" "$top"
rm -f "$top"

# What a build needs is copied, and no build.
tree="$scratch/a tree's \$folder"
mkdir -p "$tree"/{build,build-aux,build-check,src/build-x,.hidden} "$scratch/copy"
touch "$tree"/{build/a,build-aux/b,build-check/c,src/build-x/d,.hidden/e,configure}
bash -c '. "$0"; oh_copy_tree "$1" "$2"' "$abs_top_srcdir/scripts/lib.sh" "$tree" "$scratch/copy"
files=$(cd "$scratch/copy" && find . -type f | sort | tr '\n' ' ')
[ "$files" = "./.hidden/e ./build-aux/b ./configure ./scripts/lib.sh ./src/build-x/d " ]
tap_point $? "a tree is copied with build-aux, and without builds" "$files"

# The scripts are not installed: a user links or copies one.
mkdir "$scratch/links" "$scratch/alone"
for script in $(grep -l '^\. .*/lib\.sh"' "$abs_top_srcdir"/scripts/*); do
    name=${script##*/}
    ln -s "$script" "$scratch/links/$name"
    cp "$script" "$scratch/alone"
    "$scratch/links/$name" --help >"$scratch/help" 2>&1 && grep -q '^usage: ' "$scratch/help"
    tap_point $? "scripts/$name by a link" "$(head -n 5 "$scratch/help")"
    status=0
    "$scratch/alone/$name" --help >"$scratch/help" 2>&1 || status=$?
    [ "$status $(wc -l <"$scratch/help") $(grep -c '/lib.sh: No such file' "$scratch/help")" = "1 1 1" ]
    tap_point $? "scripts/$name without lib.sh: a line says so" "$status: $(head -n 5 "$scratch/help")"
done
tap_done
