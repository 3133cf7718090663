"A run that is killed and started again ends bit-equal to one that was not."
import signal
import time
from dataclasses import replace

import psutil
import pytest

from istar_nb.runs import RunConfig, find_record, iterate_records
from istar_nb.training import train

config = RunConfig(model="tiny-bert", method="istar", lam=-0.5, limit=960, epochs=2, lr=1e-3, reference_points=5000)
words = ["train", "--model", "tiny-bert", "--method", "istar", "--lam", "-0.5", "--limit", "960", "--epochs", "2", "--lr", "1e-3",
         "--reference-points", "5000", "--checkpoint-every", "2", "--no-progress"]


def wait_for_update(folder, update, process, seconds=180):
    "Wait until a checkpoint at or after `update` exists; the newest update seen."
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        seen = [int(p.name.split("-")[1]) for p in folder.glob("*/checkpoint-*")]
        if seen and max(seen) >= update: return max(seen)
        time.sleep(0.002)
    pytest.fail(f"no checkpoint at update {update}; the process ended with {process.poll()}:\n{process.stdout.read() if process.poll() is not None else ''}")


def kill(process):
    "SIGKILL for a process and all that it has started, which may be in sessions of their own."
    for one in [*psutil.Process(process.pid).children(recursive=True), process]: one.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_twice_in_the_middle_of_an_epoch(istar, tmp_path, processes):
    updates_an_epoch = 30
    for update in (6, 36):
        process = istar(*words, processes=processes)
        seen = wait_for_update(tmp_path/"runs"/"checkpoints", update, process)
        kill(process)
        assert seen % updates_an_epoch, "the kill was meant for the middle of an epoch"
        assert find_record(tmp_path/"runs", config.id) is None
    out, _ = istar(*words, processes=processes).communicate(timeout=300)
    resumed = find_record(tmp_path/"runs", config.id)
    assert resumed is not None, out
    whole, _ = istar(*words, "--root", "whole", processes=processes).communicate(timeout=300)
    assert resumed.same == find_record(tmp_path/"whole", config.id).same, whole
    assert resumed.environment["processes"] == processes
    assert not list((tmp_path/"runs"/"checkpoints").iterdir()), "checkpoints of a finished run are removed"
    assert len(list(iterate_records(tmp_path/"runs"))) == 1


def test_checkpoint_of_another_number_of_processes_is_refused(istar, tmp_path):
    process = istar(*words)
    wait_for_update(tmp_path/"runs"/"checkpoints", 2, process)
    kill(process)
    out, _ = istar(*words, processes=2).communicate(timeout=300)
    assert "another world" in out


def test_half_written_checkpoint_does_not_count(tmp_path):
    folder = tmp_path/"checkpoints"/config.id/"writing.tmp"
    folder.mkdir(parents=True)
    (folder/"session.json").write_text("{")
    small = replace(config, limit=64, epochs=1)
    folder.parent.rename(tmp_path/"checkpoints"/small.id)
    assert train(small, tmp_path, checkpoints=tmp_path/"checkpoints", progress=False).status == "done"
