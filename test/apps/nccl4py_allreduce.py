# SPDX-License-Identifier: MIT
"""NCCL's own binding for Python (nccl4py), in one process with all GPUs: nccl4py_allreduce.py

It knows nothing of onehop. The functions are those that nccl.core calls, with addresses; they are looked up by dlsym,
all when the first of them is called.
"""
import gpus


def load():
    from nccl.bindings import nccl as binding
    from nccl.core import FLOAT32, SUM

    return binding, FLOAT32, SUM


def main():
    nccl, float32, add = gpus.package(load)

    def reduce(every, comms):
        nccl.group_start()
        for gpu, comm in zip(every, comms):
            gpu.enter()
            nccl.all_reduce(gpu.send, gpu.receive, gpus.COUNT, int(float32), int(add), comm, gpu.stream)
        nccl.group_end()

    gpus.run(f"nccl4py, NCCL {nccl.get_version()}",
             lambda every: nccl.comm_init_all(len(every), [gpu.ordinal for gpu in every]), reduce, nccl.comm_destroy)


if __name__ == "__main__":
    main()
