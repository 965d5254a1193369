# SPDX-License-Identifier: MIT
"""launch.py MODE LIBRARY HOLDER ID_FILE: starts two ranks as launchers and trainers written in Python do.

torchrun       a subprocess for each rank, with its rank in the environment
spawn, fork    multiprocessing; each child opens LIBRARY and is a rank
fork-after     a rank that forks while it has a communicator: a child that ends by exit; and later a new job by exec
"""
import ctypes
import multiprocessing
import os
import subprocess
import sys

RANKS = 2


def be_rank(library, rank, id_file):
    sys.exit(ctypes.CDLL(library).caller_run(rank, RANKS, id_file.encode(), 3))


def torchrun(holder, id_file):
    """The agent: starts, waits, and fails when one fails."""
    workers = []
    for rank in range(RANKS):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
        command = ["bash", "-c", 'exec "$0" "$RANK" "$WORLD_SIZE" "$1"', holder, id_file]
        workers.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True))
    return max(abs(worker.wait()) for worker in workers)


def processes(method, library, id_file):
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=be_rank, args=(library, rank, id_file)) for rank in range(RANKS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(abs(worker.exitcode) for worker in workers)


def fork_after(library, holder, id_file):
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=be_rank, args=(library, 1, id_file))
    other.start()
    caller = ctypes.CDLL(library)
    if caller.caller_begin(0, RANKS, id_file.encode()) != 0 or caller.caller_call(2) != 0:
        return 1
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print("child", os.getpid(), flush=True)
        sys.exit(7)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7 or caller.caller_call(1) != 0:
        return 1
    if caller.caller_end() != 0:
        return 1
    other.join()
    return other.exitcode or torchrun(holder, id_file + ".again")


if __name__ == "__main__":
    mode, library, holder, id_file = sys.argv[1:]
    if mode == "torchrun":
        sys.exit(torchrun(holder, id_file))
    if mode == "fork-after":
        sys.exit(fork_after(library, holder, id_file))
    sys.exit(processes(mode, library, id_file))
