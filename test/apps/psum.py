# SPDX-License-Identifier: MIT
"""JAX's psum over all devices of one process: psum.py

It knows nothing of onehop. On GPUs XLA makes an allreduce of NCCL of it. Where JAX has no GPU plugin it runs on the
CPU, without NCCL (more than one device: XLA_FLAGS=--xla_force_host_platform_device_count=4), and says so.
"""
import sys

import gpus

ROUNDS, COUNT = 20, 1000


def load():
    import jax
    import numpy

    return jax, numpy


def main():
    jax, numpy = gpus.package(load)
    devices = jax.devices()
    mesh = jax.sharding.Mesh(numpy.array(devices), ("all",))
    part = jax.sharding.PartitionSpec("all")
    add = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=part, out_specs=part))
    ranks = numpy.arange(len(devices), dtype=numpy.float32)[:, None]
    wrong = 0
    for turn in range(ROUNDS):
        values = ranks * turn + numpy.arange(COUNT, dtype=numpy.float32) % 97
        result = add(jax.device_put(values, jax.sharding.NamedSharding(mesh, part)))
        expected = values.sum(axis=0)
        wrong += sum(not numpy.array_equal(numpy.asarray(shard.data)[0], expected)
                     for shard in result.addressable_shards)
    print(f"JAX {jax.__version__}: {len(devices)} devices ({devices[0].platform}), {ROUNDS} sums of {COUNT} elements: "
          f"{wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
