# SPDX-License-Identifier: MIT
"""One rank of an NCCL job by ctypes, as vLLM's and SGLang's pynccl do it: reach_ctypes.py RANK NRANKS FOLDER LIBRARY

All functions are looked up before the first communicator ("early"), or, with a fifth argument, before each of two.
"""
import ctypes
import os
import sys
import time

COUNT = 1000
NAMES = ("ncclGetUniqueId", "ncclCommInitRank", "ncclCommDestroy", "ncclAllReduce")


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def functions(library):
    found = {}
    for name in NAMES:
        found[name] = ctypes.CFUNCTYPE(ctypes.c_int)((name, library))
    found["ncclCommInitRank"].argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
    found["ncclCommDestroy"].argtypes = [ctypes.c_void_p]
    found["ncclAllReduce"].argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                       ctypes.c_void_p, ctypes.c_void_p]
    return found


def must(result):
    if result != 0:
        raise RuntimeError(f"call failed: {result}")


def share_id(nccl, rank, path):
    unique = UniqueId()
    if rank == 0:
        must(nccl["ncclGetUniqueId"](ctypes.byref(unique)))
        with open(path + ".new", "wb") as file:
            file.write(bytes(unique))
        os.rename(path + ".new", path)
        return unique
    end = time.monotonic() + 20
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise RuntimeError("no unique id")
        time.sleep(0.001)
    with open(path, "rb") as file:
        return UniqueId.from_buffer_copy(file.read())


def main():
    rank, nranks, folder, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    late = len(sys.argv) > 5
    cuda = ctypes.CDLL("libcuda.so.1")
    context, stream, buffer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), rank))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    must(cuda.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT)))
    library = ctypes.CDLL(path)
    nccl = functions(library)
    for serial in range(2):
        if late:
            nccl = functions(library)
        comm = ctypes.c_void_p()
        must(nccl["ncclCommInitRank"](ctypes.byref(comm), nranks, share_id(nccl, rank, f"{folder}/id.{serial}"), rank))
        if late:
            nccl = functions(library)
        for call in range(3):
            values = (ctypes.c_float * COUNT)(*[i % 97 + call + rank for i in range(COUNT)])
            must(cuda.cuMemcpyHtoD_v2(buffer, values, ctypes.c_size_t(4 * COUNT)))
            must(cuda.cuCtxSynchronize())  # the stream does not wait for the copy
            must(nccl["ncclAllReduce"](buffer.value, buffer.value, COUNT, 7, 0, comm, stream))
            must(cuda.cuStreamSynchronize(stream))
            must(cuda.cuMemcpyDtoH_v2(values, buffer, ctypes.c_size_t(4 * COUNT)))
            if list(values) != [nranks * (i % 97 + call) + nranks * (nranks - 1) / 2 for i in range(COUNT)]:
                raise RuntimeError("wrong result")
        must(nccl["ncclCommDestroy"](comm))
    if hasattr(library, "simnccl_calls"):  # the simulated NCCL
        library.simnccl_calls.restype = ctypes.c_ulong
        print(f"reach: ctypes: stock {library.simnccl_calls(b'ncclAllReduce')}")
    else:
        print("reach: ctypes: right")
    if "REACH_HOLD" in os.environ:
        sys.stdout.flush()
        sys.stdin.read()


main()
