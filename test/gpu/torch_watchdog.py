# SPDX-License-Identifier: MIT
"""A rank is killed in a call, and nobody but PyTorch's watchdog looks after the others: how does the job end, and when?

    python3 test/gpu/torch_watchdog.py 4                                            # stock NCCL: by its own time-out
    LD_PRELOAD=libonehop.so python3 test/gpu/torch_watchdog.py 4                    # by the asynchronous error
    LD_PRELOAD=libonehop.so ONEHOP_TRAP_AFTER=2 python3 test/gpu/torch_watchdog.py --graph 4

Starts its ranks itself: torchrun would end the others when one dies. The last rank kills itself while the others'
allreduce, or with --graph their replay, waits for it; they synchronise and never ask for an error. Prints when the last
survivor has ended, after the kill, and how. Exit status: 0 when all survivors ended by themselves, none with success.
"""
import os
import signal
import subprocess
import sys
import time

from torch_killed import free_port

TIMEOUT_S = 15  # of the process group: what stock NCCL waits
LIMIT_S = 90


def launch(world, graph):
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"  # PyTorch would first wait for the other ranks' flight recorders,
    os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "1000"  # as 2.11 does for a minute all the same
    port = str(free_port())
    arguments = [sys.executable, __file__, *(["--graph"] if graph else [])]
    ranks = [subprocess.Popen([*arguments, str(world), str(rank), port]) for rank in range(world)]
    killed = ranks[-1]
    killed.wait(LIMIT_S)
    begin = time.monotonic()
    ended = True
    for process in ranks[:-1]:
        try:
            process.wait(max(0.1, begin + LIMIT_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
            process.kill()
            process.wait()
    status = [process.returncode for process in ranks]
    print(f"survivors ended {time.monotonic() - begin:.2f} s after the kill, exit statuses {status}", flush=True)
    return 0 if ended and killed.returncode == -signal.SIGKILL and 0 not in status else 1


def run(world, rank, port, graph):
    import datetime

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    tensor = torch.ones(1000, device=device)
    for _ in range(3):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    if graph:
        with torch.cuda.graph(captured):
            dist.all_reduce(tensor)
        captured.replay()
        torch.cuda.synchronize()
    if rank == world - 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    if graph:
        captured.replay()
    else:
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    print(f"rank {rank}: FAIL, a call without its last rank has ended with success", flush=True)
    os._exit(0)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--graph"]
    if len(words) == 1:
        sys.exit(launch(int(words[0]), "--graph" in sys.argv))
    run(int(words[0]), int(words[1]), words[2], "--graph" in sys.argv)
