# SPDX-License-Identifier: MIT
"""What the programs of this folder share: the job, its clock, and the file of results.

Each program runs under torchrun, with NCCL on GPUs, or with gloo on CPUs (--device cpu), which shows that the program
itself is right. None knows of onehop. Rank 0 writes one JSON file: times are the slowest rank's medians, values are
written so that two runs can be compared bit for bit (report.py does).
"""
import argparse
import gc
import hashlib
import json
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # matmuls give the same bits in every run

import torch
import torch.distributed as dist


def parser(text):
    options = argparse.ArgumentParser(description=text.splitlines()[0])
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: small sizes")
    options.add_argument("--out", metavar="FILE", help="results as JSON")
    options.add_argument("--seed", type=int, default=1)
    return options


class Job:
    """This rank of the job. One thread."""

    def __init__(self, options):
        self.options = options
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda = options.device == "cuda"
        if self.cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        else:
            torch.set_num_threads(1)
            self.device = torch.device("cpu")
        dist.init_process_group("nccl" if self.cuda else "gloo")
        # Figures and reports go by another way, so that the counts of NCCL's calls are the program's alone.
        self.side = dist.new_group(backend="gloo")
        self.rows, self.values, self.calls, self.bound = [], {}, {}, None

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def slowest(self, figure):
        """The largest of all ranks' figures."""
        figures = [None] * self.world
        dist.all_gather_object(figures, figure, group=self.side)
        return max(figures)

    def row(self, name, **figures):
        """One line of the table: figures are numbers, those that end in _ms or _us are times."""
        if self.rank == 0:
            print(f"{name:32}" + "".join(f"  {key} {value:10.4g}" for key, value in figures.items()), flush=True)
        self.rows.append({"name": name, **figures})

    def value(self, name, tensor):
        """What the program computed, for a comparison of runs: the exact values of a tensor."""
        flat = tensor.detach().cpu().flatten()
        self.values[name] = flat.to(torch.float64).tolist() if flat.is_floating_point() else flat.tolist()

    def digest(self, name, tensor):
        """The same for what is too large to keep: a hash of its bits, the number of elements, and some of them."""
        flat = tensor.detach().cpu().flatten()
        self.values[name] = {"sha256": hash_of(tensor), "count": flat.numel(),
                             "some": flat[::max(1, flat.numel() // 16)][:16].to(torch.float64).tolist()}

    def count(self, kind, calls=1):
        """Notes collective calls of a kind that this rank makes; those of all ranks go to the results."""
        self.calls[kind] = self.calls.get(kind, 0) + calls

    def must_agree(self, name, tensor):
        """All ranks hold the same bits; else the program ends."""
        every = [None] * self.world
        dist.all_gather_object(every, hash_of(tensor), group=self.side)
        if len(set(every)) != 1:
            raise SystemExit(f"rank {self.rank}: {name}: the ranks' results differ")

    def clean(self):
        """Frees what is not used any more. A CUDA graph that lives on keeps the communicators that it calls from ending."""
        gc.collect()
        self.synchronize()

    def finish(self, about):
        self.clean()
        every = [None] * self.world
        dist.all_gather_object(every, self.calls, group=self.side)
        self.calls = {kind: sum(calls.get(kind, 0) for calls in every) for kind in sorted(set().union(*every))}
        if self.rank == 0 and self.options.out:
            with open(self.options.out + ".new", "w", encoding="utf-8") as file:
                json.dump({"program": about, "ranks": self.world, "device": device_name(self),
                           "torch": torch.__version__, "nccl": nccl_version(self), "seed": self.options.seed,
                           "rows": self.rows, "values": self.values, "collectives": self.calls,
                           "logit_bound": self.bound}, file)
            os.rename(self.options.out + ".new", self.options.out)
        dist.barrier(group=self.side)
        dist.destroy_process_group()


def hash_of(tensor):
    data = tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


def device_name(job):
    return torch.cuda.get_device_name() if job.cuda else "cpu"


def nccl_version(job):
    return ".".join(str(part) for part in torch.cuda.nccl.version()) if job.cuda else None


class Clock:
    """Times of repeated work on the current stream, by CUDA events; on a CPU by the wall clock."""

    def __init__(self, job):
        self.job, self.spans, self.begun = job, [], None

    def _now(self):
        if not self.job.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self):
        self.begun = self._now()

    def stop(self):
        self.spans.append((self.begun, self._now()))

    def median_ms(self, skip=0):
        """The slowest rank's median. The first `skip` spans were to warm up."""
        self.job.synchronize()
        if self.job.cuda:
            times = [begin.elapsed_time(end) for begin, end in self.spans[skip:]]
        else:
            times = [(end - begin) * 1000 for begin, end in self.spans[skip:]]
        return self.job.slowest(statistics.median(times))
