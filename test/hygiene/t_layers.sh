# SPDX-License-Identifier: MIT
# Every #include of src and kernels goes down the layers of doc/design.md, "Parts": no arrow back, no circle.
. "$abs_top_srcdir/test/hygiene/tap.sh"

# layers: "FOLDER: FOLDERS that its files may include", a line each. comm is the headers of src/comm, which hide struct
# oh_comm; comm/internal is src/comm/comm_internal.h, comm/nccl is src/comm/nccl.h. Every folder may include itself.
layers='
kernels:
util:
plan: kernels util onehop
gpu: kernels plan util
topo: gpu util
comm/nccl:
comm/stats: comm/internal plan util onehop
comm/shared: comm/stats gpu kernels plan topo util
comm: comm/nccl comm/shared comm/stats gpu kernels onehop plan
comm/internal: comm comm/shared comm/stats gpu kernels plan topo util
comm/core: comm/internal plan util
comm/watch: comm/internal util
comm/launch: comm/internal comm/watch gpu util
comm/attach: comm/internal comm/launch comm/watch gpu plan topo util
comm/call: comm/attach comm/internal comm/launch comm/watch plan util
interpose: comm/nccl onehop util
entry: comm comm/stats interpose onehop plan util
audit: interpose
tools/shared: comm/stats gpu kernels plan topo util
tools/run: tools/shared
tools/stat: plan tools/shared
tools/topo: kernels tools/shared topo util
tools/doctor: comm/shared gpu onehop tools/shared topo util
tools/perf: comm/nccl gpu kernels onehop plan tools/shared util
tools/tune: plan tools/perf tools/shared util
tools: onehop tools/shared
'

# includes FOLDER: "FROM TO FILE HEADER" for each project header that files below FOLDER include.
includes() {
    (cd "$1" && find src kernels -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.S') | while read -r file; do
        from=${file%/*} from=${from#src/}
        case $file in
        src/comm/comm_internal.h) from=comm/internal ;;
        src/comm/nccl.h) from=comm/nccl ;;
        esac
        # shellcheck disable=SC2013
        for header in $(sed -n 's/^ *# *include "\(.*\)"$/\1/p' "$1/$file"); do
            to=${header%/*}
            case $header in
            comm/comm_internal.h) to=comm/internal ;;
            comm/nccl.h) to=comm/nccl ;;
            config.h | test/simnode/*) continue ;;
            esac
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

# The layers have no circle, by tsort. Record and live page of comm/stats are below struct oh_comm, what describes a
# communicator is above it: their headers make no circle.
circles() {
    sed -n 's/^\([^:]*\): *\(.*\)$/\1 \2/p' <<<"$layers" | while read -r from to; do
        for one in $to; do
            [ "$from $one" = "comm/stats comm/internal" ] || echo "$from $one"
        done
    done | tsort 2>&1 >/dev/null
}

# uses FOLDER: "FROM TO" for each object below FOLDER of the build that uses a function or variable of another.
uses() {
    find "$abs_top_builddir/src/$1" -name '*.o' | while read -r object; do
        nm "$object" | awk -v of="${object/.libs\//}" '$(NF - 1) ~ /[TDBR]/ { print "has", of, $NF } $1 == "U" { print "uses", of, $2 }'
    done | awk '$1 == "has" { home[$3] = $2 } $1 == "uses" { count++; from[count] = $2; name[count] = $3 }
        END { for (i = 1; i <= count; i++) { to = home[name[i]]; if (to && to != from[i]) print from[i], to } }' | sort -u
}

[ "$(includes "$abs_top_srcdir" | wc -l)" -gt 100 ]
tap_point $? "the includes are found"
tap_empty "$(wrong "$abs_top_srcdir")" "every include goes down"
tap_empty "$(circles)" "the layers have no circle"
for room in comm entry interpose plan topo gpu; do
    tap_empty "$(uses $room | tsort 2>&1 >/dev/null)" "the files of src/$room form no circle"
done
[ "$(uses comm | wc -l)" -gt 50 ]
tap_point $? "what they use of each other is found"

tap_scratch
mkdir -p "$scratch/src/comm/watch" "$scratch/kernels"
echo '#include "comm/launch/launch.h"' >"$scratch/src/comm/watch/broken.c"
[ "$(wrong "$scratch")" = "src/comm/watch/broken.c includes comm/launch/launch.h" ]
tap_point $? "an arrow back is found" "$(wrong "$scratch")"
tap_done
