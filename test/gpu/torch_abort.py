# SPDX-License-Identifier: MIT
"""A rank that never comes: the others abort, and have their GPUs back.

    LD_PRELOAD=libonehop.so torchrun --nproc-per-node 4 test/gpu/torch_abort.py

The last rank makes no call. The others' allreduce waits for it on the GPU until they abort the process group from
another thread, as a watchdog does, while the main thread sits in cudaStreamSynchronize; eager, then in a graph.
"""
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

LIMIT_S = 10


def abort_later(group, device):
    def run():
        time.sleep(1)
        group._get_backend(device).abort()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def hold_and_abort(device, rank, world, captured):
    """True when this rank's GPU is free again soon after the abort."""
    group = dist.new_group(list(range(world)))
    tensor = torch.ones(1000, device=device)
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if captured:
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor, group=group)
    dist.barrier()
    torch.cuda.synchronize()
    if rank == world - 1:
        time.sleep(4)
        group._get_backend(device).abort()
        return True
    aborter = abort_later(group, device)
    start = time.monotonic()
    if captured:
        graph.replay()
    else:
        dist.all_reduce(tensor, group=group, async_op=True)
    torch.cuda.synchronize()
    waited = time.monotonic() - start
    aborter.join(LIMIT_S)
    print(f"rank {rank}: {'graph' if captured else 'eager'}: free {waited:.2f} s after the call", flush=True)
    return 0.5 < waited < 3 and not aborter.is_alive()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device=device))
    good = [hold_and_abort(device, rank, world, captured) for captured in (False, True)]
    # The default group is still whole: a fresh one works in the same processes.
    total = torch.ones(5, device=device)
    dist.all_reduce(total, group=dist.new_group(list(range(world))))
    good.append(total.tolist() == [float(world)] * 5)
    print(f"rank {rank}: {'ok' if all(good) else 'FAIL'} {good}", flush=True)
    sys.stdout.flush()
    os._exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
