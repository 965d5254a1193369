# SPDX-License-Identifier: MIT
"""Data-parallel training of one small transformer, its gradients reduced in several ways.

    torchrun --nproc-per-node 4 test/apps/train.py [--out FILE]

parameter: one allreduce for each parameter after the backward pass; flat: one for all gradients in one buffer; hooks:
one for each parameter from a hook, on a stream beside the backward pass; ddp: torch's DistributedDataParallel; fsdp:
fully_shard, whose collectives are all-gathers and reduce-scatters; zero: ZeRO by hand, with torch's coalesced forms of
these, in place (left out, and said so, where the ranks do not divide the parameters). All start from the same weights
and see the same batches; the losses of every step are the result. All operations are deterministic, so that equal sums
make equal bits.

step_ms: a whole step. tail_ms: in the step, from when the last gradient is there until the last one is reduced: what the
step waits for. (fsdp does not tell.) comm_ms: the collectives of one step alone, back to back, after training: allreduces
of the same sizes (ddp: of its buckets), for fsdp a reduce-scatter and two all-gathers for each block, one for the rest.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness import Clock, Job, parser

STEPS, WARM_UP = 40, 5


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        with sdpa_kernel(SDPBackend.MATH):  # the others have no deterministic backward pass, or not for all types
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, words, width, layers, heads, length):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.embed, self.place):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embed.weight)


class Shape:
    """Sizes of the model: gradients from 1 KiB to 4 MiB each, together about 17 MB."""

    def __init__(self, small):
        self.words, self.width, self.layers, self.heads, self.length, self.batch = (
            (64, 32, 2, 2, 16, 2) if small else (4096, 256, 4, 4, 256, 16))


def make_model(job, shape):
    torch.manual_seed(job.options.seed)
    model = Transformer(shape.words, shape.width, shape.layers, shape.heads, shape.length)
    return model.to(job.device)


def batch_of(job, shape, step):
    """Tokens of a step, other ones on each rank: runs of a counter, which can be learnt."""
    generator = torch.Generator().manual_seed(job.options.seed * 100003 + step * 1009 + job.rank)
    start = torch.randint(shape.words, (shape.batch, 1), generator=generator)
    stride = torch.randint(1, 4, (shape.batch, 1), generator=generator)
    tokens = (start + stride * torch.arange(shape.length + 1)) % shape.words
    return tokens.to(job.device)


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Reducer:
    """What a way does after the backward pass, after the optimizer's step, and as its calls alone."""

    tail = None

    def after_backward(self):
        pass

    def after_step(self):
        pass


class ByParameter(Reducer):
    """One allreduce for each gradient, after the backward pass."""

    def __init__(self, job, model):
        self.job, self.parameters, self.tail = job, [p for p in model.parameters() if p.requires_grad], Clock(job)

    def after_backward(self):
        self.tail.start()
        for p in self.parameters:
            dist.all_reduce(p.grad)
        self.tail.stop()
        for p in self.parameters:
            p.grad /= self.job.world

    def calls_alone(self):
        buffers = [torch.zeros_like(p) for p in self.parameters]
        return lambda: [dist.all_reduce(buffer) for buffer in buffers]


class Flat(Reducer):
    """One allreduce for all gradients, which live in one buffer."""

    def __init__(self, job, model):
        self.job, parameters, self.tail = job, [p for p in model.parameters() if p.requires_grad], Clock(job)
        self.buffer = torch.zeros(sum(p.numel() for p in parameters), device=job.device, dtype=parameters[0].dtype)
        at = 0
        for p in parameters:
            p.grad = self.buffer[at:at + p.numel()].view_as(p)
            at += p.numel()

    def after_backward(self):
        self.tail.start()
        dist.all_reduce(self.buffer)
        self.tail.stop()
        self.buffer /= self.job.world

    def calls_alone(self):
        buffer = torch.zeros_like(self.buffer)
        return lambda: dist.all_reduce(buffer)


class Hooks(ByParameter):
    """One allreduce for each gradient as soon as it is there, beside the rest of the backward pass."""

    def __init__(self, job, model):
        super().__init__(job, model)
        self.works = []
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p):
        self.tail.start()  # again for each: the last one's counts
        self.works.append(dist.all_reduce(p.grad, async_op=True))

    def after_backward(self):
        for work in self.works:
            work.wait()
        self.tail.stop()
        self.works.clear()
        for p in self.parameters:
            p.grad /= self.job.world


class Ddp(Reducer):
    """The model reduces by itself. It calls for each bucket of gradients, as its default does, and so tells when."""

    def __init__(self, job, model):
        self.job, self.sizes, self.tail = job, {}, Clock(job)
        model.register_comm_hook(None, self.reduce)

    def reduce(self, _, bucket):
        buffer = bucket.buffer()
        if bucket.index() == 0:
            self.sizes.clear()  # buckets are made anew after the first step
        self.sizes[bucket.index()] = buffer.numel()
        self.tail.start()  # again for each: the last one's counts
        buffer.div_(self.job.world)
        done = dist.all_reduce(buffer, async_op=True).get_future()
        return done.then(self.note if bucket.is_last() else lambda future: future.value()[0])

    def note(self, future):
        self.tail.stop()
        return future.value()[0]

    def calls_alone(self):
        buffers = [torch.zeros(size, device=self.job.device) for size in self.sizes.values()]
        return lambda: [dist.all_reduce(buffer) for buffer in buffers]


class Fsdp(Reducer):
    """The model gathers weights and scatters gradients by itself."""

    def __init__(self, job, model):
        self.job = job
        whole = sum(p.numel() for p in model.parameters())
        blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
        self.sizes = [-(-size // job.world) for size in (whole - sum(blocks), *blocks)]

    def calls_alone(self):
        parts = [torch.zeros(size, device=self.job.device) for size in self.sizes]
        wholes = [torch.zeros(size * self.job.world, device=self.job.device) for size in self.sizes]

        def run():
            for number, (part, whole) in enumerate(zip(parts, wholes)):
                dist.all_gather_into_tensor(whole, part)  # for the forward pass
                if number > 0:  # a block's: what is outside of them stays gathered
                    dist.all_gather_into_tensor(whole, part)  # for the backward pass
                dist.reduce_scatter_tensor(part, whole)
        return run


class Zero(ByParameter):
    """Each rank has the sum of its part of each gradient, and gives its part of each new weight to all."""

    def coalesce(self, kind, collective, tensors):
        """One coalesced call: collective(part, whole) for all tensors, of which a part is this rank's."""
        self.job.count(kind, len(tensors))
        with dist._coalescing_manager():
            for whole in (tensor.view(-1) for tensor in tensors):
                collective(whole.chunk(self.job.world)[self.job.rank], whole)

    def scatter(self, tensors):
        self.coalesce("reducescatter", dist.reduce_scatter_tensor, tensors)

    def gather(self, tensors):
        self.coalesce("allgather", lambda part, whole: dist.all_gather_into_tensor(whole, part), tensors)

    def after_backward(self):
        self.tail.start()
        self.scatter([p.grad for p in self.parameters])
        self.tail.stop()
        for p in self.parameters:
            p.grad /= self.job.world

    def after_step(self):
        self.gather([p.data for p in self.parameters])

    def calls_alone(self):
        buffers = [torch.zeros_like(p) for p in self.parameters]
        return lambda: (self.scatter(buffers), self.gather(buffers))


def wrap_ddp(job, model):
    return nn.parallel.DistributedDataParallel(model, device_ids=[job.device.index] if job.cuda else None,
                                               bucket_cap_mb=4)


def wrap_fsdp(job, model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


WAYS = {"parameter": (None, ByParameter), "flat": (None, Flat), "hooks": (None, Hooks), "ddp": (wrap_ddp, Ddp),
        "fsdp": (wrap_fsdp, Fsdp), "zero": (None, Zero)}


def communication_ms(job, reducer, repeats=20):
    """The collectives of a step without anything else."""
    clock, run = Clock(job), reducer.calls_alone()
    for _ in range(repeats):
        dist.barrier(group=job.side)
        clock.start()
        run()
        clock.stop()
    return clock.median_ms(WARM_UP)


def train(job, shape, way):
    wrap, reducer_of = WAYS[way]
    model = make_model(job, shape)
    model = wrap(job, model) if wrap else model
    reducer = reducer_of(job, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clock, losses = Clock(job), []
    for step in range(STEPS):
        tokens = batch_of(job, shape, step)
        clock.start()
        optimizer.zero_grad(set_to_none=way != "flat")
        loss = loss_of(model, tokens)
        loss.backward()
        reducer.after_backward()
        optimizer.step()
        reducer.after_step()
        clock.stop()
        losses.append(loss.detach())
    losses = torch.stack(losses).double()
    everyone = losses.cpu()
    dist.all_reduce(everyone, group=job.side)  # the mean over the ranks' own batches
    job.value(f"loss {way}", everyone / job.world)
    if wrap is None:
        job.must_agree(f"weights {way}", torch.cat([p.detach().flatten() for p in model.parameters()]))
    figures = {"step_ms": clock.median_ms(WARM_UP)}
    if reducer.tail:
        figures["tail_ms"] = reducer.tail.median_ms(WARM_UP)
    figures["comm_ms"] = communication_ms(job, reducer)
    job.row(f"train {way}", **figures, first_loss=float(everyone[0] / job.world),
            last_loss=float(everyone[-1] / job.world))


def main():
    job = Job(parser(__doc__).parse_args())
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would add kernels to every step
    shape = Shape(small=not job.cuda)
    for way in WAYS:
        if way != "zero" or shape.width % job.world == 0:
            train(job, shape, way)
            job.clean()
        elif job.rank == 0:
            print(f"train zero: not run: a width of {shape.width} has no equal parts for {job.world} ranks")
    job.finish("train")


if __name__ == "__main__":
    main()
