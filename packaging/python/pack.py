#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a wheel of what `make install` has installed.

    pack.py PREFIX TAG OUT

PREFIX has bin/onehop, lib/*.so and share/; TAG is the platform, as linux_x86_64 or manylinux_2_27_x86_64; OUT is the
folder for the wheel. Prints its path. $CC (default: cc) links the small file below. The same input gives the same bytes.
"""
import base64
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
METADATA = """Metadata-Version: 2.1
Name: onehop
Version: {version}
Summary: NCCL plugin for small and medium collectives on NVLink nodes
License: MIT
Classifier: License :: OSI Approved :: MIT License
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.7
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """Wheel-Version: 1.0
Generator: onehop
Root-Is-Purelib: false
Tag: py3-none-{tag}
"""
ENTRY_POINTS = """[console_scripts]
onehop = onehop:main
"""


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def net_plugin(lib, folder):
    """
    libnccl-net-onehop.so: a wheel has no symbolic links, and a copy would be a second onehop in a process that has both.
    This one is empty, and brings libonehop.so, in which NCCL then finds the plugin's symbols.
    """
    target, source = os.path.join(folder, "libnccl-net-onehop.so"), os.path.join(folder, "empty.c")
    with open(source, "wb"):
        pass
    subprocess.run(shlex.split(os.environ.get("CC", "cc")) +
                   ["-shared", "-o", target, source, "-Wl,--no-as-needed", "-Wl,-soname,libnccl-net-onehop.so", "-Wl,-s",
                    "-Wl,--enable-new-dtags,-rpath,$ORIGIN", f"{lib}/libonehop.so"], check=True)
    return read(target)


def contents(prefix, version, tag):
    """(path in the wheel, is it executable, data) of all files but RECORD."""
    data, info = f"onehop-{version}.data/data", f"onehop-{version}.dist-info"
    for name in ("__init__.py", "__main__.py"):
        yield f"onehop/{name}", False, read(HERE, "onehop", name)
    yield "onehop/bin/onehop", True, read(prefix, "bin/onehop")
    for name in ("libonehop.so", "libonehop-audit.so"):
        yield f"onehop/lib/{name}", True, read(prefix, "lib", name)
    with tempfile.TemporaryDirectory() as folder:
        yield "onehop/lib/libnccl-net-onehop.so", True, net_plugin(os.path.join(prefix, "lib"), folder)
    yield "onehop/include/onehop/onehop.h", False, read(prefix, "include/onehop/onehop.h")
    for folder, _, names in sorted(os.walk(os.path.join(prefix, "share"))):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), prefix)
            yield f"{data}/{path}", False, read(prefix, path)
    readme = read(TOP, "README.md").decode()
    yield f"{info}/METADATA", False, METADATA.format(version=version, readme=readme).encode()
    yield f"{info}/WHEEL", False, WHEEL.format(tag=tag).encode()
    yield f"{info}/entry_points.txt", False, ENTRY_POINTS.encode()
    yield f"{info}/LICENSE", False, read(TOP, "LICENSE")
    if os.environ.get("ONEHOP_NOTICES"):
        yield f"{info}/LICENSE.jansson", False, read(os.environ["ONEHOP_NOTICES"])


def main():
    if len(sys.argv) != 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    prefix, tag, out = sys.argv[1:]
    version = subprocess.run([os.path.join(TOP, "scripts/version")], stdout=subprocess.PIPE, check=True).stdout.decode()
    path = os.path.join(out, f"onehop-{version}-py3-none-{tag}.whl")
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        def add(name, executable, data):
            entry = zipfile.ZipInfo(name)  # of 1980: the time of a build says nothing
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)

        for name, executable, data in contents(prefix, version, tag):
            add(name, executable, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record.append(f"{name},sha256={digest},{len(data)}\n")
        name = f"onehop-{version}.dist-info/RECORD"
        add(name, False, "".join(record + [f"{name},,\n"]).encode())
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
