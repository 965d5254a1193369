# SPDX-License-Identifier: MIT
"""Results of dist.all_reduce, bit by bit, against those of another run: first with stock NCCL, then with onehop.

    torchrun --nproc-per-node 2 test/gpu/torch_bits.py --save FILE
    LD_PRELOAD=libonehop.so torchrun --nproc-per-node 2 test/gpu/torch_bits.py --compare FILE

With two ranks sum, prod, min and max must have equal bits (doc/numerics.md); avg may differ in subnormal numbers. With
more ranks it reports the distance in ulps. Inputs have magnitudes from 2^-20 to 2^15, as far as the type has them.
"""
import argparse
import os
import sys

TYPES = ("float32", "float64", "bfloat16", "float16")
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
COUNTS = (1, 17, 4099, 65536, 1_000_003, 8_000_000)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="smaller messages only")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", metavar="FILE")
    what.add_argument("--compare", metavar="FILE")
    return parser.parse_args()


def reduce(torch, dist, name, op, count, seed, device):
    """The result of one call, on the CPU."""
    generator = torch.Generator(device).manual_seed(seed * 1000 + dist.get_rank())
    exponent = torch.randint(-20, 16, (count,), generator=generator, device=device).double()
    noise = torch.rand(count, generator=generator, device=device, dtype=torch.float64) + 1
    sign = torch.randint(0, 2, (count,), generator=generator, device=device).double() * 2 - 1
    tensor = (sign * noise * exponent.exp2()).to(getattr(torch, name))
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
    return tensor.cpu()


def bits(torch, tensor):
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def ulps(torch, a, b):
    """The distance of finite numbers, in ulps of the nearer power of two below the larger."""
    info = torch.finfo(a.dtype)
    a, b = a.double(), b.double()
    larger = torch.maximum(a.abs(), b.abs()).clamp_min(info.tiny)
    one = torch.exp2(torch.floor(torch.log2(larger))) * info.eps
    distance = (a - b).abs() / one
    return distance[torch.isfinite(distance)]


def compare(torch, what, ours, stock, must_equal):
    differ = bits(torch, ours) != bits(torch, stock)
    differ &= ~(torch.isnan(ours) & torch.isnan(stock))
    count = int(differ.sum())
    line = f"{what}: {count} of {ours.numel()} differ"
    if count > 0:
        distance = ulps(torch, ours[differ], stock[differ])
        if distance.numel() > 0:
            line += f", by {distance.max():.0f} ulps at most, {distance.mean():.2f} on average"
    print(("FAIL: " if must_equal and count else "") + line, flush=True)
    return must_equal and count > 0


def main():
    options = parse()
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    world, first = dist.get_world_size(), dist.get_rank() == 0
    before = torch.load(options.compare) if options.compare and first else {}
    results, failed = {}, 0
    for name in TYPES:
        for op in OPS:
            for count in COUNTS[:4] if options.quick else COUNTS:
                key = f"{name} {op.lower()} {count}"
                results[key] = reduce(torch, dist, name, op, count, options.seed + count, device)
                if before:
                    failed += compare(torch, key, results.pop(key), before[key], world == 2 and op != "AVG")
    if options.save and first:
        torch.save(results, options.save)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    if first and before:
        print(f"{'FAIL' if failed else 'ok'}: {len(before)} cases, {failed} that must be equal are not, {world} ranks, "
              f"torch {torch.__version__}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
