# SPDX-License-Identifier: MIT
"""Tensor-parallel decoding: a Llama-shaped stack with random weights, two allreduces a layer.

    torchrun --nproc-per-node 4 test/apps/decode.py [--batches 1,8,64] [--out FILE] [--tokens FILE]

Query, key, value, gate and up projections are split by columns, the two that follow by rows, as Megatron-LM and vLLM
do it. Each decoding step of a batch size is one CUDA graph. Ways: torch (torch.distributed), ctypes (a binding of
NCCL by ctypes, as vLLM's and SGLang's pynccl), compile (torch.compile with mode "reduce-overhead"). Results are the
tokens of a greedy decoding, and the gap between the best word and the second. With --tokens, the results of another
run, every step is fed with that run's tokens: so one different word does not make all that follow different.

token_us: one step. comm_us: the allreduces of one step alone, in a graph too. tokens_s: batch / step.
"""
import ctypes
import json

import torch
import torch.distributed as dist
from torch.nn import functional

from harness import Clock, Job, parser

REPEATS = 20


class Shape:
    def __init__(self, small):
        (self.width, self.heads, self.layers, self.inner, self.words, self.context, self.steps, self.dtype) = (
            (64, 4, 2, 128, 100, 16, 6, torch.float32) if small else
            (4096, 32, 16, 11008, 32000, 256, 32, torch.bfloat16))


class TorchReducer:
    """Allreduce by torch.distributed."""

    def __init__(self, job):
        dist.all_reduce(torch.zeros(8, device=job.device))

    def __call__(self, tensor):
        dist.all_reduce(tensor)
        return tensor


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class CtypesReducer:
    """Allreduce by NCCL's C functions, which are looked up by name in the library that torch has loaded."""

    TYPES = {torch.float32: 7, torch.bfloat16: 9}
    SUM = 0

    def __init__(self, job):
        self.nccl = ctypes.CDLL("libnccl.so.2")
        self.nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
        self.nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self.nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
        unique = UniqueId()
        if job.rank == 0:
            self.must(self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
        shared = [bytes(unique)]
        dist.broadcast_object_list(shared, src=0, group=job.side)
        self.comm = ctypes.c_void_p()
        self.must(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), job.world,
                                             UniqueId.from_buffer_copy(shared[0]), job.rank))
        self(torch.zeros(8, device=job.device))
        job.synchronize()

    @staticmethod
    def must(result):
        if result != 0:
            raise SystemExit(f"NCCL returned {result}")

    def __call__(self, tensor):
        self.must(self.nccl.ncclAllReduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(),
                                          self.TYPES[tensor.dtype], self.SUM, self.comm,
                                          torch.cuda.current_stream().cuda_stream))
        return tensor

    def close(self):
        self.must(self.nccl.ncclCommDestroy(self.comm))


def slice_of(job, rows, columns, dim, generator, scale, dtype):
    """This rank's part of a random matrix, of which every rank makes the whole, so that all n agree on it."""
    whole = torch.randn(rows, columns, generator=generator, device=job.device, dtype=torch.float32) * scale
    return whole.chunk(job.world, dim)[job.rank].to(dtype).contiguous()


class Layer:
    def __init__(self, job, shape, generator):
        def part(rows, columns, dim):
            return slice_of(job, rows, columns, dim, generator, columns ** -0.5, shape.dtype)

        width, inner = shape.width, shape.inner
        self.q, self.k, self.v = (part(width, width, 0) for _ in range(3))
        self.out = part(width, width, 1)
        self.gate, self.up = part(inner, width, 0), part(inner, width, 0)
        self.down = part(width, inner, 1)


class Model:
    """The stack and its caches for one batch size. forward() is one step for the whole batch."""

    def __init__(self, job, shape, layers, tables, batch):
        self.shape, self.layers, (self.table, self.head) = shape, layers, tables
        self.heads = shape.heads // job.world
        size = shape.width // shape.heads
        room = (batch, self.heads, shape.context + shape.steps, size)
        self.keys = [torch.zeros(room, device=job.device, dtype=shape.dtype) for _ in layers]
        self.values = [torch.zeros(room, device=job.device, dtype=shape.dtype) for _ in layers]
        self.places = torch.arange(room[2], device=job.device)
        generator = torch.Generator(device=job.device).manual_seed(job.options.seed + 7)
        for cache in (*self.keys, *self.values):  # what a prompt would have left: this rank's heads of all
            whole = torch.randn(batch, shape.heads, shape.context, size, generator=generator, device=job.device)
            cache[:, :, :shape.context] = whole.chunk(job.world, 1)[job.rank].to(shape.dtype)

    def attend(self, layer, number, x, position):
        batch = x.shape[0]
        heads = (batch, self.heads, 1, -1)
        q, k, v = ((x @ weight.t()).view(heads) for weight in (layer.q, layer.k, layer.v))
        self.keys[number].index_copy_(2, position, k)
        self.values[number].index_copy_(2, position, v)
        mask = (self.places <= position).view(1, 1, 1, -1)
        mixed = functional.scaled_dot_product_attention(q, self.keys[number], self.values[number], attn_mask=mask)
        return mixed.view(batch, -1) @ layer.out.t()

    def forward(self, tokens, position, reduce):
        """tokens: [batch]; position: one number, [1]. Returns the logits, [batch, words]."""
        x = self.table[tokens]
        width = (self.shape.width,)
        for number, layer in enumerate(self.layers):
            x = x + reduce(self.attend(layer, number, functional.rms_norm(x, width), position))
            y = functional.rms_norm(x, width)
            x = x + reduce((functional.silu(y @ layer.gate.t()) * (y @ layer.up.t())) @ layer.down.t())
        return (functional.rms_norm(x, width) @ self.head.t()).float()


class Step:
    """One decoding step with fixed places for its input and output: a graph on a GPU, else plain calls."""

    def __init__(self, job, model, reduce, batch, compiled):
        self.tokens = torch.zeros(batch, dtype=torch.long, device=job.device)
        self.position = torch.zeros(1, dtype=torch.long, device=job.device)
        self.graph = None

        def run():
            return model.forward(self.tokens, self.position, reduce)

        self.run = torch.compile(run, mode="reduce-overhead") if compiled else run
        if job.cuda and not compiled:
            self.position.fill_(model.shape.context)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())  # for what it reads: weights, caches, the position
            with torch.cuda.stream(side):
                self.run()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self.run()

    def __call__(self):
        if self.graph:
            self.graph.replay()
            return self.logits
        return self.run()


def decode(job, shape, step, forced):
    """Tokens [steps, batch] of a greedy decoding and the gaps between the best and the second logit."""
    chosen, gaps = [], []
    tokens = torch.arange(step.tokens.numel(), device=job.device) % shape.words
    for number in range(shape.steps):
        step.tokens.copy_(tokens if forced is None or number == 0 else forced[number - 1])
        step.position.fill_(shape.context + number)
        best = step().topk(2, dim=1)
        tokens = best.indices[:, 0].clone()
        chosen.append(tokens)
        gaps.append((best.values[:, 0] - best.values[:, 1]).clone())
    return torch.stack(chosen), torch.stack(gaps)


def step_ms(job, step):
    clock = Clock(job)
    for _ in range(REPEATS + 5):
        dist.barrier(group=job.side)
        clock.start()
        step()
        clock.stop()
    return clock.median_ms(5)


def communication_ms(job, shape, reduce, batch):
    """The allreduces of one step, alone and back to back."""
    buffer = torch.zeros(batch, shape.width, device=job.device, dtype=shape.dtype)

    def run():
        for _ in range(2 * shape.layers):
            reduce(buffer)

    run()
    if not job.cuda:
        return step_ms(job, run)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run()
    return step_ms(job, graph.replay)


def read_tokens(job, name):
    if not job.options.tokens:
        return None
    with open(job.options.tokens, encoding="utf-8") as file:
        values = json.load(file)["values"].get(name)
    return None if values is None else torch.tensor(values, device=job.device)


def measure(job, shape, layers, tables, way, reduce, batch):
    model = Model(job, shape, layers, tables, batch)
    step = Step(job, model, reduce, batch, way == "compile")
    name = f"decode {way} batch {batch}"
    forced = read_tokens(job, f"tokens {name}")
    tokens, gaps = decode(job, shape, step, None if forced is None else forced.view(shape.steps, batch))
    job.must_agree(name, tokens)
    job.value(f"tokens {name}", tokens)
    job.value(f"gaps {name}", gaps)
    took, alone = step_ms(job, step), communication_ms(job, shape, reduce, batch)
    job.row(name, tokens_s=1000 * batch / took, token_us=1000 * took, comm_us=1000 * alone)


def main():
    options = parser(__doc__)
    options.add_argument("--batches", default="1,2,8,32,64")
    options.add_argument("--ways", default="torch,ctypes,compile")
    options.add_argument("--tokens", metavar="FILE", help="results of another run, whose tokens every step is fed")
    job = Job(options.parse_args())
    shape = Shape(job.options.small)
    generator = torch.Generator(device=job.device).manual_seed(job.options.seed)
    layers = [Layer(job, shape, generator) for _ in range(shape.layers)]
    tables = [torch.randn(shape.words, shape.width, generator=generator, device=job.device).to(shape.dtype)
              for _ in range(2)]  # words in, words out
    batches = [int(batch) for batch in job.options.batches.split(",")]
    reducers = {"torch": TorchReducer, "ctypes": CtypesReducer, "compile": TorchReducer}
    with torch.inference_mode():
        for way in job.options.ways.split(","):
            if way == "ctypes" and not job.cuda:
                continue  # it needs NCCL
            reduce = reducers[way](job)
            for batch in batches[:1] if way == "compile" else batches:  # compiling takes a minute for each
                measure(job, shape, layers, tables, way, reduce, batch)
            if hasattr(reduce, "close"):
                job.synchronize()
                reduce.close()
    job.finish("decode")


if __name__ == "__main__":
    main()
