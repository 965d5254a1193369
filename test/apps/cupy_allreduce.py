# SPDX-License-Identifier: MIT
"""CuPy's binding of NCCL (cupy.cuda.nccl), in one process with all GPUs: cupy_allreduce.py

It knows nothing of onehop. The extension module is linked with libnccl.so.2.
"""
import gpus


def load():
    import cupy
    from cupy.cuda import nccl

    nccl.get_version()  # a stand-in, where CuPy was built without NCCL or finds none
    return cupy, nccl


def main():
    cupy, nccl = gpus.package(load)

    def reduce(every, comms):
        nccl.groupStart()
        for gpu, comm in zip(every, comms):
            gpu.enter()
            comm.allReduce(gpu.send, gpu.receive, gpus.COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, gpu.stream)
        nccl.groupEnd()

    gpus.run(f"CuPy {cupy.__version__}, NCCL {nccl.get_version()}",
             lambda every: nccl.NcclCommunicator.initAll([gpu.ordinal for gpu in every]), reduce,
             lambda comm: comm.destroy())


if __name__ == "__main__":
    main()
