# SPDX-License-Identifier: MIT
"""An ordinary PyTorch program, checked: dist.all_reduce against float64, eager and in CUDA graphs.

    torchrun --nproc-per-node 4 test/gpu/torch_allreduce.py            (stock NCCL)
    LD_PRELOAD=libonehop.so torchrun ... test/gpu/torch_allreduce.py   (onehop)

It knows nothing of onehop. Every rank can compute every rank's input, so each checks the sum by itself; results are
also compared bit for bit between the ranks. With --own-gpu each process sees only its own GPU.
"""
import argparse
import os
import sys

TYPES = ("bfloat16", "float16", "float32")
# Bytes: the smallest, around every vector width, around the limits of algorithms, and up to 64 MiB.
SIZES = [1, 2, 4, 6, 8, 10, 16, 30, 32, 62, 64, 100, 1000, 1024, 4096, 4098, 16384, 65534, 65536, 65540, 262144, 262150,
         524288, 524292, 1 << 20, (1 << 20) + 34, 4 << 20, 8 << 20, (8 << 20) + 4, 16 << 20, 64 << 20]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--own-gpu", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    return parser.parse_args()


def rank_input(torch, dtype, count, rank, seed, device):
    """Rank's input: made on the CPU generator of that seed, so that every rank can make every other's."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    base = torch.randn(min(count, 1 << 16), generator=generator) * (1 + rank)
    repeats = -(-count // base.numel())
    return base.to(dtype).to(device).repeat(repeats)[:count]


def bound(torch, dtype, world):
    """Relative to the sum of magnitudes: one rounding of the result, and n fp32 additions."""
    return torch.finfo(dtype).eps / 2 + world * torch.finfo(torch.float32).eps


class Checker:
    def __init__(self, torch, dist, rank, world, device):
        self.torch, self.dist, self.rank, self.world, self.device = torch, dist, rank, world, device
        self.errors = 0
        self.checks = 0

    def expect(self, inputs, result, what):
        torch = self.torch
        exact = torch.zeros(result.numel(), dtype=torch.float64, device=self.device)
        magnitude = torch.zeros_like(exact)
        for tensor in inputs:
            exact += tensor.double()
            magnitude += tensor.double().abs()
        # Stock NCCL rounds 16-bit sums at every addition: one rounding more for each rank.
        allowed = bound(torch, result.dtype, self.world) * magnitude * self.world + 1e-7
        wrong = int(((result.double() - exact).abs() > allowed).sum()) + int(result.isnan().sum())
        bits = result.view(torch.int16 if result.element_size() == 2 else torch.int32).to(torch.int64)
        weight = torch.arange(1, bits.numel() + 1, device=self.device, dtype=torch.int64)
        mine = (bits * weight).sum().reshape(1)
        sums = [torch.empty_like(mine) for _ in range(self.world)]
        self.dist.all_gather(sums, mine)
        differs = any(int(s) != int(mine) for s in sums)
        self.checks += 1
        if wrong or differs:
            self.errors += 1
            print(f"FAIL rank {self.rank}: {what}: {wrong} wrong, bits {'differ' if differs else 'equal'}", flush=True)


def aligned_views(torch, dtype, count, offset, device):
    """A tensor of `count` elements that starts `offset` elements into an allocation."""
    return torch.empty(count + offset, dtype=dtype, device=device)[offset:]


def check_eager(checker, torch, dist, sizes, seed):
    for name in TYPES:
        dtype = getattr(torch, name)
        for size in sizes:
            count = max(1, size // dtype.itemsize)
            inputs = [rank_input(torch, dtype, count, r, seed + size, checker.device) for r in range(checker.world)]
            for offset in (0, checker.rank % 3 + 1):  # alignment differs from rank to rank
                tensor = aligned_views(torch, dtype, count, offset, checker.device)
                tensor.copy_(inputs[checker.rank])
                dist.all_reduce(tensor)
                checker.expect(inputs, tensor, f"eager {name} {size} bytes offset {offset}")


def check_graph(checker, torch, dist, sizes, seed, replays):
    for name in TYPES:
        dtype = getattr(torch, name)
        for size in sizes:
            count = max(1, size // dtype.itemsize)
            source = torch.empty(count, dtype=dtype, device=checker.device)
            tensor = torch.empty_like(source)
            dist.all_reduce(tensor)  # warm up outside the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                tensor.copy_(source)
                dist.all_reduce(tensor)
            for replay in range(replays):
                last = replay in (0, replays - 1)
                if last:
                    inputs = [rank_input(torch, dtype, count, r, seed + size + replay, checker.device)
                              for r in range(checker.world)]
                    source.copy_(inputs[checker.rank])
                graph.replay()
                if replay % 10 == 5:  # eager calls between replays share the communicator's state
                    dist.all_reduce(torch.ones(17, dtype=dtype, device=checker.device))
                if last:
                    checker.expect(inputs, tensor, f"graph {name} {size} bytes replay {replay}")
            torch.cuda.synchronize()
            del graph


def check_two_groups(checker, torch, dist, seed):
    """Two communicators on two streams, calls queued on both; on one rank the one, on another the other is held up."""
    groups = [dist.new_group(list(range(checker.world))) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    count = 1 << 19
    for group in groups:  # communicators are made at the first call
        dist.all_reduce(torch.zeros(1, device=checker.device), group=group)
    torch.cuda.synchronize()
    for trial in range(3):
        inputs = [rank_input(torch, torch.bfloat16, count, r, seed + trial, checker.device)
                  for r in range(checker.world)]
        tensors = [[inputs[checker.rank].clone() for _ in range(8)] for _ in groups]
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[(checker.rank + trial) % 2]):
            torch.cuda._sleep(5_000_000)
        for call in range(8):
            for group, stream, mine in zip(groups, streams, tensors):
                with torch.cuda.stream(stream):
                    dist.all_reduce(mine[call], group=group)
        torch.cuda.synchronize()
        for number, mine in enumerate(tensors):
            for call, tensor in enumerate(mine):
                checker.expect(inputs, tensor, f"two groups, trial {trial}, group {number}, call {call}")


def main():
    options = parse()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if options.own_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", 0 if options.own_gpu else rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    checker = Checker(torch, dist, rank, world, device)
    sizes = SIZES[::4] if options.quick else SIZES
    check_eager(checker, torch, dist, sizes, options.seed)
    check_graph(checker, torch, dist, sizes[::3], options.seed, options.replays)
    check_two_groups(checker, torch, dist, options.seed)
    torch.cuda.synchronize()
    failed = torch.tensor([checker.errors], device=device)
    dist.all_reduce(failed)
    failures = int(failed)
    if rank == 0:
        version = ".".join(str(v) for v in torch.cuda.nccl.version())
        print(f"{'ok' if failures == 0 else 'FAIL'}: {checker.checks} checks on each of {world} ranks, {failures} "
              f"failures, seed {options.seed}, torch {torch.__version__}, NCCL {version}", flush=True)
    dist.destroy_process_group()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
