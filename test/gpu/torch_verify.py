# SPDX-License-Identifier: MIT
"""Results that differ from NCCL's, for ONEHOP_VERIFY=1: another stream writes to the tensor of each dist.all_reduce.

    LD_PRELOAD=libonehop.so ONEHOP_VERIFY=1 torchrun --nproc-per-node 2 test/gpu/torch_verify.py

onehop must warn; whoever calls looks for that. Not for results: NCCL and onehop read what the other stream has just written.
"""
import os


def main():
    import torch
    import torch.distributed as dist
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    tensor = torch.ones(1 << 20, device=device)
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    for call in range(100):
        with torch.cuda.stream(other):
            for write in range(20):
                tensor[:4096].fill_(float(20 * call + write))
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    dist.destroy_process_group()


main()
