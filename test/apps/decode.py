# SPDX-License-Identifier: MIT
"""Tensor-parallel decoding: a Llama-shaped stack with random weights, two sums over the ranks a layer.

    torchrun --nproc-per-node 4 test/apps/decode.py [--ways LIST] [--out FILE] [--tokens FILE]

Query, key, value, gate and up projections are split by columns, the two that follow by rows, as Megatron-LM and vLLM
do it; bfloat16, but the logits, which are computed and kept in float. Each decoding step of a batch size is one CUDA
graph. Ways: torch (torch.distributed), ctypes (a binding of NCCL by ctypes, as vLLM's and SGLang's pynccl), pool (torch,
with the buffers of the allreduces in a torch.cuda.MemPool), compile (torch.compile with mode "reduce-overhead", the
first batch size only: compiling takes long), sequence (sequence parallelism: between the projections each rank has a part
of the batch; an all-gather and a reduce-scatter in place of each allreduce, for batches that have a part for each rank).

Results are the tokens of a greedy decoding, the logit of each, and the gap between it and the second best. With
--tokens, the results of another run, every step is fed with that run's tokens, and the logits are those of its tokens:
so one different word does not make all that follow different, and every number can be compared with that run's.

How far logits may move when the ranks' parts are added in another order: a sum that is rounded to bfloat16 is off by up to 2^-9
of itself; 2 * layers sums of n parts are rounded n times each, and independent errors add up by squares. The logits have
the standard deviation LOGITS, so theirs is about LOGITS * 2^-9 * sqrt(2 * layers * n): "logit_bound" in the results.

token_us: one step. comm_us: the collectives of one step alone, in a graph too. tokens_s: batch / step.
"""
import contextlib
import ctypes
import json

import torch
import torch.distributed as dist
from torch.nn import functional

from harness import Clock, Job, parser

BATCHES = (1, 2, 8, 32, 64)
REPEATS = 20
LOGITS = 2.5  # the best of 32000 is then about 10, and about 0.5 above the second


class Shape:
    def __init__(self, small):
        (self.width, self.heads, self.layers, self.inner, self.words, self.context, self.steps, self.dtype) = (
            (64, 4, 2, 128, 100, 16, 6, torch.float32) if small else
            (4096, 32, 16, 11008, 32000, 256, 32, torch.bfloat16))


class Reducer:
    """A call sums the ranks' tensors. split() and gather(): to this rank's rows, which sums are too, and back to all."""

    def split(self, tensor):
        return tensor

    def gather(self, tensor):
        return tensor

    def close(self):
        pass


class TorchReducer(Reducer):
    """Allreduce by torch.distributed."""

    def __init__(self, job):
        dist.all_reduce(torch.zeros(8, device=job.device))

    def __call__(self, tensor):
        dist.all_reduce(tensor)
        return tensor


class SequenceReducer(Reducer):
    """Reduce-scatter and all-gather by torch.distributed."""

    def __init__(self, job):
        self.job = job
        self(torch.zeros(8 * job.world, 8, device=job.device))

    def split(self, tensor):
        return tensor.chunk(self.job.world)[self.job.rank]

    def gather(self, tensor):
        whole = tensor.new_empty(self.job.world * tensor.shape[0], *tensor.shape[1:])
        self.job.count("allgather")
        dist.all_gather_into_tensor(whole, tensor)
        return whole

    def __call__(self, tensor):
        part = torch.empty_like(self.split(tensor))
        self.job.count("reducescatter")
        dist.reduce_scatter_tensor(part, tensor)
        return part


class PoolReducer(TorchReducer):
    """The same from and to buffers that lie in a memory pool of their own; one for each shape."""

    def __init__(self, job):
        super().__init__(job)
        self.job, self.pool, self.buffers = job, torch.cuda.MemPool() if job.cuda else None, {}

    def buffer_like(self, tensor):
        if tensor.shape not in self.buffers:
            with torch.cuda.use_mem_pool(self.pool) if self.pool else contextlib.nullcontext():
                self.buffers[tensor.shape] = torch.empty_like(tensor)
        return self.buffers[tensor.shape]

    def __call__(self, tensor):
        buffer = self.buffer_like(tensor)
        dist.all_reduce(buffer.copy_(tensor))
        return tensor.copy_(buffer)

    def close(self):
        self.buffers.clear()
        self.job.clean()  # a pool ends after its memory
        self.pool = None


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class CtypesReducer(Reducer):
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

    def static(self):
        """What stays where it is: weights, and the caches, which each step writes to."""
        yield from (self.table, self.head, self.places, *self.keys, *self.values)
        for layer in self.layers:
            yield from vars(layer).values()

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
        x = reduce.split(self.table[tokens])
        width = (self.shape.width,)
        for number, layer in enumerate(self.layers):
            y = reduce.gather(functional.rms_norm(x, width))
            x = x + reduce(self.attend(layer, number, y, position))
            y = reduce.gather(functional.rms_norm(x, width))
            x = x + reduce((functional.silu(y @ layer.gate.t()) * (y @ layer.up.t())) @ layer.down.t())
        return functional.rms_norm(reduce.gather(x), width).float() @ self.head.t()


class Step:
    """One decoding step with fixed places for its input and output: a graph on a GPU, else plain calls."""

    def __init__(self, job, model, reduce, batch):
        self.tokens = torch.zeros(batch, dtype=torch.long, device=job.device)
        self.position = torch.full((1,), model.shape.context, dtype=torch.long, device=job.device)
        self.graph = None
        self.make(job, model, reduce)

    def make(self, job, model, reduce):
        tokens, position = self.tokens, self.position  # not self: nothing shall keep a step alive but its user

        def run():
            return model.forward(tokens, position, reduce)

        self.run = run
        if job.cuda:
            self.graph, self.logits = capture(run)

    def __call__(self):
        if self.graph:
            self.graph.replay()
            return self.logits
        return self.run()

    def close(self):
        """The graph ends: while it lives, its communicator does not."""
        if self.graph:
            self.graph.reset()
        self.graph = self.logits = self.run = None


class CompiledStep(Step):
    """The same by torch.compile, which makes the graph by itself, when it is called for the second time."""

    def make(self, job, model, reduce):
        tokens, position = self.tokens, self.position
        for tensor in model.static():  # else each would be copied for every step, and changed caches forbid a graph
            torch._dynamo.mark_static_address(tensor)

        def run():
            return model.forward(tokens, position, reduce)

        self.cuda = job.cuda
        self.run = torch.compile(run, mode="reduce-overhead", fullgraph=True, dynamic=False)

    def __call__(self):
        torch.compiler.cudagraph_mark_step_begin()
        return self.run()

    def close(self):
        counters = dict(torch._dynamo.utils.counters["inductor"])
        self.run = None
        torch._dynamo.reset()
        if self.cuda and (counters.get("cudagraph_skips", 0) or not counters.get("cudagraph_recorded_non_static_inputs")):
            raise SystemExit(f"torch.compile made no CUDA graph: {counters}")


def capture(run):
    """A graph of run(), which is called once before, and what it returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # for what it reads: weights, caches, the position
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads of this process go on
        result = run()
    return graph, result


def decode(job, shape, step, forced):
    """Tokens [steps, batch] of a greedy decoding, their logits, and the gaps between the best and the second logit."""
    chosen, heights, gaps = [], [], []
    tokens = torch.arange(step.tokens.numel(), device=job.device) % shape.words
    for number in range(shape.steps):
        step.tokens.copy_(tokens if forced is None or number == 0 else forced[number - 1])
        step.position.fill_(shape.context + number)
        logits = step()
        best = logits.topk(2, dim=1)
        tokens = best.indices[:, 0].clone()
        chosen.append(tokens)
        heights.append(logits.gather(1, (tokens if forced is None else forced[number])[:, None])[:, 0].clone())
        gaps.append((best.values[:, 0] - best.values[:, 1]).clone())
    return torch.stack(chosen), torch.stack(heights), torch.stack(gaps)


def step_ms(job, step):
    clock = Clock(job)
    for _ in range(REPEATS + 5):
        dist.barrier(group=job.side)
        clock.start()
        step()
        clock.stop()
    return clock.median_ms(5)


def communication_ms(job, shape, reduce, batch):
    """The collectives of one step, alone and back to back."""
    buffer = torch.zeros(batch, shape.width, device=job.device, dtype=shape.dtype)

    def run():
        for _ in range(2 * shape.layers):
            reduce.gather(reduce(buffer))

    if not job.cuda:
        return step_ms(job, run)
    graph, _ = capture(run)
    took = step_ms(job, graph.replay)
    graph.reset()
    return took


def read_tokens(job, name):
    if not job.options.tokens:
        return None
    with open(job.options.tokens, encoding="utf-8") as file:
        values = json.load(file)["values"].get(name)
    return None if values is None else torch.tensor(values, device=job.device)


def measure(job, shape, layers, tables, way, reduce, batch):
    model = Model(job, shape, layers, tables, batch)
    step = (CompiledStep if way == "compile" else Step)(job, model, reduce, batch)
    name = f"decode {way} batch {batch}"
    forced = read_tokens(job, f"tokens {name}")
    tokens, heights, gaps = decode(job, shape, step, None if forced is None else forced.view(shape.steps, batch))
    job.must_agree(name, tokens)
    for about, result in (("tokens", tokens), ("logits", heights), ("gaps", gaps)):
        job.value(f"{about} {name}", result)
    took, alone = step_ms(job, step), communication_ms(job, shape, reduce, batch)
    job.row(name, tokens_s=1000 * batch / took, token_us=1000 * took, comm_us=1000 * alone)
    step.close()


def main():
    options = parser(__doc__)
    options.add_argument("--ways", default="torch,ctypes,pool,compile,sequence")
    options.add_argument("--tokens", metavar="FILE", help="results of another run, whose tokens every step is fed")
    job = Job(options.parse_args())
    shape = Shape(small=not job.cuda)
    generator = torch.Generator(device=job.device).manual_seed(job.options.seed)
    layers = [Layer(job, shape, generator) for _ in range(shape.layers)]
    tables = [torch.randn(shape.words, shape.width, generator=generator, device=job.device) for _ in range(2)]
    tables = tables[0].to(shape.dtype), tables[1] * (LOGITS * shape.width ** -0.5)  # words in, words out
    job.bound = LOGITS * 2 ** -9 * (2 * shape.layers * job.world) ** 0.5
    reducers = {"torch": TorchReducer, "ctypes": CtypesReducer, "pool": PoolReducer, "compile": TorchReducer,
                "sequence": SequenceReducer}
    batches = {"compile": BATCHES[:1], "sequence": [batch for batch in BATCHES if batch % job.world == 0]}
    with torch.no_grad():
        for way in job.options.ways.split(","):
            if way == "ctypes" and not job.cuda:
                continue  # it needs NCCL
            reduce = reducers[way](job)
            for batch in batches.get(way, BATCHES):
                measure(job, shape, layers, tables, way, reduce, batch)
                job.clean()
            reduce.close()
    job.finish("decode")


if __name__ == "__main__":
    main()
