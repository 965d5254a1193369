# SPDX-License-Identifier: MIT
# What scripts fetch where there is no CUDA Toolkit: scripts/toolkit.py against a package index of its own, and what
# scripts/lib.sh decides to fetch.
. "$abs_top_srcdir/test/hygiene/tap.sh"
. "$abs_top_srcdir/test/e2e/commands.sh"
scratch=$(mktemp -d) || exit 1
out=$scratch/out
server=
trap '[ -z "$server" ] || kill $server; rm -rf "$scratch"' EXIT
python3 -c 'import ssl, zipfile' 2>/dev/null || tap_skip_all "no python3"

# A package index with a wheel of each package that toolkit.py names, which answers ranges or not, and cuts bodies short.
cat >"$scratch/index.py" <<'END'
import base64, hashlib, http.server, importlib.util, io, json, platform, random, re, sys, zipfile
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("toolkit", sys.argv[1])
toolkit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(toolkit)
mode, wheels, pins = sys.argv[2], {}, []
digest = lambda data: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
for package, version, patterns in toolkit.PARTS["cuda13"]:
    data, record = io.BytesIO(), []
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("nvidia/x/lib/large", random.Random(1).randbytes(700000))
        for pattern in patterns:
            entry = zipfile.ZipInfo("nvidia/x/" + pattern.replace("*", package))
            entry.external_attr = (0o755 if pattern.startswith("bin") else 0o644) << 16
            wheel.writestr(entry, f"{package} {version}\n" + ("more\n" if mode == "changed" else ""))
            record.append(f"{entry.filename},{digest(f'{package} {version}{chr(10)}'.encode())},1")
        wheel.writestr("nvidia/x/lib/other", random.Random(2).randbytes(700000))
        wheel.writestr("nvidia/x/lib/libnccl.so.2", b"nccl" * 1000)
        record += [f"nvidia/x/lib/{file},{digest(wheel.read(f'nvidia/x/lib/{file}'))},1" for file in ("large", "other", "libnccl.so.2")]
        wheel.writestr(f"{package}.dist-info/licenses/License.txt", "licence\n")
        record.append(f"{package}.dist-info/licenses/License.txt,{digest(b'licence' + bytes([10]))},8")
        text = "\n".join(record + ["other,,"] * (mode == "forged")) + "\n"
        wheel.writestr(f"{package}.dist-info/RECORD", text)
    name = f"{package.replace('-', '_')}-{version}-py3-none-manylinux_2_17_{platform.machine()}.whl"
    wheels[name] = data.getvalue()
    pins.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n")
if mode != "forged":
    with open(toolkit.PINS, "w") as file:
        file.writelines(pins)
sent = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        global sent
        name = self.path.strip("/").split("/")[-1]
        if name == "sent":
            self.answer(200, str(sent).encode())
        elif self.path.startswith("/simple/"):
            links = [wheel for wheel in wheels if wheel.startswith(name.replace("-", "_") + "-")]
            if mode == "html":
                self.answer(200, "".join(f'<a href="../../{link}#sha256=0">x</a>' for link in links).encode(), "text/html")
            else:
                self.answer(200, json.dumps({"files": [{"url": f"/{link}"} for link in links]}).encode(), "application/json")
        elif name in wheels:
            wheel = wheels[name]
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if asked and mode != "whole":
                start = int(asked[1]) if asked[1] else max(0, len(wheel) - int(asked[2]))
                end = int(asked[2]) + 1 if asked[1] else len(wheel)
                body = wheel[start:end]
                sent += len(body)
                self.answer(206, body, range_=f"bytes {start}-{end - 1}/{len(wheel)}")
            else:
                self.answer(200, wheel)
        else:
            self.answer(404, b"")

    def answer(self, status, body, kind="application/octet-stream", range_=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if range_:
            self.send_header("Content-Range", range_)
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if mode == "short" and len(body) > 1000 else body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[3] + ".new", "w") as file:
    file.write(str(server.server_port))
import os
os.rename(sys.argv[3] + ".new", sys.argv[3])
server.serve_forever()
END

# serve MODE: begins such an index, instead of the last.
serve() {
    [ -z "$server" ] || { kill $server; wait $server 2>/dev/null; }
    rm -f "$scratch/port"
    python3 "$scratch/index.py" "$scratch/toolkit.py" "$1" "$scratch/port" 2>"$scratch/server.log" &
    server=$!
    await 60 test -e "$scratch/port"
    export PIP_INDEX_URL=http://127.0.0.1:$(cat "$scratch/port")/simple
}
# fetch FOLDER PART: sets $status, fills $out.
fetch() {
    status=0
    timeout 300 "$scratch/toolkit.py" "$@" >"$out" 2>&1 || status=$?
}
unset http_proxy HTTP_PROXY PIP_CERT
cp "$abs_top_srcdir/scripts/toolkit.py" "$scratch" # beside which the checksums of this index lie
for mode in json html whole; do
    serve $mode
    fetch "$scratch/$mode" cuda13
    [ $status = 0 ] && [ -x "$scratch/$mode/bin/nvcc" ] && [ ! -x "$scratch/$mode/include/nvidia-nccl-cu13" ] &&
        grep -q '^nvidia-nvvm' "$scratch/$mode/nvvm/nvidia-nvvm" && [ ! -e "$scratch/$mode/lib" ] &&
        [ "$(ls "$scratch/$mode/licenses" | wc -l)" = "$(wc -l <"$scratch/$mode/onehop-toolkit.txt")" ]
    tap_point $? "$mode: the files that are asked for, and no others" "$(cat "$out" "$scratch/server.log"; find "$scratch/$mode")"
    [ $mode != json ] || sent=$(python3 -c "import urllib.request as u; print(u.urlopen('${PIP_INDEX_URL%/simple}/sent').read().decode())")
done
[ "$sent" -lt $((7 * 400000)) ]
tap_point $? "with ranges, less than a third of the wheels is transferred" "$sent bytes of $((7 * 1400000))"
kill $server; wait $server 2>/dev/null; server=
expect "what is there is not fetched again" 0 -- fetch "$scratch/whole" headers
expect "no index: one sentence" 1 '^toolkit.py: nvidia-nccl-cu13 .*refused' -- fetch "$scratch/none" headers
serve short
expect "a transfer that breaks off: status 1" 1 '^toolkit.py: nvidia-nccl-cu13 ' -- fetch "$scratch/none" nccl
serve json
expect "and the next one begins anew" 0 -- fetch "$scratch/none" nccl
python3 - "$scratch" <<'END'
import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import toolkit
class Full:  # a disk that is full in the middle of a file
    def __init__(self, path, mode, **rest):
        self.name, self.file = path, open(path, mode, **rest)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.file.close()
    def write(self, content):
        if not content.startswith(b"nccl"):
            return self.file.write(content)
        self.file.write(content[:len(content) // 2])
        raise OSError("No space left on device")
wheel, folder = "==".join(toolkit.NCCL[0][:2]), os.path.join(sys.argv[1], "kept")
toolkit.open = Full
try:
    sys.exit(f"{toolkit.fetch_nccl(wheel, folder)}: no error")
except OSError as error:
    assert "No space" in str(error), error
del toolkit.open
content = open(toolkit.fetch_nccl(wheel, folder), "rb").read()
assert content == b"nccl" * 1000, f"{len(content)} bytes of 4000"
files = os.listdir(os.path.join(folder, wheel.replace("==", "-")))
assert sorted(files) == ["lib", "licenses"], files
END
tap_point $? "a library that was not written to its end is fetched again"
serve changed
expect "a file that is not as RECORD says is refused" 1 \
    '^toolkit.py: nvidia-nccl-cu13 .*: nvidia/x/include/.*: sha256 is .*; expected sha256=' -- fetch "$scratch/changed" nccl
[ ! -e "$scratch/changed/include/nvidia-nccl-cu13" ]
tap_point $? "and is not there" "$(find "$scratch/changed")"
serve forged
expect "a RECORD that is not as toolkit.sha256 says is refused" 1 \
    '^toolkit.py: nvidia-nccl-cu13 .*: RECORD has sha256 .*; expected [0-9a-f]{64}$' -- fetch "$scratch/forged" nccl
serve json
: >"$scratch/toolkit.sha256"
expect "a wheel without a checksum is refused" 1 'expected a line in toolkit.sha256$' -- fetch "$scratch/forged" nccl
python3 - "$abs_top_srcdir/scripts" <<'END'
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import toolkit
lines = open(toolkit.PINS).read().splitlines()
for part in toolkit.PARTS.values():
    for package, version, patterns in part:
        for machine in ("x86_64", "aarch64"):
            start = f"{package.replace('-', '_')}-{version}-"
            assert [line for line in lines if line[66:].startswith(start) and f"_{machine}." in line], (start, machine)
END
tap_point $? "toolkit.sha256 has every wheel"
mkdir "$scratch/mine"
echo mine >"$scratch/mine/file"
touch "$scratch/mine/packages.txt"
fetch "$scratch/mine" nccl
[ $status = 1 ] && [ "$(cat "$scratch/mine/file")" = mine ]
tap_point $? "a folder with other files is left alone" "$(cat "$out"; ls "$scratch/mine")"

# --- what is fetched

mkdir -p "$scratch/bin" "$scratch/cuda/bin" "$scratch/cuda/include" "$scratch/nccl/include"
# decide ARGUMENT...: prints what lib.sh would fetch, and the arguments that it adds. In an environment without a toolkit:
# the compiler finds a header only in $scratch.
decide() {
    env -u CUDA_HOME -u CUDA_PATH -u NVCC "${settings[@]}" scratch="$scratch" PATH="$scratch/bin:/usr/bin:/bin" bash -c '
        . "$0"
        oh_has_header() {
            local header=$1 folder
            shift
            for folder in "$@"; do [[ $folder != */cuda/include || $folder = /usr/* || ! -e $folder/$header ]] || return 0; done
            return 1
        }
        command() { [[ $2 != */nvcc && $2 != nvcc || $(builtin command -v "$2") = "$scratch"/* ]] && builtin command "$@"; }
        oh_find_toolkit "$@"
        echo "${oh_lacks:-nothing}" "${oh_toolkit[@]}"' "$abs_top_srcdir/scripts/lib.sh" "$@"
}
# decides EXPECTED NAME ARGUMENT...
decides() {
    tap_empty "$(diff <(echo "$1") <(decide "${@:3}" 2>&1))" "$2"
}
settings=()
printf '#!/bin/sh\nexit 9\n' >"$scratch/bin/nvidia-smi" # as where there is none, whatever this machine has
chmod +x "$scratch/bin/nvidia-smi"
decides "cuda13" "no toolkit: nvcc and headers"
decides "headers" "no kernels: headers" --disable-kernels
printf '#!/bin/sh\necho "| NVIDIA-SMI 550.54.15  Driver Version: 550.54.15  CUDA Version: 12.4 |"\n' >"$scratch/bin/nvidia-smi"
decides "cuda12" "a driver for CUDA 12: nvcc for CUDA 12"
sed -i 's/12.4/13.0/' "$scratch/bin/nvidia-smi"
decides "cuda13" "a driver for CUDA 13: nvcc for CUDA 13"
printf '#!/bin/sh\nexit 9\n' >"$scratch/bin/nvidia-smi"
touch "$scratch/cuda/include/cuda.h"
printf '#!/bin/sh\necho sm_80; echo sm_90\n' >"$scratch/cuda/bin/nvcc"
chmod +x "$scratch/cuda/bin/nvcc"
decides "nccl" "--with-cuda without nccl.h: that alone" "--with-cuda=$scratch/cuda"
decides "nothing" "--with-cuda and --with-nccl" "--with-cuda=$scratch/cuda" "--with-nccl=$scratch/nccl"
settings=(CUDA_HOME="$scratch/cuda")
decides "nccl --with-cuda=$scratch/cuda" "CUDA_HOME"
decides "nothing --with-cuda=$scratch/cuda" "CUDA_HOME and --with-nccl" "--with-nccl=$scratch/nccl"
settings=(CUDA_HOME=/nowhere)
decides "cuda13" "a CUDA_HOME that is not there"
settings=(NVCC="$scratch/cuda/bin/nvcc")
decides "nccl" "NVCC"
settings=()
touch "$scratch/cuda/include/nccl.h"
decides "nothing" "nccl.h beside cuda.h" "--with-cuda=$scratch/cuda"
ln -s "$scratch/cuda/bin/nvcc" "$scratch/bin/nvcc"
decides "nothing" "an nvcc in PATH"

# --- for which GPUs

# gencode CAPABILITY...: of a machine with these GPUs, and an nvcc for sm_80 and sm_90.
gencode() {
    printf '#!/bin/sh\nprintf "%%s\\n" %s\n' "$*" >"$scratch/bin/nvidia-smi"
    PATH=$scratch/bin:$PATH bash -c '. "$0"; oh_gencode "$1"' "$abs_top_srcdir/scripts/lib.sh" "$scratch/cuda/bin/nvcc"
}
ptx=-gencode=arch=compute_90,code=compute_90
for case in "9.0 9.0=-gencode=arch=compute_90,code=sm_90 $ptx" '10.0=' '12.0=' \
    '8.6=-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_80,code=compute_80' \
    "8.0 9.0=-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 $ptx"; do
    # shellcheck disable=SC2086
    found=$(gencode ${case%%=*})
    [ "$found" = "${case#*=}" ]
    tap_point $? "GPUs ${case%%=*}: ${case#*=}" "$found"
done
tap_done
