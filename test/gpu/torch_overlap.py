# SPDX-License-Identifier: MIT
"""A matmul beside collectives, allreduces of 1 MiB if not told otherwise: what each costs the other.

    torchrun --nproc-per-node 4 test/gpu/torch_overlap.py            (stock NCCL)
    LD_PRELOAD=libonehop.so torchrun ... test/gpu/torch_overlap.py   (onehop)

Two streams: matmuls (bfloat16) on one, calls on the other, each alone and both together, each in a CUDA graph. The
slowest rank counts; median of the rounds. One line for each of alone and together, and one with what was lost.
"""
import argparse
import os


N = 4096  # a matmul is N x N x N
MATMULS, ROUNDS = 8, 20


def capture(torch, work, times):
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    return graph


class Timer:
    def __init__(self, torch, dist):
        self.torch, self.dist = torch, dist
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def measure(self, graphs):
        """Milliseconds of each graph (None: not run), begun together on two streams."""
        torch = self.torch
        times = torch.zeros(ROUNDS, 2, device="cuda", dtype=torch.float64)
        for i in range(ROUNDS):
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(2)]
            torch.cuda.synchronize()
            self.dist.barrier()
            torch.cuda.synchronize()
            for stream, graph, (begin, end) in zip(self.streams, graphs, events):
                if graph:
                    with torch.cuda.stream(stream):
                        begin.record()
                        graph.replay()
                        end.record()
            torch.cuda.synchronize()
            for j, graph in enumerate(graphs):
                if graph:
                    times[i, j] = events[j][0].elapsed_time(events[j][1])
        self.dist.all_reduce(times, op=self.dist.ReduceOp.MAX)
        return times.median(dim=0).values.tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", help="what the lines begin with",
                        default="onehop" if "onehop" in os.environ.get("LD_PRELOAD", "") else "stock")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the larger buffer (1 MiB)")
    parser.add_argument("--collective", choices=("all_reduce", "all_gather", "reduce_scatter"), default="all_reduce")
    options = parser.parse_args()
    name = options.name
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    a, b = (torch.randn(N, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    message = torch.zeros(options.bytes // 2, device="cuda", dtype=torch.bfloat16)
    part = torch.zeros(message.numel() // dist.get_world_size(), device="cuda", dtype=torch.bfloat16)
    call = {"all_reduce": lambda: dist.all_reduce(message),
            "all_gather": lambda: dist.all_gather_into_tensor(message, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, message)}[options.collective]
    timer = Timer(torch, dist)

    matmul = capture(torch, lambda: torch.matmul(a, b, out=c), MATMULS)
    alone_matmul = timer.measure([matmul, None])[0]
    one = timer.measure([None, capture(torch, call, 10)])[1] / 10
    # About as many as fit under the matmuls on every rank: the number must be the same on all.
    calls = max(1, int(alone_matmul / one))
    captured = capture(torch, call, calls)
    alone_calls = timer.measure([None, captured])[1]
    both = timer.measure([matmul, captured])
    if rank == 0:
        print(f"{name}: {MATMULS} matmuls of {N} alone {alone_matmul * 1000:.1f} us, "
              f"{calls} x {options.collective} of {options.bytes} bytes alone {alone_calls * 1000 / calls:.2f} us each")
        print(f"{name}: together: matmuls {both[0] * 1000:.1f} us ({both[0] / alone_matmul:.3f} x), "
              f"calls {both[1] * 1000 / calls:.2f} us each ({both[1] / alone_calls:.3f} x), "
              f"all done after {max(both) * 1000:.1f} us, one after the other {(alone_matmul + alone_calls) * 1000:.1f} us",
              flush=True)
    for graph in matmul, captured:
        graph.reset()  # stock NCCL ends no communicator as long as graphs hold calls of it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
