"A sweep on a real two-node Ray cluster that loses a node on the way. ISTAR_RAY_RUNS sets the number of runs."
import os
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from uuid import uuid4

import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

os.environ.setdefault("RAY_AUTH_MODE", "disabled")              # a cluster of this machine alone
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
for name in ("gcs_server_port_wait_time_s", "worker_register_timeout_seconds"):
    os.environ.setdefault(f"RAY_{name}", "600")                 # however busy the machine is
ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster

import istar_nb as inb
from istar_nb.sweeps import executors
from istar_nb.training.records import iterate_records
from istar_nb.sweeps.grids import grid
from istar_nb.sweeps.sweeps import sweep
from toy_task import write_model, write_task

pytestmark = pytest.mark.system          # a cluster is many processes
runs = int(os.environ.get("ISTAR_RAY_RUNS", 12))
folder = tempfile.TemporaryDirectory()
base = dict(task="sst2", model=f"{folder.name}/tiny", epochs=1, limit=64, max_length=16, batch_size=16, lr=1e-3,
            reference_points=2000)
spec = dict(base=base, seeds=list(range(runs//4)),
            runs=[dict(method="none"), dict(method="istar", lam=[-1, 1]), dict(method="istar", lam=1, lr=1e30)])


def started(*sizes, seconds=600):
    "Nodes of these sizes; Ray gives up one whose helpers take 15 seconds to start, so a busy machine tries again."
    end, before = time.monotonic() + seconds, psutil.Process().children(recursive=True)
    while True:
        cluster = Cluster()
        try:
            for i, size in enumerate(sizes):
                first = dict(include_dashboard=False) if i == 0 else {}
                cluster.other = cluster.add_node(**size, **first, object_store_memory=80*2**20, wait=False)
            cluster.wait_for_nodes(60)
            return cluster
        except Exception:
            cluster.shutdown()
            for helper in psutil.Process().children(recursive=True):    # of a node that did not come to be
                with suppress(psutil.NoSuchProcess):
                    if helper not in before: helper.kill()
            if time.monotonic() < end: continue
            if os.getloadavg()[0] > 3*os.cpu_count():
                pytest.skip("no Ray cluster starts within its own 30 seconds while this machine is so busy")
            raise


@contextmanager
def joined(*sizes):
    "A cluster of nodes of these sizes, which this process has joined."
    cluster = started(*sizes)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def cluster():
    "A head and one more node, each with one core for runs; the last test of this file takes the second node away."
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with joined(dict(num_cpus=1), dict(num_cpus=1)) as cluster: yield cluster


def test_names_are_those_of_the_folder_where_the_sweep_started(tmp_path, cluster, monkeypatch):
    "A model's folder, tables of one's own and the store, all named relatively; the nodes started somewhere else."
    monkeypatch.chdir(tmp_path)
    write_model("tiny")
    words = "good bad fine poor sound weak".split()
    for name, rows in (("train.csv", 64), ("validation.csv", 16)):
        lines = [f"a {words[i % 6]} word number {i},{i % 2}" for i in range(rows)]
        (tmp_path/name).write_text("text,label\n" + "\n".join(lines) + "\n")
    own = dict({k: v for k, v in base.items() if k != "task"}, model="tiny", train="train.csv",
               validation="validation.csv", text="text", label="label")
    there = ray.get(ray.remote(lambda: os.getcwd()).remote())
    assert there != str(tmp_path), "workers have a folder of their own"
    on_ray, here = [sweep(dict(base=own, seeds=[0, 1]), executor=executor, root=root, checkpoints="checkpoints",
                          progress=False)
                    for executor, root in (("ray", "on_ray"), (None, "here"))]
    assert [r.status for r in on_ray] == ["done"]*2, [r.error for r in on_ray]
    assert [r.same for r in on_ray] == [r.same for r in here]
    assert {path.name for path in tmp_path.iterdir()} <= {"tiny", "train.csv", "validation.csv", "on_ray", "here",
                                                          "checkpoints"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")    # of Ray itself
def test_vectors_measured_on_two_nodes_have_the_digits_of_one_process(tmp_path, cluster):
    "Files whose names are not in the order of their rows."
    rows = torch.randn(20_000, 16, generator=torch.Generator().manual_seed(0))*torch.linspace(2, 0.3, 16) + 1
    names = torch.arange(20_000).split(3000)
    for i, part in zip(torch.randperm(len(names), generator=torch.Generator().manual_seed(1)).tolist(), names):
        table = pa.table(dict(number=part.numpy(), vector=list(rows[part].numpy())))
        parquet.write_table(table, tmp_path/f"{i:02}.parquet")
    data = ray.data.read_parquet(str(tmp_path), override_num_blocks=len(names))
    found = inb.measure(data, column="vector", ids="number", progress=False).measures
    assert found["points"] == inb.measure(rows, processes=1, progress=False).measures["points"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")    # of Ray itself
def test_texts_are_read_by_a_model_on_each_node(tmp_path, cluster):
    "Texts share other batches than in one process, so that states differ by rounding, and every text counts once."
    write_model(model := f"{tmp_path}/tiny")
    words = "good bad fine poor sound weak".split()
    texts = [f"a {words[i % 6]} word and {' '.join(words[:i % 5])} number {i}" for i in range(200)]
    data = ray.data.from_items([dict(number=i, text=text) for i, text in enumerate(texts)], override_num_blocks=4)
    found = inb.measure(model, data, tokens="mean", column="text", ids="number").measures[model]
    for layer, wanted in inb.measure(model, texts, tokens="mean", progress=False).measures[model].items():
        if layer == "pooled": continue
        assert found[layer]["count"] == 200
        for name in ("isoscore", "isoscore_unbiased", "isoscore_se", "mean_cosine", "two_nn"):
            assert found[layer][name] == pytest.approx(wanted[name], rel=1e-3)
    with pytest.raises(ValueError, match="`tokens` must be 'cls', 'last' or 'mean' on Ray"):
        inb.measure(model, data, column="text", ids="number")
    with pytest.raises(ValueError, match="`dtype` has no meaning for a dataset of Ray"):
        inb.measure(model, data, tokens="mean", column="text", ids="number", dtype="bfloat16")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")    # of Ray itself
def test_a_node_is_lost_and_no_row(tmp_path, cluster):
    "Not a row of the vectors is left out or counted twice. The other nodes wait until this one has gone."
    (tmp_path/"read").mkdir()
    lost, blocks = [], 24
    third = cluster.add_node(num_cpus=2, object_store_memory=80*2**20)
    other, gone = third.node_id, tmp_path/"gone"
    def read(block):
        here, end = ray.get_runtime_context().get_node_id(), time.monotonic() + 100
        (tmp_path/"read"/f"{uuid4()}").write_text(here)
        while here != other and not gone.exists() and time.monotonic() < end: time.sleep(0.05)
        time.sleep(0.2)
        return block
    def lose():
        while not lost:
            places = [file.read_text() for file in (tmp_path/"read").iterdir()]
            if places.count(other) > 1:
                lost.append(len(places))
                cluster.remove_node(third, allow_graceful=False)
                gone.touch()
            time.sleep(0.01)
    thread = threading.Thread(target=lose, daemon=True)
    rows = torch.randn(24_000, 16, generator=torch.Generator().manual_seed(0))*torch.linspace(2, 0.3, 16)
    items = [dict(number=i, vector=row) for i, row in enumerate(rows.numpy())]
    data = ray.data.from_items(items, override_num_blocks=blocks).map_batches(read, batch_size=None)
    thread.start()
    found = inb.measure(data, column="vector", ids="number").measures
    assert found == inb.measure(rows, processes=1).measures
    if not lost: lost.append(blocks)
    thread.join()
    assert lost[0] < blocks, "the node was lost on the way"


def test_runs_of_two_processes_get_two_gpus_each(tmp_path, cluster, monkeypatch):
    """Two at once, and none has another's; then one is really carried out, by two processes that its task starts.

    A third node says that it has four GPUs; no other has two cores for the processes of a run.
    """
    large = cluster.add_node(num_cpus=4, num_gpus=4, object_store_memory=80*2**20)
    def told(config, job, places):
        seen, end = tmp_path/str(config.seed), time.monotonic() + 300
        seen.write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end: time.sleep(0.01)
    configs, places = grid(dict(base=base, seeds=[0, 1])), executors.Resources(processes_per_run=2)
    with monkeypatch.context() as patched:
        patched.setattr(executors, "_on_machine", told)
        events = list(executors.on_ray(configs, executors.Job(str(tmp_path/"runs")), places))
    assert {event.config for event in events} == set(configs)
    given = [(tmp_path/str(seed)).read_text().split(",") for seed in (0, 1)]
    assert [len(devices) for devices in given] == [2, 2] and len(set(given[0] + given[1])) == 4
    data = write_task(tmp_path/"data")
    write_model(base["model"])
    [record] = sweep(configs[:1], executor="ray", processes_per_run=2, data_dir=data, root=tmp_path/"ray",
                     checkpoints=tmp_path/"checkpoints", progress=False)
    assert record.status == "done" and record.environment["processes"] == 2, record.error
    cluster.remove_node(large)


def test_a_node_is_lost_and_no_run(tmp_path, cluster):
    "The records are those of one process, failures included."
    end = time.monotonic() + 60
    while ray.cluster_resources()["CPU"] > 2 and time.monotonic() < end: time.sleep(0.1)    # an earlier test's node
    assert ray.cluster_resources()["CPU"] == 2
    data = write_task(tmp_path/"data")
    write_model(base["model"])
    lost = []
    def lose():
        "Kill the other node while both nodes are at a run and a quarter of the runs is done."
        while not lost:
            at, made = len(list((tmp_path/"checkpoints").glob("*.lock"))), len(list((tmp_path/"ray").glob("*.json")))
            if at == 2 and made >= runs//4:
                lost.append(made)
                cluster.remove_node(cluster.other, allow_graceful=False)
            time.sleep(0.002)
    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    records = sweep(spec, executor="ray", data_dir=data, root=tmp_path/"ray", checkpoints=tmp_path/"checkpoints",
                    progress=False)
    if not lost: lost.append(runs)
    thread.join()
    assert lost[0] < runs, "the node was lost on the way"
    end = time.monotonic() + 600
    while [n["Alive"] for n in ray.nodes()].count(True) > 1 and time.monotonic() < end: time.sleep(0.1)
    assert ray.cluster_resources()["CPU"] == 1
    expected = sweep(spec, data_dir=data, root=tmp_path/"local", checkpoints=tmp_path/"checkpoints", threads=1,
                     progress=False)
    assert len(records) == len(expected) == len(grid(spec)) == runs
    assert ([r.same for r in records] == [r.same for r in expected]
            and [r.status for r in records] == ["done", "done", "done", "failed"]*(runs//4))
    assert len(list(iterate_records(tmp_path/"ray"))) == runs and not list((tmp_path/"checkpoints").iterdir())
