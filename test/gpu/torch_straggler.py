# SPDX-License-Identifier: MIT
"""What an allreduce costs the last rank to come, when the others have waited for it.

    torchrun --nproc-per-node 4 test/gpu/torch_straggler.py            (stock NCCL)
    LD_PRELOAD=libonehop.so torchrun ... test/gpu/torch_straggler.py   (onehop)

In each round the last rank's GPU is busy for a while, the others' are not; then come ten allreduces back to back. Counted
is the time from the end of that work to the end of the tenth, on the late rank: median of the rounds, a call. Waiting
must not make the others slow to answer.
"""
import argparse
import os
import statistics

ROUNDS = 15

def measure(torch, dist, buffer, late, microseconds):
    times = []
    cycles = int(microseconds * 2000)  # of a clock of some 2 GHz
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if late:
            torch.cuda._sleep(cycles)
        begin.record()
        for _ in range(10):
            dist.all_reduce(buffer)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 100)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="", help="what the line begins with")
    options = parser.parse_args()
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    late = dist.get_rank() == dist.get_world_size() - 1
    for kib in (1, 64, 256, 512, 1024, 4096):
        buffer = torch.zeros(kib * 512, dtype=torch.bfloat16, device="cuda")
        dist.all_reduce(buffer)
        figures = [measure(torch, dist, buffer, late, wait) for wait in (50, 1000, 5000)]
        if late:
            print(f"{options.name}: {kib:5} KiB, late by 50, 1000, 5000 us:" + "".join(f" {f:8.2f}" for f in figures) +
                  " us a call", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
