# SPDX-License-Identifier: MIT
"""Data-parallel training of one small transformer, its gradients reduced in several ways.

    torchrun --nproc-per-node 4 test/apps/train.py [--steps N] [--out FILE]

parameter: one allreduce for each parameter after the backward pass; flat: one for all gradients in one buffer; hooks:
one for each parameter from a hook, on a stream beside the backward pass; ddp: torch's DistributedDataParallel; fsdp:
fully_shard, whose collectives are others. All start from the same weights and see the same batches; the losses of every
step are the result. step_ms: a whole step. comm_ms: the allreduces of one step alone, back to back.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from harness import Clock, Job, parser

WARM_UP = 5


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


class ByParameter:
    """One allreduce for each gradient, after the backward pass."""

    def __init__(self, job, model):
        self.job, self.parameters = job, [p for p in model.parameters() if p.requires_grad]
        self.buffers = [torch.zeros_like(p) for p in self.parameters]

    def after_backward(self):
        for p in self.parameters:
            dist.all_reduce(p.grad)
            p.grad /= self.job.world

    def calls_alone(self):
        for buffer in self.buffers:
            dist.all_reduce(buffer)


class Flat:
    """One allreduce for all gradients, which live in one buffer."""

    def __init__(self, job, model):
        self.job, parameters = job, [p for p in model.parameters() if p.requires_grad]
        self.buffer = torch.zeros(sum(p.numel() for p in parameters), device=job.device, dtype=parameters[0].dtype)
        at = 0
        for p in parameters:
            p.grad = self.buffer[at:at + p.numel()].view_as(p)
            at += p.numel()

    def after_backward(self):
        dist.all_reduce(self.buffer)
        self.buffer /= self.job.world

    def calls_alone(self):
        dist.all_reduce(self.buffer.zero_())


class Hooks(ByParameter):
    """One allreduce for each gradient as soon as it is there, beside the rest of the backward pass."""

    def __init__(self, job, model):
        super().__init__(job, model)
        self.works = []
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p):
        self.works.append(dist.all_reduce(p.grad, async_op=True))

    def after_backward(self):
        for work in self.works:
            work.wait()
        self.works.clear()
        for p in self.parameters:
            p.grad /= self.job.world


class Nothing:
    """The model reduces by itself."""

    def __init__(self, job, model):
        pass

    def after_backward(self):
        pass


def wrap_ddp(job, model):
    return nn.parallel.DistributedDataParallel(model, device_ids=[job.device.index] if job.cuda else None,
                                               bucket_cap_mb=4)


def wrap_fsdp(job, model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


WAYS = {"parameter": (None, ByParameter), "flat": (None, Flat), "hooks": (None, Hooks), "ddp": (wrap_ddp, Nothing),
        "fsdp": (wrap_fsdp, Nothing)}


def communication_ms(job, reducer, repeats=20):
    """The allreduces of a step without anything else; None where the model makes them by itself."""
    if not hasattr(reducer, "calls_alone"):
        return None
    clock = Clock(job)
    for _ in range(repeats):
        dist.barrier(group=job.side)
        clock.start()
        reducer.calls_alone()
        clock.stop()
    return clock.median_ms(WARM_UP)


def train(job, shape, way):
    wrap, reducer_of = WAYS[way]
    model = make_model(job, shape)
    model = wrap(job, model) if wrap else model
    reducer = reducer_of(job, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clock, losses = Clock(job), []
    for step in range(job.options.steps):
        tokens = batch_of(job, shape, step)
        clock.start()
        optimizer.zero_grad(set_to_none=way != "flat")
        loss = loss_of(model, tokens)
        loss.backward()
        reducer.after_backward()
        optimizer.step()
        clock.stop()
        losses.append(loss.detach())
    losses = torch.stack(losses).double()
    everyone = losses.cpu()
    dist.all_reduce(everyone, group=job.side)  # the mean over the ranks' own batches
    job.value(f"loss {way}", everyone / job.world)
    if wrap is None:
        job.must_agree(f"weights {way}", torch.cat([p.detach().flatten() for p in model.parameters()]))
    figures = {"step_ms": clock.median_ms(WARM_UP)}
    alone = communication_ms(job, reducer)
    if alone is not None:
        figures["comm_ms"] = alone
    job.row(f"train {way}", **figures, first_loss=float(everyone[0] / job.world),
            last_loss=float(everyone[-1] / job.world))


def main():
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--ways", default=",".join(WAYS))
    job = Job(options.parse_args())
    torch.use_deterministic_algorithms(True, warn_only=True)
    shape = Shape(job.options.small)
    for way in job.options.ways.split(","):
        train(job, shape, way)
    job.finish("train")


if __name__ == "__main__":
    main()
