# SPDX-License-Identifier: MIT
"""onehop: an NCCL plugin that serves small and medium collectives on NVLink nodes.

`onehop run -- PROGRAM`, or `python -m onehop run -- PROGRAM`, runs a program with it. This package is the onehop command
and the libraries; there is nothing in it to be called from a program that uses NCCL.
"""
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))


def preload_path():
    """Returns the path of libonehop.so, for LD_PRELOAD."""
    return os.path.join(_folder, "lib", "libonehop.so")


def plugin_path():
    """Returns the path of libnccl-net-onehop.so, for NCCL_NET_PLUGIN."""
    return os.path.join(_folder, "lib", "libnccl-net-onehop.so")


def main():
    """Becomes the onehop command."""
    command = os.path.join(_folder, "bin", "onehop")
    os.execv(command, ["onehop"] + sys.argv[1:])
