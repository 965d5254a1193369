# SPDX-License-Identifier: MIT
# Every #include of src and kernels goes down the layers of doc/design.md, "Parts": no arrow back, no circle.
. "$abs_top_srcdir/test/hygiene/tap.sh"

# layers: "FOLDER: FOLDERS that its files may include", a line each. comm is src/comm/comm.h, which
# hides struct oh_comm; comm/internal is src/comm/comm_internal.h. Every folder may include itself.
layers='
kernels:
util:
plan: kernels util onehop
gpu: kernels plan util
topo: gpu util
comm/stats: plan util onehop
comm/core: comm/internal comm/stats gpu kernels plan topo util
comm: comm/core gpu kernels onehop plan
comm/internal: comm comm/core comm/stats gpu topo util
comm/watch: comm/core comm/internal comm/stats util
comm/launch: comm/core comm/internal comm/watch gpu util
comm/attach: comm comm/core comm/internal comm/launch comm/watch gpu plan topo util
hook: comm comm/attach util onehop
audit: hook
tools/shared: comm/stats gpu kernels plan topo util
tools/run: tools/shared
tools/stat: plan tools/shared
tools/topo: kernels tools/shared topo util
tools/doctor: comm/core gpu onehop tools/shared topo util
tools/perf: gpu kernels onehop plan tools/shared util
tools/tune: plan tools/perf tools/shared util
tools: onehop tools/shared
'

# includes FOLDER: "FROM TO FILE HEADER" for each project header that files below FOLDER include.
includes() {
    (cd "$1" && find src kernels -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.S') | while read -r file; do
        from=${file%/*} from=${from#src/}
        [ "$file" != src/comm/comm_internal.h ] || from=comm/internal
        # shellcheck disable=SC2013
        for header in $(sed -n 's/^ *# *include "\(.*\)"$/\1/p' "$1/$file"); do
            to=${header%/*}
            [ "$header" != comm/comm_internal.h ] || to=comm/internal
            case $header in config.h | test/simnode/*) continue ;; esac
            [ "$to" = "$from" ] || echo "$from $to $file $header"
        done
    done
}

# wrong FOLDER: the includes that the layers do not allow.
wrong() {
    includes "$1" | awk -v layers="$layers" '
        BEGIN {
            count = split(layers, line, "\n")
            for (i = 1; i <= count; i++) {
                words = split(line[i], word, /[: ]+/)
                for (w = 2; w <= words; w++) allowed[word[1] " " word[w]] = 1
            }
        }
        !(($1 " " $2) in allowed) { print $3 " includes " $4 }'
}

# The layers have no circle, by tsort. struct oh_comm has parts that comm/core defines, and functions there work on it:
# the headers of the two make no circle.
circles() {
    sed -n 's/^\([^:]*\): *\(.*\)$/\1 \2/p' <<<"$layers" | while read -r from to; do
        for one in $to; do
            [ "$from $one" = "comm/core comm/internal" ] || echo "$from $one"
        done
    done | tsort 2>&1 >/dev/null
}

[ "$(includes "$abs_top_srcdir" | wc -l)" -gt 100 ]
tap_point $? "the includes are found"
tap_empty "$(wrong "$abs_top_srcdir")" "every include goes down"
tap_empty "$(circles)" "the layers have no circle"

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/src/comm/watch" "$scratch/kernels"
echo '#include "comm/launch/launch.h"' >"$scratch/src/comm/watch/broken.c"
[ "$(wrong "$scratch")" = "src/comm/watch/broken.c includes comm/launch/launch.h" ]
tap_point $? "an arrow back is found" "$(wrong "$scratch")"
tap_done
