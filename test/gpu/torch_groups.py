# SPDX-License-Identifier: MIT
"""Twenty process groups of which four make allreduces; a capture right after one warm-up, as vLLM makes it; two groups
whose largest calls, and graphs of such calls, meet in other orders on the ranks.

    torchrun --nproc-per-node 2 test/gpu/torch_groups.py                                # stock NCCL
    LD_PRELOAD=libonehop.so ONEHOP_STATS=1 torchrun --nproc-per-node 2 test/gpu/torch_groups.py

The other groups make an all-gather each. Prints the GPU memory of NCCL and onehop, as the driver reports it, and the time
of the first allreduce of a group. Every result is checked. Exit status: 0 when all are right.
"""
import functools
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

GROUPS, WITH_ALLREDUCE = 20, 4
LARGE_CALLS, OF_A_GRAPH = 200, 20
# Of two communicators: the largest grids, of the largest blocks and of many; in a graph two of 1 MiB wait at a time.
LARGE_MIB = (1, 1), (1, 4), (4, 4), (2, 16)


def used_mib(device):
    """GPU memory in use that PyTorch's allocator does not hold."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info(device)
    return (total - free - torch.cuda.memory_reserved(device)) / 2**20


def capture_after_one_warm_up(device, world):
    """One eager call on a new group, then a graph of ten, replayed three times. True when the results are right."""
    group = dist.new_group(list(range(world)))
    tensor = torch.ones(4096, device=device, dtype=torch.bfloat16)
    dist.all_reduce(tensor, group=group)
    tensor.fill_(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        for _ in range(10):
            dist.all_reduce(tensor, group=group, op=dist.ReduceOp.MAX)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return bool((tensor == 3).all())


def captured(call, stream):
    """A graph of calls."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(OF_A_GRAPH):
            call()
    return graph.replay


def in_other_orders(device, rank, world, mib, graphs):
    """Calls of so many MiB on groups and streams of their own, in an order that the rank turns: the grids of two are on a
    GPU together, so no call waits for another one's blocks. True when the results are right."""
    number = len(mib)
    groups = [dist.new_group(list(range(world))) for _ in mib]
    tensors = [torch.ones(size << 18, device=device) for size in mib]
    streams = [torch.cuda.Stream() for _ in groups]
    calls = [functools.partial(dist.all_reduce, tensor, group=group, op=dist.ReduceOp.AVG)
             for group, tensor in zip(groups, tensors)]
    for call in calls:
        call()
    torch.cuda.synchronize()
    if graphs:
        calls = [captured(call, stream) for call, stream in zip(calls, streams)]
    for _ in range(LARGE_CALLS // (OF_A_GRAPH if graphs else 1)):
        for k in range(number):
            i = (k + rank) % number
            with torch.cuda.stream(streams[i]):
                calls[i]()
    torch.cuda.synchronize()
    return all(bool((tensor == 1).all()) for tensor in tensors)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    tensor, parts = torch.ones(4096, device=device), torch.empty(4096 * world, device=device)
    dist.barrier()
    before = used_mib(device)
    groups = [dist.new_group(list(range(world))) for _ in range(GROUPS)]
    good, first_ms = [], []
    for group in groups[WITH_ALLREDUCE:]:
        dist.all_gather_into_tensor(parts, tensor, group=group)
    gathered = used_mib(device)
    for group in groups[:WITH_ALLREDUCE]:
        tensor.fill_(rank + 1)
        torch.cuda.synchronize()
        dist.barrier()
        start = time.monotonic()
        dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()
        first_ms.append((time.monotonic() - start) * 1e3)
        good.append(bool((tensor == world * (world + 1) / 2).all()))
    after = used_mib(device)
    good.append(capture_after_one_warm_up(device, world))
    good.extend(in_other_orders(device, rank, world, mib, graphs) for mib in LARGE_MIB for graphs in (False, True))
    if rank == 0:
        print(f"{GROUPS - WITH_ALLREDUCE} groups with all-gathers {gathered - before:.0f} MiB, {WITH_ALLREDUCE} groups with "
              f"allreduces {after - gathered:.0f} MiB, first allreduce {statistics.median(first_ms):.1f} ms", flush=True)
    print(f"rank {rank}: {'ok' if all(good) else 'FAIL'}", flush=True)
    dist.destroy_process_group()
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
