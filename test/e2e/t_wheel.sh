# SPDX-License-Identifier: MIT
# The Python package, made of what this build installs (scripts/wheel makes it with other compilers): pip installs it, its
# command and its libraries serve a program on the simulated node, and pip takes all of it away.
. "$abs_top_srcdir/test/e2e/lib.sh"

unset MAKEFLAGS MFLAGS MAKELEVEL ONEHOP_DEBUG ONEHOP_STATS PYTHONPATH
venv=$scratch/venv
[ -z "${OH_SANITIZERS-}" ] || tap_skip_all "Python does not bring a sanitizer's runtime"
python3 -m venv "$venv" >"$out" 2>&1 || tap_skip_all "no venv with pip (Debian: python3-venv)"
files() {
    (cd "$venv" && find . ! -type d ! -name '*.pyc' | sort)
}
files >"$scratch/before"

run_limited make -s -C "$abs_top_builddir" install DESTDIR="$scratch/stage"
prefix=$scratch/prefix
mkdir -p "$prefix/lib"
find "$scratch/stage" -name '*.so' ! -type l -exec cp {} "$prefix/lib" \;
for folder in bin include share; do
    cp -r "$(find "$scratch/stage" -type d -name $folder | head -n 1)" "$prefix"
done
run_limited "$abs_top_srcdir/packaging/python/pack.py" "$prefix" "linux_$(uname -m)" "$scratch"
wheel=$(tail -n 1 "$out")
[ $status = 0 ] && [ "$(stat -c %s "$wheel")" -lt 12000000 ]
tap_point $? "the wheel is made, of less than 12 MB" "$(cat "$out"; ls -l "$scratch")"
cp "$wheel" "$scratch/first.whl"
run_limited "$abs_top_srcdir/packaging/python/pack.py" "$prefix" "linux_$(uname -m)" "$scratch"
cmp "$wheel" "$scratch/first.whl" >>"$out" 2>&1
tap_point $? "a second one has the same bytes" "$(cat "$out")"

run_limited "$venv/bin/pip" install --no-index --disable-pip-version-check "$wheel"
tap_point $status "pip installs it" "$(cat "$out")"
rm -rf "$scratch/stage" "$prefix"
export PATH=$venv/bin:$PATH
expect "the command, of this version" 0 "$("$abs_top_srcdir/scripts/version")" -- run_limited onehop --version
library=$(python3 -c 'import onehop; print(onehop.preload_path())')
tap_empty "$([[ $library = "$venv"/* ]] && [ -r "$library" ] || echo "$library")" "onehop.preload_path()"
expect "onehop doctor: served" 0 '^ok' 'verdict  *yes|[1-9][0-9]* of [0-9]* collective calls served' \
    -- run_limited onehop doctor -- "$app" --nranks 2 --counts 5,5000
expect "LD_PRELOAD: served" 0 '^ok' 'nranks 2: served by onehop' \
    -- run_limited env LD_PRELOAD="$library" ONEHOP_DEBUG=INFO "$app" --nranks 2 --counts 5,5000
for via in preload plugin audit; do
    expect "python -m onehop run --via $via: served" 0 '^ok' '[1-9][0-9]* of [0-9]* collective calls served' \
        -- run_limited python3 -m onehop run --stats --via $via -- "$app" --nranks 2 --counts 5,5000 --iterations 3
done
expect "the completion" 0 'onehop$' \
    -- run_limited env - bash -c '. "$0" && complete -p onehop' "$venv/share/bash-completion/completions/onehop"
tap_empty "$(for page in 1/onehop.1 1/onehop-run.1 3/onehop.3 7/onehop.7; do
    [ -s "$venv/share/man/man$page" ] || echo "$page"
done)" "manual pages"

run_limited pip uninstall -y --disable-pip-version-check onehop
tap_point $status "pip uninstalls it" "$(cat "$out")"
files >"$scratch/after"
tap_empty "$(diff "$scratch/before" "$scratch/after"; find "$venv" -name '*onehop*')" "and leaves nothing"
tap_done
