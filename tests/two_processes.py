"Run a function on two gloo processes of this machine."
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, port, job, args, folder, connected):
    "What one of two processes does."
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                      ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    torch.set_num_threads(1)
    if connected: dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.save(job(rank, *args), f"{folder}/{rank}.pt")
    if dist.is_initialized(): dist.destroy_process_group()


def on_two(job, *args, folder, connected=True):
    "The results of `job(rank, *args)` on both; `connected=False` leaves joining them to the job."
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port, job, args, str(folder), connected), nprocs=2)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]
