# SPDX-License-Identifier: MIT
"""Profilers see onehop's kernels as communication.

    LD_PRELOAD=libonehop.so torchrun --nproc-per-node 2 test/gpu/torch_profile.py

Eager allreduces and a replayed graph of them under torch.profiler. Each must be one kernel whose name says that it is
NCCL's by the pattern of HTA (hta/utils/utils.py: ^nccl.*Kernel) and onehop's, with operation, type, algorithm and ranks.
"""
import os
import re
import sys

CALLS = 20
COMMUNICATION = re.compile(r"^nccl.*Kernel")
ONEHOP = re.compile(r"^ncclDevKernel_AllReduce_(Sum|Any)_(bf16|f32|i64)_onehop_(oneshot|twoshot)_n[0-9to]+")


def main():
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    tensors = [torch.ones(4096, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.int64)]

    def work():
        for i in range(CALLS):
            dist.all_reduce(tensors[i % len(tensors)], op=dist.ReduceOp.MAX if i % 2 else dist.ReduceOp.SUM)

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        graph.replay()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if COMMUNICATION.match(event.name)]
    ours = [name for name in names if ONEHOP.match(name)]
    good = len(ours) == len(names) == 2 * CALLS
    if rank == 0:
        print(f"{len(names)} kernels of communication, {len(ours)} of them onehop's, {2 * CALLS} expected")
        print("\n".join(sorted(set(names))))
    dist.destroy_process_group()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
