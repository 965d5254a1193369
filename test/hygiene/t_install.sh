# SPDX-License-Identifier: MIT
# What `make install` puts where, under DESTDIR; that the packages take all of it, and uninstall takes it away.
. "$abs_top_srcdir/test/hygiene/tap.sh"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
make=${MAKE:-make}
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs the tests: it may want more said
variable() {
    (cd "$abs_top_builddir" && printf 'include Makefile\nshow:\n\t@echo $(%s)\n' "$1" | $make -s --no-print-directory -f - show)
}
log=$($make -s -C "$abs_top_builddir" install DESTDIR="$stage" 2>&1)
tap_point $? "make install DESTDIR=..." "$log"
bindir=$(variable bindir) libdir=$(variable libdir) includedir=$(variable includedir) mandir=$(variable mandir)
datadir=$(variable datadir)
wanted="$bindir/onehop
$libdir/libonehop.so
$libdir/libonehop-audit.so
$libdir/libnccl-net-onehop.so
$libdir/pkgconfig/onehop.pc
$includedir/onehop/onehop.h
$datadir/bash-completion/completions/onehop
$mandir/man1/onehop.1
$mandir/man3/onehop.3
$mandir/man7/onehop.7"
for command in $("$abs_top_builddir/src/tools/onehop" --help | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p'); do
    wanted+=$'\n'$mandir/man1/onehop-$command.1
done
found=$(cd "$stage" && find . ! -type d | sed 's/^\.//')
tap_empty "$(diff <(sort <<<"$wanted") <(sort <<<"$found"))" "these files and no others"
[ "$(readlink "$stage$libdir/libnccl-net-onehop.so")" = libonehop.so ]
tap_point $? "the plugin's other name leads to it" "$(ls -l "$stage$libdir")"
tap_empty "$(grep -rl "$stage" "$stage")" "no file has the stage's name in it"
. "$stage$datadir/bash-completion/completions/onehop"
complete -p onehop >/dev/null 2>&1
tap_point $? "the installed completion can be sourced" ""
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$stage$libdir/pkgconfig
    version=$("$abs_top_srcdir/scripts/version")
    [ "$(pkg-config --variable=pluginlibdir onehop)" = "$libdir" ] && [ "$(pkg-config --modversion onehop)" = "$version" ] &&
        [ -z "$(pkg-config --libs onehop)" ] && pkg-config --validate onehop
    tap_point $? "pkg-config: pluginlibdir, the version, and nothing to link" \
        "$(pkg-config --variable=pluginlibdir onehop; pkg-config --modversion --libs onehop)"
    [[ $(sed -n '/^Summary: */{s///p;q}' "$abs_top_srcdir/packaging/onehop.spec") = "$(sed -n 's/^Description: \(.*\);.*/\1/p' "$stage$libdir/pkgconfig/onehop.pc")" ]]
    tap_point $? "and what the RPM package says of onehop" "$(grep Description "$stage$libdir/pkgconfig/onehop.pc")"
else
    tap_skip "pkg-config" "no pkg-config"
fi
# unpackaged PATTERNS: the files that no pattern takes. Packages have prefix /usr, and libraries in a folder of the architecture.
unpackaged() {
    while read -r file; do
        path=$(sed "s,^$libdir,usr/lib/triplet,; s,^$includedir,usr/include,; s,^$mandir,usr/share/man,; s,^$datadir,usr/share,
            s,^$bindir,usr/bin," <<<"$file")
        while read -r pattern; do
            # shellcheck disable=SC2053
            [[ $path == $pattern || $path == $pattern/* ]] && continue 2
        done <<<"$1"
        echo "$file"
    done <<<"$found"
}
tap_empty "$(unpackaged "$(cat "$abs_top_srcdir"/packaging/debian/*.install)")" "every file is in a Debian package"
spec=$(sed -n 's,^%{_bindir},usr/bin,p; s,^%{_libdir},usr/lib/triplet,p; s,^%{_datadir},usr/share,p
    s,^%{_mandir},usr/share/man,p; s,^%{_includedir},usr/include,p' "$abs_top_srcdir/packaging/onehop.spec")
tap_empty "$(unpackaged "$spec")" "every file is in an RPM package"
words=$($make -n -o all -C "$abs_top_builddir" check-gpu 2>/dev/null | sed -n 's,^[^ ]* *install \(.*\) >/dev/null$,\1,p')
folders=$(for name in bindir libdir includedir datadir mandir DESTDIR; do echo "$name=/elsewhere"; done)
eval "words=($folders install $words)" # the later one counts
[ ${#words[@]} -gt 8 ] && elsewhere=$($make -n -C "$abs_top_builddir" "${words[@]}" | grep -E '(mkdir|install|ln|rm) .*/elsewhere')
tap_empty "$elsewhere" "make check-gpu installs into the build tree, whatever folders configure was told"
log=$($make -s -C "$abs_top_builddir" uninstall DESTDIR="$stage" 2>&1)
tap_point $? "make uninstall" "$log"
tap_empty "$(find "$stage" ! -type d)" "leaves no file"
tap_empty "$(find "$stage$(variable prefix)" -mindepth 1 -name '*onehop*')" "nor a folder of its own"
tap_done
