# SPDX-License-Identifier: MIT
# What every file and every release must have.
. "$abs_top_srcdir/test/hygiene/tap.sh"

cd "$abs_top_srcdir" || exit 1
version=$(sed -n 's/^#define PACKAGE_VERSION "\(.*\)"/\1/p' "$abs_top_builddir/config.h")

header=$(awk '/define ONEHOP_VERSION_(MAJOR|MINOR|PATCH) / { v = v dot $3; dot = "." } END { print v }' \
    include/onehop/onehop.h)
[ "$header" = "$version" ]
tap_point $? "onehop.h and config.h have the same version" "onehop.h: $header, config.h: $version"

grep -qE "^## ${version//./\\.}( |$)" NEWS.md
tap_point $? "NEWS.md has an entry for this version" "no line '## $version'"

tap_empty "$(find include src kernels test scripts m4 .ci configure.ac Makefile.am -type f \
    -regextype posix-extended -regex '.*\.(c|h|S|cpp|cu|cuh|sh|am|ac)|m4/oh_.*|scripts/.*|\.ci/run' -print0 |
    xargs -0 grep -L 'SPDX-License-Identifier: MIT')" "every source file names its licence"

fragments=$(find Makefile.am kernels src test -name '*.am' -exec cat {} +)
unnamed=$(find include src kernels test -type f -regextype posix-extended -regex '.*\.(c|h|S|cpp|cu|cuh)' |
    while read -r file; do
        grep -qF "$file" <<<"$fragments" ||
            grep -qE "\s${file%.c}(\s|\$)" <<<"$fragments" || echo "$file" # or it is a program of that name
    done)
headless=$(find include src kernels -type f -regextype posix-extended -regex '.*\.(c|h|cu|cuh)' | while read -r file; do
    head -n 4 "$file" | grep -qE "^(/\*| \*|/\*\*)( @file)? ([a-z]+/)?${file##*/} - " || echo "$file"
done)
tap_empty "$headless" "every source file begins with its name and purpose"
tap_empty "$(grep -rnE '^ \*.*[^ ] +(Does|Threads|Owns): ' include src kernels)" "what a file does, its threads and what it owns have a line each"
tap_empty "$unnamed" "every source file is named in a makefile fragment, so the tarball has it"
tap_empty "$(for page in doc/*.md SECURITY.md CONTRIBUTING.md; do
    page=${page#doc/}
    [ "$page" = README.md ] || grep -qF -e "]($page)" -e "](../$page)" doc/README.md || echo "$page"
done)" "doc/README.md names every page, and what stands above"
# shown WORDS: as the makefile expands them, one a line.
shown() {
    (unset MAKEFLAGS MFLAGS MAKELEVEL && printf 'include Makefile\nshow:\n\t@for word in %s; do echo $$word; done\n' "$1" |
        ${MAKE:-make} -s --no-print-directory -C "$abs_top_builddir" -f - show)
}
tap_empty "$(shown '$(bin_PROGRAMS) $(noinst_PROGRAMS) $(lib_LTLIBRARIES) $(noinst_LTLIBRARIES) $(noinst_DATA)' | grep '^test/')" \
    "who builds onehop builds no program of the tests, which need later headers"
if git rev-parse --git-dir >/dev/null 2>&1; then
    tap_empty "$(git ls-files | grep -E '(^|/)(Makefile|config\.(h|log|status)|libtool|stamp-h1|[^/]*\.(o|lo|la|so))$')" \
        "nothing that a build makes is tracked"
    tap_empty "$(git check-ignore --no-index -nv --stdin < <(shown '$(bin_PROGRAMS) $(check_PROGRAMS) $(EXTRA_PROGRAMS) $(noinst_DATA) $(man_MANS) $(CLEANFILES)') | sed -n 's/^::\t//p')" "git ignores what a build in the tree makes"
else
    tap_skip "nothing that a build makes is tracked" "no repository"
    tap_skip "git ignores what a build in the tree makes" "no repository"
fi
tap_done
