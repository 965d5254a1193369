#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fetches a CUDA compiler and headers, and NCCL's header, from the Python package index.

    scripts/toolkit.py DIR nccl|headers|cuda13|cuda12|zig

Fills DIR with include/ and licenses/, for cuda13 and cuda12 also with bin/nvcc (for CUDA 12 that is scripts/nvrtc):
`configure --with-cuda=DIR --with-nccl=DIR` builds with it. nccl: nccl.h alone. zig: a C compiler for old versions of glibc.
PARTS below has the packages and their versions. Needs Python 3.7 or later, and neither pip nor venv. PIP_INDEX_URL names
another index. A DIR that is complete stays as it is.

Of a large wheel only the files that are needed are transferred, if the server knows HTTP ranges: nccl.h is a small part of
a wheel of 196 MB. scripts/toolkit.sha256 has the checksum of each wheel's RECORD, and RECORD those of its files. Whoever
changes a version writes it anew: scripts/toolkit.py --pin >toolkit.sha256.
"""
import base64
import fnmatch
import functools
import glob
import hashlib
import http.client
import json
import os
import platform
import re
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import zipfile

# Package, version, the files that are taken (paths in the wheel without nvidia/X/). No version stands elsewhere.
NCCL = [("nvidia-nccl-cu13", "2.28.9", ["include/*"])]
HEADERS = NCCL + [
    ("nvidia-cuda-runtime", "13.0.96", ["include/*"]),
    ("nvidia-cuda-crt", "13.0.88", ["include/*"]),
    ("nvidia-cuda-cccl", "13.0.85", ["include/cccl/nv/*"]),
    ("nvidia-nvtx", "13.0.85", ["include/*"]),
]
PARTS = {
    "nccl": NCCL,
    "headers": HEADERS,
    "cuda13": HEADERS + [
        ("nvidia-cuda-nvcc", "13.0.88",
         ["include/*", "bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/ptxas", "bin/fatbinary"]),
        ("nvidia-nvvm", "13.0.88", ["nvvm/*"]),
    ],
    "cuda12": [
        ("nvidia-nccl-cu12", "2.28.9", ["include/*"]),
        ("nvidia-cuda-runtime-cu12", "12.9.79", ["include/*"]),
        ("nvidia-cuda-nvcc-cu12", "12.9.86", ["include/*"]),
        ("nvidia-cuda-cccl-cu12", "12.9.27", ["include/nv/*"]),
        ("nvidia-nvtx-cu12", "12.9.79", ["include/*"]),
        ("nvidia-cuda-nvrtc-cu12", "12.9.86", ["lib/libnvrtc.so.12", "lib/libnvrtc-builtins.so.12.9"]),
        ("nvidia-nvfatbin-cu12", "12.9.82", ["lib/*"]),
    ],
    "zig": [("ziglang", "0.14.1", ["ziglang/*"])],
}
TAIL = 1 << 18  # a wheel's directory is at its end, and seldom larger
GAP = 1 << 16  # files of a wheel that lie closer than this are transferred together
CHUNK = 1 << 18
PINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "toolkit.sha256")
FAILURES = (OSError, http.client.HTTPException, zipfile.BadZipFile, KeyError, ValueError)


def open_url(url, **headers):
    parts = urllib.parse.urlparse(url)
    if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1"):
        raise OSError(f"{url}: expected https")
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60, context=context)


@functools.lru_cache()
def index_url():
    """Where pip would look."""
    setting = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, universal_newlines=True, check=False).stdout.strip()
    return (os.environ.get("PIP_INDEX_URL") or setting or "https://pypi.org/simple").rstrip("/")


def find_wheel(package, version, machine=platform.machine()):
    """The URL of the wheel for a machine: the index's page of the package is JSON (PEP 691) or HTML (PEP 503)."""
    index = index_url()
    with open_url(f"{index}/{package}/", Accept="application/vnd.pypi.simple.v1+json, text/html;q=0.5") as page:
        text, base = page.read().decode(), page.geturl()
        if "json" in page.headers.get("Content-Type", ""):
            links = [file["url"] for file in json.loads(text)["files"]]
        else:
            links = [link.replace("&amp;", "&") for link in re.findall(r'href="([^"#]+)', text)]
    for link in links:
        name = os.path.basename(urllib.parse.urlparse(link).path)
        if name.startswith(f"{package.replace('-', '_')}-{version}-") and (
                name.endswith("-any.whl") or f"_{machine}" in name and "manylinux" in name):
            return urllib.parse.urljoin(base, link)
    raise OSError(f"{index} has no {package} {version} for {machine}")


def record_of(remote, wheel):
    """A wheel's RECORD: its checksum, and a dictionary of path to checksum."""
    member, = [member for member in wheel.infolist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", member.filename)]
    remote.bring([member])
    text = wheel.read(member)
    files = dict(line.rsplit(",", 2)[:2] for line in text.decode().splitlines())
    return hashlib.sha256(text).hexdigest(), files


def check_record(url, checksum):
    """Compares with scripts/toolkit.sha256."""
    name = urllib.parse.unquote(os.path.basename(urllib.parse.urlparse(url).path))
    with open(PINS, encoding="utf-8") as file:
        pins = {wheel: pin for pin, wheel in map(str.split, filter(lambda line: line[0] != "#", file))}
    if pins.get(name) != checksum:
        raise ValueError(f"{name}: RECORD has sha256 {checksum}; expected {pins.get(name, 'a line in toolkit.sha256')}")


def print_pins():
    """What toolkit.sha256 should be."""
    print("# SPDX-License-Identifier: MIT")
    packages = {(package, version) for part in PARTS.values() for package, version, patterns in part}
    urls = {find_wheel(package, version, machine) for package, version in packages for machine in ("x86_64", "aarch64")}
    for url in sorted(urls, key=os.path.basename):
        with tempfile.TemporaryFile() as file:
            remote = RemoteWheel(url, file, lambda done, size: None)
            with zipfile.ZipFile(file) as wheel:
                print(record_of(remote, wheel)[0], urllib.parse.unquote(os.path.basename(url)), sep="  ", flush=True)


class RemoteWheel:
    """A wheel of which only what is needed is here: a local file with holes, at the same offsets."""

    def __init__(self, url, file, say):
        self.url, self.file, self.say, self.whole = url, file, say, False
        with open_url(url, Range=f"bytes=-{TAIL}") as answer:
            start, _, size = map(int, re.findall(r"\d+", answer.headers.get("Content-Range", "0-0/0")))
            self.store(answer, start, size)
        file.seek(max(0, self.size - TAIL))
        tail = file.read()
        directory, = struct.unpack_from("<I", tail, tail.rindex(b"PK\5\6") + 16)
        if directory < start:
            self.transfer(directory, start)

    def transfer(self, start, end):
        if not self.whole:
            with open_url(self.url, Range=f"bytes={start}-{end - 1}") as answer:
                self.store(answer, start, self.size)

    def store(self, answer, start, size):
        """Writes what the server sends: the range that was asked for, or the whole wheel."""
        done, expected = 0, int(answer.headers.get("Content-Length") or -1)
        if expected < 0:
            raise OSError(f"{self.url}: the server does not say how much it sends")
        if answer.status != 206:
            start, size = 0, expected
        self.file.seek(start)
        for chunk in iter(lambda: answer.read(CHUNK), b""):
            self.file.write(chunk)
            done += len(chunk)
            self.say(done, expected)
        if done != expected:
            raise OSError(f"{self.url}: {done} bytes came instead of {expected}")
        self.size, self.whole = size, done == size
        self.file.flush()

    def bring(self, members):
        """Brings these files, those that are neighbours in one piece."""
        spans = []
        for member in sorted(members, key=lambda member: member.header_offset):
            start = member.header_offset
            end = min(start + 30 + 2 * len(member.filename) + 1024 + member.compress_size, self.size)
            if spans and start - spans[-1][1] < GAP:
                spans[-1][1] = max(spans[-1][1], end)
            else:
                spans.append([start, end])
        for start, end in spans:
            self.transfer(start, end)


def progress(label):
    """A function that shows how far a transfer is, on a terminal."""
    if not sys.stdout.isatty():
        return lambda done, size: None

    def show(done, size):
        print(f"\r\033[K   {label}, {done / 1e6:.0f} of {size / 1e6:.0f} MB", end="\r" if done < size else "\r\033[K",
              flush=True)
    return show


def fetch_wheel(package, version, patterns, folder, pinned=True):
    """Puts files of a wheel that match a pattern into folder, each whole, without the leading nvidia/X/ of their names."""
    with tempfile.TemporaryFile(dir=folder) as file, tempfile.TemporaryDirectory(dir=folder) as partial:
        url = find_wheel(package, version)
        remote = RemoteWheel(url, file, progress(f"{package} {version}"))
        with zipfile.ZipFile(file) as wheel:
            checksum, expected = record_of(remote, wheel)
            if pinned:
                check_record(url, checksum)
            wanted = {}
            for member in wheel.infolist():
                path = re.sub(r"^nvidia/[^/]+/", "", member.filename)
                if member.filename.endswith("/"):
                    continue
                if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                    wanted[path] = member
                elif re.search(r"\.dist-info/.*licen[cs]e", path, re.IGNORECASE):
                    wanted[f"licenses/{package}/{os.path.basename(path)}"] = member
            remote.bring(wanted.values())
            for path, member in wanted.items():
                target = os.path.join(folder, os.path.normpath("/" + path).lstrip("/"))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                content = wheel.read(member)
                found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                if expected.get(member.filename) != f"sha256={found}":
                    raise ValueError(f"{member.filename}: sha256 is {found}; expected {expected.get(member.filename)}")
                with open(f"{partial}/file", "wb") as copy:
                    copy.write(content)
                os.chmod(copy.name, 0o755 if member.external_attr >> 16 & 0o100 else 0o644)
                os.replace(copy.name, target)


def fetch_nccl(wheel, folder):
    """The path of libnccl of a wheel, PACKAGE==VERSION, below folder, where it may be already."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", wheel):
        sys.exit(f"{os.path.basename(sys.argv[0])}: {wheel}: neither a file nor PACKAGE==VERSION")
    target = os.path.join(folder, wheel.replace("==", "-"))
    if not glob.glob(f"{target}/lib/libnccl.so*"):
        os.makedirs(target, exist_ok=True)
        fetch_wheel(*wheel.split("=="), ["lib/*"], target, pinned=False)
    return glob.glob(f"{target}/lib/libnccl.so*")[0]


def fetch_patiently(package, version, patterns, folder):
    """Three attempts: networks fail now and then."""
    for pause in (1, 3, None):
        try:
            return fetch_wheel(package, version, patterns, folder)
        except FAILURES:
            if pause is None:
                raise
            time.sleep(pause)


def main():
    if sys.argv[1:] == ["--pin"]:
        print_pins()
        return 0
    if len(sys.argv) != 3 or sys.argv[2] not in PARTS:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder, part, what = os.path.abspath(sys.argv[1]), PARTS[sys.argv[2]], sys.argv[2]
    stamp = os.path.join(folder, "onehop-toolkit.txt")
    text = "".join(f"{package}=={version} {' '.join(patterns)}\n" for package, version, patterns in part)
    try:
        if os.path.exists(stamp):
            with open(stamp, encoding="utf-8") as file:
                if set(text.splitlines()) <= set(file.read().splitlines()):
                    return 0
            shutil.rmtree(folder)
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise OSError(f"{folder} has files of others")
        with open(stamp, "w", encoding="utf-8") as file:
            file.write("incomplete\n")
        for package, version, patterns in part:
            what = f"{package} {version}"
            print(f"   {what}", flush=True)
            fetch_patiently(package, version, patterns, folder)
        if sys.argv[2] == "cuda12":
            os.makedirs(f"{folder}/bin")
            shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvrtc"), f"{folder}/bin/nvcc")
        with open(stamp, "w", encoding="utf-8") as file:
            file.write(text)
    except FAILURES as error:
        print(f"toolkit.py: {what}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
