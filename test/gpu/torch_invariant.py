# SPDX-License-Identifier: MIT
"""A PyTorch program as batch-invariant inference is one: rows of a batch, summed by dist.all_reduce over the ranks.

    onehop run --invariant -- torchrun --nproc-per-node 4 test/gpu/torch_invariant.py

Each row must have the same bits in every batch, wherever it is in the batch: alone, in batches of up to 4,096 rows, in a
CUDA graph, and in a group with other batches. It knows nothing of onehop. With --report it only counts.
"""
import argparse
import os
import sys

TYPES = ("bfloat16", "float16", "float32")
ROWS = 4096
BATCHES = (1, 2, 3, 4, 7, 8, 16, 33, 64, 128, 250, 512, 1024, 2000, 4096)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, nargs="+", default=[4096, 1001], help="elements of a row")
    parser.add_argument("--report", action="store_true", help="count rows with other bits, and succeed")
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    return parser.parse_args()


class Rows:
    """The rows of one type and width on this rank, and their sums, each made alone."""

    def __init__(self, torch, dist, dtype, hidden, seed, device):
        generator = torch.Generator(device).manual_seed(seed * 1000 + dist.get_rank())
        magnitude = torch.randn((ROWS, hidden), generator=generator, device=device).mul_(3).exp2_()
        noise = torch.randn((ROWS, hidden), generator=generator, device=device)
        self.torch, self.dist = torch, dist
        self.rows = (noise * magnitude).to(dtype)
        self.sums = self.rows.clone()
        for row in self.sums:
            dist.all_reduce(row)
        self.wrong = self.checked = 0

    def bits(self, tensor):
        return tensor.view(self.torch.int16 if tensor.element_size() == 2 else self.torch.int32)

    def compare(self, result, first):
        expected = self.sums[first:first + len(result)]
        self.checked += len(result)
        self.wrong += int((self.bits(result) != self.bits(expected)).any(dim=1).sum())

    def eager(self, batch):
        for first in {0, (ROWS - batch) // 2, ROWS - batch}:
            result = self.rows[first:first + batch].clone()
            self.dist.all_reduce(result)
            self.compare(result, first)

    def captured(self, batch):
        source = self.rows[:batch].clone()
        result = self.torch.empty_like(source)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            result.copy_(source)
            self.dist.all_reduce(result)
        for first in (0, ROWS - batch):
            source.copy_(self.rows[first:first + batch])
            graph.replay()
            self.compare(result, first)
        self.torch.cuda.synchronize()
        del graph

    def grouped(self, batches, device):
        results = [self.rows[:batch].clone() for batch in batches]
        with self.dist.distributed_c10d._coalescing_manager(device=device):
            for result in results:
                self.dist.all_reduce(result)
        for result in results:
            self.compare(result, 0)


def main():
    options = parse()
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    batches = BATCHES[::2] if options.quick else BATCHES
    wrong = checked = 0
    for name in TYPES:
        for hidden in options.hidden:
            rows = Rows(torch, dist, getattr(torch, name), hidden, options.seed, device)
            for batch in batches:
                rows.eager(batch)
            for batch in batches[::3]:
                rows.captured(batch)
            rows.grouped(batches[:8], device)
            print(f"rank {dist.get_rank()}: {name}, {hidden} elements: {rows.wrong} of {rows.checked} rows have other "
                  f"bits than alone", flush=True)
            wrong += rows.wrong
            checked += rows.checked
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(f"{'ok' if wrong == 0 else 'FAIL'}: {checked} rows, {wrong} with other bits, {dist.get_world_size()} ranks, "
              f"seed {options.seed}, torch {torch.__version__}", flush=True)
    dist.destroy_process_group()
    sys.exit(1 if wrong and not options.report else 0)


if __name__ == "__main__":
    main()
