"""Processes of this machine that start at once: forked from one that has imported what takes seconds, and has run nothing.

    command = Process(train, config, folder)    # a process of its own, in a session of its own
    said = command.wait()                       # what it wrote; `command.code` says how it ended
    results = on_two(job, folder=folder)        # of two processes joined by gloo
    serve_programs(folder)                      # `istar` and `forked-python` in this folder are forked in the same way
"""
import atexit
import io
import json
import os
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from glob import glob    # unlike that of a Path, it minds no folder that vanishes meanwhile
from itertools import count
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FORKED = mp.get_context("forkserver")
FORKED.set_forkserver_preload(["pytest", "pandas", "scipy.stats", "sklearn.metrics", "tokenizers", "torch._dynamo", "torch.distributed.tensor", "torchmetrics", "fsspec",
                               "transformers.modeling_utils", "transformers.models.bert.modeling_bert",
                               "istar_nb.app.cli", "istar_nb.training.training", "istar_nb.study.pretraining", "istar_nb.sweeps.sweeps", "ready"])
ONE_AT_A_TIME = threading.Lock()    # starting a process also asks how others ended, which can be read only once
NUMBERS = count()
ALONE = dict(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="1", CUDA_VISIBLE_DEVICES="")


# A process with the variable HELD waits before every checkpoint that this file names, for as long as it does, so that
# a test can stop it just there, however busy the machine is.
HOLD = """
import os, sys, time
from pathlib import Path
def hold(event, args):
    if event != "os.rename" or "checkpoint-" not in str(args[1]): return
    while any(name in str(args[1]) for name in Path(os.environ["HELD"]).read_text(encoding="utf-8").split()):
        time.sleep(0.01)
sys.addaudithook(hold)
"""


def held_workers(folder):
    "The PYTHONPATH with which interpreters that are started anew hold, too."
    (folder/"hold").mkdir(exist_ok=True)
    (folder/"hold"/"sitecustomize.py").write_text(HOLD, encoding="utf-8")
    return os.pathsep.join(filter(None, (str(folder/"hold"), os.environ.get("PYTHONPATH"))))


@cache
def serve():
    "Start the server where it finds `ready`: it does not look into the folders that this process looks into."
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()


def places_of_two():
    "For each of two processes the environment that a launcher such as torchrun gives it."
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return [dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2") for rank in range(2)]


def enter(environment):
    "Take the environment that the server was not started with."
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    if "HELD" in environment: exec(HOLD, {})


def begin(environment, folder, output, job, args):
    "What a process does: its job, as a program that was started in a folder and writes to a file."
    enter(environment)
    os.setsid()
    os.chdir(folder)
    with open(output, "ab") as file:
        for descriptor in (1, 2): os.dup2(file.fileno(), descriptor)
    job(*args)


@cache
def outputs():
    "A folder for what processes write, as long as this one lives."
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


class Process:
    "A function in a process of its own; keywords are environment variables."
    def __init__(self, job, *args, folder=".", **variables):
        self.output = outputs()/str(next(NUMBERS))
        self.output.touch()
        environment = os.environ | ALONE | {name: str(value) for name, value in variables.items()}
        with ONE_AT_A_TIME:
            serve()
            self.process = FORKED.Process(target=begin, args=(environment, str(folder), str(self.output), job, args))
            self.process.start()
        self.pid = self.process.pid

    @property
    def code(self): return self.process.exitcode    # None while it runs, -9 after a SIGKILL

    @property
    def said(self): return self.output.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds=600):
        "Wait until it has ended; what it wrote."
        self.process.join(seconds)
        assert self.code is not None, f"it has not ended after {seconds} s:\n{self.said}"
        return self.said

    def kill(self):
        "SIGKILL for it and all that it has started, which may be in sessions of their own."
        with suppress(psutil.NoSuchProcess):
            for one in [*psutil.Process(self.pid).children(recursive=True), psutil.Process(self.pid)]: one.send_signal(signal.SIGKILL)
        self.wait()


def wait_for(condition, process, seconds=600):
    "Wait until a condition holds, while a process runs; what the condition gave."
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert process.code is None and time.monotonic() < end, f"waited in vain; the process ended with {process.code}:\n{process.said}"
        time.sleep(0.01)
    return found


def wait_for_update(folder, update, process):
    "Wait until a checkpoint at or after `update` exists; the newest update seen."
    def newest():
        seen = max((int(Path(path).name.split("-")[1]) for path in glob(f"{folder}/*/checkpoint-*")), default=-1)
        return seen if seen >= update else None
    return wait_for(newest, process)


def work(rank, places, job, args, folder, connected):
    "What one of two processes does."
    enter(places[rank])
    if connected: dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.save(job(rank, *args), f"{folder}/{rank}.pt")
    if dist.is_initialized(): dist.destroy_process_group()


def on_two(job, *args, folder, connected=True):
    "The results of `job(rank, *args)` on both; `connected=False` leaves joining them to the job."
    serve()
    places = [os.environ | ALONE | place for place in places_of_two()]
    mp.start_processes(work, (places, job, args, str(folder), connected), nprocs=2, start_method="forkserver")
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]


def run_program(order, streams):
    "What a program does that was handed over: its code, with the streams of the one that handed it over."
    enter(order["environment"])
    os.setsid()
    os.chdir(order["folder"])
    for descriptor, stream in enumerate(streams): os.dup2(stream.fileno(), descriptor)
    sys.stdin, sys.stdout, sys.stderr = (io.TextIOWrapper(open(descriptor, mode, closefd=False), encoding="utf-8", line_buffering=descriptor == 2)
                                         for descriptor, mode in enumerate(("rb", "wb", "wb")))
    sys.argv = ["istar", *order["words"]]
    exec(order["code"], dict(__name__="__main__"))


def carry_out(client):
    "Fork a process for a program, and tell the one that handed it over how it ended; it is killed when that one is."
    with client:
        _, descriptors, *_ = socket.recv_fds(client, 1, 3)
        order = json.loads(client.makefile(encoding="utf-8").readline())
        streams = [Connection(descriptor) for descriptor in descriptors]
        with ONE_AT_A_TIME:
            serve()
            process = FORKED.Process(target=run_program, args=(order, streams))
            process.start()
        for stream in streams: stream.close()
        def follow():
            with suppress(ConnectionError, ProcessLookupError):
                if not client.recv(1): os.killpg(process.pid, signal.SIGKILL)
        threading.Thread(target=follow, daemon=True).start()
        wait([process.sentinel])
        with ONE_AT_A_TIME: process.join()
        with suppress(ConnectionError): client.sendall(f"{process.exitcode}\n".encode())
        client.shutdown(socket.SHUT_RDWR)


def serve_programs(folder):
    "Put an `istar` and a `forked-python` into a folder whose processes are forked by this one's server."
    stand_in = f"exec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(Path(__file__).with_name('stand_in.py')))}"
    for name, words in (("istar", "-c 'from istar_nb.app.cli import main; main()'"), ("forked-python", "")):
        (folder/name).write_text(f'#!/bin/sh\n{stand_in} {words} "$@"\n', encoding="utf-8")
        (folder/name).chmod(0o755)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder/"server"))
    server.listen()
    def accept():
        while True: threading.Thread(target=carry_out, args=(server.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    os.environ["ISTAR_TESTS_SERVER"] = str(folder/"server")
