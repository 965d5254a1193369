# SPDX-License-Identifier: MIT
"""PyTorch's symmetric memory allreduces, one-shot and two-shot, timed as `onehop perf` times, in its CSV.

    torchrun --nproc-per-node 4 test/gpu/torch_symm.py --sizes 1024,65536,1048576 --csv torch.csv

bfloat16 sum, in a CUDA graph of 20 calls and eager, in the patterns layer and chain of `onehop perf`; slowest rank of each round, median and 99th percentile over the
rounds, results checked. NVLink multicast stays off: TORCH_SYMM_MEM_DISABLE_MULTICAST=1 is set here.
"""
import argparse
import os
import sys

os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
HEAD = "mode,type,op,ranks,bytes,count,side,time_us,p99_us,algbw_gbps,busbw_gbps,wrong,floor_us,served_by"
ITERATIONS, ROUNDS = 20, 20
ONE_SHOT_LIMIT = 8 << 20  # above it one-shot sends n times the message for nothing


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="1024,4096,16384,65536,262144,1048576,4194304,16777216")
    parser.add_argument("--pattern", choices=("layer", "chain"), default="layer",
                        help="a copy of the result to the input between the calls, subtracted; or nothing (layer)")
    parser.add_argument("--csv", help="where rank 0 writes the lines (stdout)")
    return parser.parse_args()


def capture(torch, call):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ITERATIONS):
            call()
    return graph


def time_once(torch, dist, run, before):
    """Microseconds of an iteration. `before` brings the ranks together."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    before()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / ITERATIONS


def measure(torch, dist, runs):
    """Microseconds of a call in each round, of the slowest rank. runs: (run, before) of the pattern, and of its kernel
    alone, which is subtracted, if it has one."""
    times = torch.zeros(ROUNDS, device="cuda", dtype=torch.float64)
    for i in range(ROUNDS):
        us = [time_once(torch, dist, run, before) for run, before in runs]
        times[i] = max(us[0] - sum(us[1:]), 0.001)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return sorted(times.tolist())


def main():
    options = parse()
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    group = dist.group.WORLD.group_name
    sizes = sorted({int(size) for size in options.sizes.split(",")})
    buffer = symm.empty(max(sizes) // 2 + 8, dtype=torch.bfloat16, device=f"cuda:{rank}")
    symm.rendezvous(buffer, dist.group.WORLD)

    lines, failures = [], 0
    for mode in ("graph", "eager"):
        for size in sizes:
            count = size // 2
            view = buffer[:count]
            for side, call in (("torch-oneshot", lambda v=view: torch.ops.symm_mem.one_shot_all_reduce(v, "sum", group)),
                               ("torch-twoshot", lambda v=view: torch.ops.symm_mem.two_shot_all_reduce_(v, "sum", group))):
                if count == 0 or (side == "torch-oneshot" and size > ONE_SHOT_LIMIT):
                    continue
                if size % (16 * world) != 0:  # two-shot deals 16-byte words out to the ranks
                    continue
                view.fill_(rank + 1)
                dist.barrier()
                torch.cuda.synchronize()
                result = call()
                torch.cuda.synchronize()
                wrong = torch.tensor([int((result != world * (world + 1) // 2).sum())], device="cuda")
                dist.all_reduce(wrong)
                view.zero_()  # sums of sums, in place, would overflow
                torch.cuda.synchronize()
                dist.barrier()
                steps = [call]
                if options.pattern == "layer":
                    steps = [lambda c=call, v=view: torch.mul(c(), 1, out=v), lambda v=view: torch.mul(v, 1, out=v)]
                if mode == "graph":
                    graphs = [capture(torch, step) for step in steps]
                    runs = [(graph.replay, graph.replay) for graph in graphs]
                else:
                    runs = [(lambda s=step: [s() for _ in range(ITERATIONS)], step) for step in steps]
                times = measure(torch, dist, runs)
                failures += int(wrong)
                n = len(times)
                median, p99 = (times[(n - 1) // 2] + times[n // 2]) / 2, times[(99 * n + 99) // 100 - 1]
                bandwidth = size / median / 1000
                lines.append(f"{mode},bfloat16,sum,{world},{size},{count},{side},{median:.3f},{p99:.3f},{bandwidth:.6g},"
                             f"{bandwidth * 2 * (world - 1) / world:.6g},{int(wrong)},,")
    if rank == 0:
        text = "\n".join([f"# software: torch {torch.__version__}", f"# pattern: {options.pattern}", HEAD] + lines) + "\n"
        if options.csv:
            with open(options.csv + ".new", "w") as file:
                file.write(text)
            os.replace(options.csv + ".new", options.csv)
        else:
            sys.stdout.write(text)
    dist.destroy_process_group()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
