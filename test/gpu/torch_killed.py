# SPDX-License-Identifier: MIT
"""A rank is killed in a call, or does not make it: how do the others go on, or end, and when?

    LD_PRELOAD=libonehop.so python3 test/gpu/torch_killed.py abort 4
    LD_PRELOAD=libonehop.so python3 test/gpu/torch_killed.py absent 4       # nobody is killed
    python3 test/gpu/torch_killed.py watchdog 4                             # stock NCCL: by PyTorch's own time-out
    LD_PRELOAD=libonehop.so python3 test/gpu/torch_killed.py watchdog 4     # by the asynchronous error
    LD_PRELOAD=libonehop.so ONEHOP_TRAP_AFTER=2 python3 test/gpu/torch_killed.py graph 4

Starts its ranks itself: torchrun would end the others when one dies. The last rank kills itself while the others'
allreduce, or their replay (graph), waits for it; their main thread sits in cudaStreamSynchronize. abort: another thread
aborts, as a watchdog does; they destroy the process group, and make another in the same processes. absent: the same of a
replay, but the last rank lives, aborts after the others, and is in the other process group, too. Otherwise nobody but
PyTorch's watchdog looks after them. Prints when the last survivor has ended, after the kill, and how. Exit status: 0
when all survivors ended by themselves, abort and absent: well; else: none with success.
"""
import os
import signal
import socket
import subprocess
import sys
import threading
import time

LIMIT_S = 90
KILL_S = 1  # after the others' call
ABORT_S = 3
TIMEOUT_S = 15  # of the process group: what stock NCCL waits

ABORTS = "abort", "absent"
ABORT_ENVIRONMENT = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
# PyTorch would first wait for the other ranks' flight recorders, as 2.11 does for a minute all the same.
WATCHDOG_ENVIRONMENT = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(mode, world):
    ports = [str(free_port()) for _ in range(2)]
    env = dict(os.environ, **(ABORT_ENVIRONMENT if mode in ABORTS else WATCHDOG_ENVIRONMENT))
    ranks = [subprocess.Popen([sys.executable, __file__, mode, str(world), str(rank), *ports], env=env)
             for rank in range(world)]
    ranks[-1].wait(LIMIT_S)
    begin = time.monotonic()
    ended = True
    for process in ranks[:-1]:
        try:
            process.wait(max(0.1, begin + LIMIT_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
            process.kill()
            process.wait()
    *status, killed = [process.returncode for process in ranks]
    print(f"survivors ended {time.monotonic() - begin:.2f} s after the kill, exit statuses {status}", flush=True)
    right = not any(status) if mode in ABORTS else all(status)
    return 0 if ended and killed == (0 if mode == "absent" else -signal.SIGKILL) and right else 1


def run(mode, world, rank, ports):
    import datetime

    import torch
    import torch.distributed as dist

    def begin(port, size):
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
                                timeout=None if mode in ABORTS else datetime.timedelta(seconds=TIMEOUT_S))

    def total(size):
        tensor = torch.ones(1000, device=device)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        return bool((tensor == size).all())

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    begin(ports[0], world)
    good = [total(world) for _ in range(3)]
    tensor = torch.ones(1000, device=device)
    graph = torch.cuda.CUDAGraph()
    captured = mode in ("graph", "absent")
    if captured:
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)
        graph.replay()
    dist.barrier()
    torch.cuda.synchronize()
    abort = dist.group.WORLD._get_backend(device).abort
    if rank == world - 1:
        time.sleep(KILL_S)
        if mode != "absent":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(ABORT_S + 1)
        abort()
    else:
        aborter = threading.Timer(ABORT_S, abort)
        start = time.monotonic()
        if captured:
            graph.replay()
        else:
            dist.all_reduce(tensor, async_op=mode == "abort")
        if mode in ABORTS:
            aborter.start()
        torch.cuda.synchronize()
        if mode not in ABORTS:
            print(f"rank {rank}: FAIL, a call without its last rank has ended with success", flush=True)
            os._exit(0)
        waited = time.monotonic() - start
        aborter.join(10)
        aborted = time.monotonic() - start
        print(f"rank {rank}: free {waited:.2f} s after the call, aborted after {aborted:.2f} s", flush=True)
        good.append(KILL_S / 2 < waited < ABORT_S + 1 and not aborter.is_alive() and aborted < ABORT_S + 2)
    if captured:
        graph.reset()
    dist.destroy_process_group()

    left = world if mode == "absent" else world - 1
    begin(ports[1], left)
    good += [total(left) for _ in range(3)]
    dist.destroy_process_group()
    print(f"rank {rank}: {'ok' if all(good) else 'FAIL'} {good}", flush=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    mode, world, *rest = sys.argv[1:]
    sys.exit(run(mode, int(world), int(rest[0]), rest[1:]) if rest else launch(mode, int(world)))
