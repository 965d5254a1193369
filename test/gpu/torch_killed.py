# SPDX-License-Identifier: MIT
"""A rank is killed in a call; the others abort, destroy the process group, and make another in the same processes.

    LD_PRELOAD=libonehop.so python3 test/gpu/torch_killed.py 4

Starts its ranks itself: torchrun would end the others when one dies. The last rank kills itself while the others'
allreduce waits for it. Another thread aborts, as a watchdog does, while the main thread sits in cudaStreamSynchronize.
"""
import os
import signal
import socket
import subprocess
import sys
import threading
import time

LIMIT_S = 80
KILL_S = 1  # after the others' call
ABORT_S = 3


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(world):
    """The exit status: 0 when the last rank was killed and the others said that all is well."""
    ports = [str(free_port()) for _ in range(2)]
    env = dict(os.environ, TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0")
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(world), str(rank), *ports], env=env) for rank in range(world)
    ]
    end = time.monotonic() + LIMIT_S
    for process in ranks:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    status = [process.returncode for process in ranks]
    print(f"exit statuses {status}", flush=True)
    return 0 if status == [0] * (world - 1) + [-signal.SIGKILL] else 1


def run(world, rank, ports):
    import torch
    import torch.distributed as dist

    def begin(port, size):
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)

    def total(size):
        tensor = torch.ones(1000, device=device)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        return bool((tensor == size).all())

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    begin(ports[0], world)
    good = [total(world)]
    dist.barrier()
    torch.cuda.synchronize()
    if rank == world - 1:
        time.sleep(KILL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    backend = dist.group.WORLD._get_backend(device)
    aborter = threading.Timer(ABORT_S, backend.abort)
    start = time.monotonic()
    dist.all_reduce(torch.ones(1000, device=device), async_op=True)
    aborter.start()
    torch.cuda.synchronize()
    waited = time.monotonic() - start
    aborter.join(10)
    aborted = time.monotonic() - start
    print(f"rank {rank}: free {waited:.2f} s after the call, aborted after {aborted:.2f} s", flush=True)
    good.append(KILL_S / 2 < waited < ABORT_S + 1 and not aborter.is_alive() and aborted < ABORT_S + 2)
    dist.destroy_process_group()

    begin(ports[1], world - 1)
    good += [total(world - 1) for _ in range(3)]
    dist.destroy_process_group()
    print(f"rank {rank}: {'ok' if all(good) else 'FAIL'} {good}", flush=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(launch(int(sys.argv[1])))
    sys.exit(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:5]))
