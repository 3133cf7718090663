"Processes that act as one, started by torchrun, by accelerate and by `launch`, whose end is also theirs."
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.multiprocessing as mp

from istar_nb.report.isotropy import measure
from istar_nb.study.pretraining import pretrain
from istar_nb.study.pretrain_runs import PretrainConfig
from istar_nb.training.records import find_record, iterate_records
from istar_nb.training.runs import RunConfig
from istar_nb.sweeps.sweeps import sweep
from istar_nb.base.files import run_lock
from istar_nb.training.training import launch, train
from processes import ALONE, Process, held_workers, places_of_two, wait_for_update
from toy_task import write_still_model, write_task

ACCELERATE = ("accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
              "--dynamo_backend no --main_process_port 0 --no_python")
toy = dict(task="sst2", limit=96, batch_size=16, epochs=1, lr=1e-3, max_length=16, method="istar", lam=-0.5,
           reference_points=500)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "The configuration of a short run without dropout, the folder of its data, and the options that describe it."
    folder = tmp_path_factory.mktemp("made")
    config, data = RunConfig(model=write_still_model(folder/"model"), **toy), write_task(folder/"data")
    options = dict(model=config.model, data_dir=data) | toy
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return config, data, [*words, "--no-progress"]


def without_accelerate(environment):
    "An environment that says nothing to accelerate: in it a machine without accelerators is just what it is."
    return {name: value for name, value in environment.items() if not name.startswith("ACCELERATE_")}


def test_accelerate_joins_its_processes_where_there_is_no_accelerator(made, tmp_path):
    "They train like one process, and the record says that they were two; torchrun is tried with two machines."
    config, data, words = made
    command = [sys.executable, "-m", *ACCELERATE.split(), shutil.which("istar"), "train", *words]
    run = subprocess.run(command, cwd=tmp_path, env=without_accelerate(os.environ | ALONE), encoding="utf-8",
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    assert run.returncode == 0 and run.stdout.count("record: runs/") == 1, run.stdout
    two, one = find_record(tmp_path/"runs", config.id), train(config, tmp_path/"one", data, progress=False)
    assert (two.environment["processes"], one.environment["processes"]) == (2, 1)
    assert two.score == one.score and two.epochs[-1]["isoscore"] == pytest.approx(one.epochs[-1]["isoscore"], rel=1e-4)
    assert not list((tmp_path/"runs"/"checkpoints").iterdir())


def test_two_machines_of_two_processes_train_like_one(made, tmp_path):
    "Two agents of torchrun, which meet at a port, each with two processes; they share the folder of the store."
    config, data, words = made
    programs = Path(sys.executable).parent/"istar", shutil.which("istar")    # of new interpreters, and of forked ones
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    def agent(rank):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "2",
                   "--node_rank", str(rank), "--master_addr", "127.0.0.1", "--master_port", str(port), "--no-python",
                   programs[rank], "train", *words, "--checkpoint-every", "2"]
        return subprocess.Popen(command, cwd=tmp_path, env=without_accelerate(os.environ | ALONE), encoding="utf-8",
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    agents = [agent(rank) for rank in (0, 1)]
    said = [each.communicate(timeout=600)[0] for each in agents]
    assert [each.returncode for each in agents] == [0, 0] and "".join(said).count("record: runs/") == 1, said
    four, one = find_record(tmp_path/"runs", config.id), train(config, tmp_path/"one", data, progress=False)
    assert (four.environment["processes"], one.environment["processes"]) == (4, 1)
    ends = [record.epochs[-1]["isoscore"] for record in (four, one)]
    assert four.score == one.score and ends[0] == pytest.approx(ends[1], rel=1e-4)
    assert not list((tmp_path/"runs"/"checkpoints").iterdir())


def in_two(istar, *words):
    "Two processes that a launcher such as torchrun could have started, after their end."
    for process in [istar("train", *words, **place) for place in places_of_two()]:
        said = process.wait()
        assert process.code == 0, said


def test_a_number_without_a_count_is_no_second_process(istar, made, tmp_path):
    "A variable RANK that is left over from something else: the run takes its lock and says what it does."
    process = istar("train", *made[-1], RANK=1)
    assert "record: runs/" in process.wait() and process.code == 0


def test_a_count_without_a_number_is_an_error(istar, made, tmp_path):
    process = istar("train", *made[-1], WORLD_SIZE=2)
    assert "`WORLD_SIZE` is 2 and `RANK` is not set" in process.wait() and process.code


alone = dict(sweep=lambda config, root: sweep([config], root=root),
             launch=lambda config, root: launch(config, root=root),
             pretrain=lambda config, root: pretrain(PretrainConfig(), root))


@pytest.mark.parametrize("what", alone)
def test_what_is_for_one_process_is_refused_under_a_launcher(what, made, tmp_path, monkeypatch):
    "Its processes would wait for each other in the middle of different runs."
    for name, value in places_of_two()[0].items(): monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="for one process, .* a launcher has started 2"): alone[what](made[0], tmp_path)
    assert not list(tmp_path.iterdir())


def in_background(words):
    "`istar` as a shell starts it with an ampersand: without an ear for SIGINT."
    from istar_nb.app.cli import main
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(words)


def launching(config, data):
    "`launch` from Python, which listens to SIGINT even if what runs the tests does not; its processes are copies."
    mp.spawn = partial(mp.start_processes, start_method="fork")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    launch(config, root="runs", data_dir=data, checkpoint_every=2, progress=False)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)    # SIGTERM has no handler
def test_processes_end_with_the_one_that_started_them(how, istar, made, tmp_path, monkeypatch):
    "Wherever they are; they leave no record and no lock, and the run goes on when it is started again."
    config, data, words = made
    command = ["train", *words, "--processes", "2", "--checkpoint-every", "2"]
    (tmp_path/"held").write_text("checkpoint-000000004")
    with monkeypatch.context() as held:
        held.setenv("PYTHONPATH", held_workers(tmp_path))
        held.setenv("HELD", str(tmp_path/"held"))
        parent = (Process(launching, config, data, folder=tmp_path) if how == signal.SIGINT
                  else Process(in_background, command, folder=tmp_path))
        wait_for_update(tmp_path/"runs"/"checkpoints", 2, parent)
        workers = psutil.Process(parent.pid).children(recursive=True)
        assert len(workers) >= 2
        os.kill(parent.pid, how)
        assert not psutil.wait_procs(workers, timeout=300)[1], "workers end with the process that has started them"
        parent.wait()
    assert find_record(tmp_path/"runs", config.id) is None
    with run_lock(tmp_path/"runs"/"checkpoints"/config.id) as free: assert free
    if how != signal.SIGKILL: return    # after the others it goes on from the same files
    in_two(istar, *words)
    assert len(list(iterate_records(tmp_path/"runs"))) == 1 and not list((tmp_path/"runs"/"checkpoints").iterdir())


def test_a_measurement_is_shared_by_the_processes_of_a_launcher(tmp_path):
    "Each measures its share, and one report has the digits of one process."
    rows = torch.randn(20_000, 6, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path/"x.npy", rows.numpy())
    command = [shutil.which("istar"), "measure", "x.npy", "--no-progress", "--out", "out"]
    both = [subprocess.Popen(command, cwd=tmp_path, env=without_accelerate(os.environ | ALONE | place),
                             encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for place in places_of_two()]
    said = [each.communicate(timeout=600)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0] and "".join(said).count("report: ") == 1, said
    found = json.loads((tmp_path/"out"/"isotropy.json").read_text())["measures"]
    assert found == measure(tmp_path/"x.npy", processes=1).measures and found["x.npy"]["points"]["count"] == 20_000
