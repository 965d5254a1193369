# SPDX-License-Identifier: MIT
"""One process with all GPUs: memory and streams by the driver's functions, for programs about a binding of NCCL.

These programs need the binding alone, no arrays of their own. Each makes communicators in turn, and on each sums whole
numbers, one group a round, so that every sum is exact. Exit status: 0 all sums are right, 1 some are not, 77 the
package is not there.
"""
import ctypes
import sys

COMMUNICATORS, ROUNDS, COUNT = 2, 10, 1000


def package(load):
    """What load() imports; ends the program with a sentence where that is not there, or has no libnccl to use."""
    try:
        return load()
    except Exception as error:  # packages raise errors of their own when a library that they need is missing
        print(f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0])
        sys.exit(77)


class Driver:
    """libcuda; each call must succeed."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            result = function(*arguments)
            if result != 0:
                raise RuntimeError(f"{name}: {result}")
        return call


class Gpu:
    """A GPU with a stream, and two buffers of COUNT floats."""

    def __init__(self, driver, ordinal):
        self.driver, self.ordinal = driver, ordinal
        self.context, stream, buffers = ctypes.c_void_p(), ctypes.c_void_p(), []
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), ordinal)
        self.enter()
        driver.cuStreamCreate(ctypes.byref(stream), 1)
        for _ in range(2):
            buffer = ctypes.c_uint64()
            driver.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT))
            buffers.append(buffer.value)
        self.stream, (self.send, self.receive) = stream.value, buffers

    def enter(self):
        self.driver.cuCtxSetCurrent(self.context)

    def put(self, values):
        self.enter()
        data = (ctypes.c_float * COUNT)(*values)
        self.driver.cuMemcpyHtoD_v2(ctypes.c_uint64(self.send), data, ctypes.c_size_t(4 * COUNT))

    def get(self):
        self.enter()
        data = (ctypes.c_float * COUNT)()
        self.driver.cuStreamSynchronize(ctypes.c_void_p(self.stream))
        self.driver.cuMemcpyDtoH_v2(data, ctypes.c_uint64(self.receive), ctypes.c_size_t(4 * COUNT))
        return list(data)


def open_gpus():
    driver, number = Driver(), ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(number))
    return [Gpu(driver, ordinal) for ordinal in range(number.value)]


def run(about, open_all, reduce, close):
    """open_all(gpus) makes a communicator of all, reduce(gpus, comms) sums `send` into `receive`, close(comm) ends it."""
    gpus, wrong, sums = open_gpus(), 0, 0
    for _ in range(COMMUNICATORS):
        comms = open_all(gpus)
        for turn in range(ROUNDS):
            for gpu in gpus:
                gpu.put([gpu.ordinal * turn + i % 97 for i in range(COUNT)])
            reduce(gpus, comms)
            expected = [turn * len(gpus) * (len(gpus) - 1) // 2 + len(gpus) * (i % 97) for i in range(COUNT)]
            wrong += sum(gpu.get() != expected for gpu in gpus)
            sums += 1
        for comm in comms:
            close(comm)
    print(f"{about}: {len(gpus)} GPUs, {sums} sums of {COUNT} elements: {wrong} wrong")
    sys.exit(1 if wrong else 0)
