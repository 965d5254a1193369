# SPDX-License-Identifier: MIT
"""Allreduce of sparse gradients: Ok-Topk, what it is compared with, and their collectives mixed.

    torchrun --nproc-per-node 4 test/apps/sparse.py [--out FILE]

dense: one allreduce. topk: every rank's k largest entries, allgathered and added. gtopk: the k largest of two ranks
merged in a tree of sends and receives, then a broadcast (Shi et al., ICDCS 2019). oktopk: the index space is cut into
regions of equal load by an allreduce of boundaries; each rank is sent its region's entries (sizes by all-to-all, then
grouped sends and receives, a few peers at a time), adds them, picks those above a common threshold, and all gather
(Li and Hoefler, PPoPP 2022). gaussian: entries above a threshold taken from mean and deviation, whose number differs
from rank to rank (Shi et al., 2019); gaussian-adjusted: the threshold is moved until the number is near k.
Then: all of these on two communicators and two streams at once. (PyTorch cannot put an allreduce into one group with
sends of another stream: allreduce_all.c does.) The program counts the collectives that it asks for, by kind.

The gradients are whole multiples of 2^-10, so that every sum is exact in whatever order: results must be the same bits
with any NCCL, and are compared with a sum that each rank makes by itself.
"""
import math

import torch
import torch.distributed as dist

from harness import Clock, Job, parser

ROUNDS = 12
THROTTLE = 2  # peers that are sent to and received from at a time


def gradient(job, rank, round_, length):
    """A rank's gradient: most entries small, few large, as whole multiples of 2^-10."""
    generator = torch.Generator().manual_seed(job.options.seed * 7919 + round_ * 101 + rank)
    values = torch.randn(length, generator=generator, dtype=torch.float64) ** 3
    return (torch.round(values * 1024) / 1024).float().to(job.device)


def largest(values, k):
    """Indices, ascending, of the k entries of the largest magnitude; among equals those of the lowest index."""
    order = torch.sort(values.abs(), descending=True, stable=True).indices[:k]
    return torch.sort(order).values


class Group:
    """The collectives on one communicator."""

    def __init__(self, job):
        self.job, self.rank, self.world = job, job.rank, job.world
        self.group = dist.new_group(list(range(job.world)))

    def sum(self, tensor):
        self.job.count("allreduce")
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, tensor):
        """Every rank's tensor. If they differ in length, torch makes a group of broadcasts; with gloo they are padded."""
        lengths = torch.zeros(self.world, dtype=torch.int64, device=tensor.device)
        lengths[self.rank] = tensor.numel()
        lengths = self.sum(lengths).tolist()
        uneven = self.job.cuda and len(set(lengths)) > 1
        every = [tensor.new_empty(size) for size in (lengths if uneven else [max(*lengths, 1)] * self.world)]
        mine = torch.zeros_like(every[self.rank])
        mine[:tensor.numel()] = tensor
        self.job.count("broadcast" if uneven else "allgather", self.world if uneven else 1)
        dist.all_gather(every, mine, group=self.group)
        return [part[:length] for part, length in zip(every, lengths)]

    def broadcast(self, tensor):
        """Rank 0's."""
        self.job.count("broadcast")
        dist.broadcast(tensor, 0, group=self.group)

    def swap(self, operations):
        """Sends and receives of one group."""
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()

    def send(self, tensor, peer):
        self.job.count("send")
        return dist.P2POp(dist.isend, tensor, peer, group=self.group)

    def receive(self, tensor, peer):
        self.job.count("receive")
        return dist.P2POp(dist.irecv, tensor, peer, group=self.group)


def add_at(total, index, value):
    total.index_add_(0, index, value)
    return total


def dense(group, values, k):
    return group.sum(values.clone())


def gtopk(group, values, k):
    """Rank r takes what rank r + 2^s holds, in step s, and keeps the k largest of both; rank 0 tells all."""
    index = largest(values, k)
    mine = values[index]
    step = 1
    while step < group.world:
        if group.rank % (2 * step) == step:
            group.swap([group.send(index, group.rank - step), group.send(mine, group.rank - step)])
            break
        if group.rank % (2 * step) == 0 and group.rank + step < group.world:
            their_index, theirs = torch.empty_like(index), torch.empty_like(mine)
            group.swap([group.receive(their_index, group.rank + step), group.receive(theirs, group.rank + step)])
            both = add_at(add_at(torch.zeros_like(values), index, mine), their_index, theirs)
            index = largest(both, k)
            mine = both[index]
        step *= 2
    group.broadcast(index)
    group.broadcast(mine)
    return add_at(torch.zeros_like(values), index, mine)


def boundaries(group, index, length):
    """Where the regions begin and end: the mean of the ranks' own cuts into equal loads."""
    cuts = index[torch.arange(1, group.world, device=index.device) * index.numel() // group.world]
    cuts = (group.sum(cuts.clone()) // group.world).tolist()
    return [0, *cuts, length]


def exchange_sizes(group, sizes):
    every = torch.empty_like(sizes)
    if group.job.cuda:
        group.job.count("all-to-all")
        dist.all_to_all_single(every, sizes, group=group.group)
        return every.tolist()
    return [int(row[group.rank]) for row in group.gather(sizes)]  # gloo has no all-to-all


def exchange_entries(group, parts):
    """parts[r]: indices and values for rank r. Returns what all have for this rank, its own first."""
    sizes = torch.tensor([index.numel() for index, _ in parts], device=group.job.device)
    theirs = exchange_sizes(group, sizes)
    taken = [parts[group.rank]]
    for first in range(1, group.world, THROTTLE):
        operations = []
        for distance in range(first, min(first + THROTTLE, group.world)):
            to, source = (group.rank + distance) % group.world, (group.rank - distance) % group.world
            if parts[to][0].numel():
                operations += [group.send(parts[to][0], to), group.send(parts[to][1], to)]
            if theirs[source]:
                index = torch.empty(theirs[source], dtype=parts[to][0].dtype, device=group.job.device)
                value = torch.empty(theirs[source], dtype=parts[to][1].dtype, device=group.job.device)
                operations += [group.receive(index, source), group.receive(value, source)]
                taken.append((index, value))
        group.swap(operations)
    return taken


def oktopk(group, values, k):
    index = largest(values, k)
    edge = boundaries(group, index, values.numel())
    parts = []
    for low, high in zip(edge, edge[1:]):
        inside = index[(index >= low) & (index < high)]
        parts.append((inside, values[inside]))
    region = torch.zeros_like(values)
    for some, these in exchange_entries(group, parts):
        add_at(region, some, these)
    # The common threshold: that of the k-th largest sum, estimated by each from its own region; their mean.
    share = max(1, min(k // group.world, values.numel()))
    threshold = region.abs().topk(share).values[-1:].double()
    threshold = group.sum(threshold) / group.world
    kept = torch.nonzero(region.abs().double() >= threshold.clamp(min=2 ** -10)).flatten()
    total = torch.zeros_like(values)
    for some, these in zip(group.gather(kept), group.gather(region[kept])):
        add_at(total, some, these)
    return total


def gaussian_threshold(values, k):
    """Above which k entries would lie, were they normally distributed."""
    mean, deviation = values.double().mean(), values.double().std()
    return float(mean.abs() + deviation * math.sqrt(2) * torch.erfinv(torch.tensor(1 - k / values.numel())).double())


def above_gaussian(values, k, adjusted=False):
    """Indices of the entries above that threshold; adjusted: moved until they are about k."""
    threshold = gaussian_threshold(values, k)
    for _ in range(10 if adjusted else 0):
        chosen = int((values.abs() > threshold).sum())
        if 2 * k // 3 <= chosen <= 4 * k // 3:
            break
        threshold *= 0.8 if chosen < k else 1.25
    return torch.nonzero(values.abs() > threshold).flatten()


def above_adjusted(values, k):
    return above_gaussian(values, k, adjusted=True)


def gathered(pick):
    """The scheme in which each rank picks entries and all add up everyone's."""
    def scheme(group, values, k):
        index = pick(values, k)
        total = torch.zeros_like(values)
        for some, these in zip(group.gather(index), group.gather(values[index])):
            add_at(total, some, these)
        return total
    return scheme


# name: what a rank picks of its own, and the scheme
SCHEMES = {"dense": (None, dense), "topk": (largest, gathered(largest)), "gtopk": (None, gtopk),
           "oktopk": (largest, oktopk), "gaussian": (above_gaussian, gathered(above_gaussian)),
           "gaussian-adjusted": (above_adjusted, gathered(above_adjusted))}


def wrong(job, name, result, round_, length, k):
    """What is wrong with a result; None: nothing. The reference is made of all ranks' gradients, here."""
    pick = SCHEMES[name][0]
    total = torch.zeros(length, dtype=torch.float64, device=job.device)
    for rank in range(job.world):
        values = gradient(job, rank, round_, length)
        index = torch.arange(length, device=job.device) if pick is None else pick(values, k)
        add_at(total, index, values[index].double())
    kept = result != 0
    number = int(kept.sum())
    if name == "gtopk":  # a sum of what the tree kept: not all of it need be in
        return None if 0 < number <= k else f"{number} entries, not up to {k}"
    if name == "oktopk":
        total = torch.where(kept, total, torch.zeros_like(total))
    if number == 0 or not torch.equal(result.double(), total):
        return f"{int((result.double() != total).sum())} of {number} entries are not the ranks' sums"
    return None


def check(job, name, result, round_, length, k):
    job.must_agree(f"{name} round {round_}", result)
    fault = wrong(job, name, result, round_, length, k)
    if fault:
        raise SystemExit(f"rank {job.rank}: {name} round {round_}: {fault}")


def run_schemes(job, length, k):
    group = Group(job)
    for name, (_, scheme) in SCHEMES.items():
        clock = Clock(job)
        for round_ in range(ROUNDS):
            values = gradient(job, job.rank, round_, length)
            dist.barrier(group=job.side)
            clock.start()
            result = scheme(group, values, k)
            clock.stop()
            check(job, name, result, round_, length, k)
        job.digest(f"sparse {name}", result)
        job.row(f"sparse {name}", step_ms=clock.median_ms(3), entries=int((result != 0).sum()))


def run_mixed(job, length, k):
    """All schemes on two communicators and two streams; results as when alone."""
    groups = [Group(job), Group(job)]
    streams = [torch.cuda.Stream() for _ in groups] if job.cuda else [None, None]
    alone = Group(job)
    values = gradient(job, job.rank, 1000, length)
    expected = [scheme(alone, values, k) for _, scheme in SCHEMES.values()]
    job.synchronize()
    for _ in range(3):
        results = ([], [])
        for _, scheme in SCHEMES.values():
            for group, stream, mine in zip(groups, streams, results):
                with torch.cuda.stream(stream):
                    mine.append(scheme(group, values, k))
        job.synchronize()
        for mine in results:
            for name, result, right in zip(SCHEMES, mine, expected):
                if not torch.equal(result, right):
                    raise SystemExit(f"rank {job.rank}: {name} beside others: wrong result")
    job.row("sparse mixed", right=1)


def main():
    job = Job(parser(__doc__).parse_args())
    length = 1 << 20 if job.cuda else 5000
    k = length // 100
    run_schemes(job, length, k)
    run_mixed(job, length, k)
    job.finish("sparse")


if __name__ == "__main__":
    main()
