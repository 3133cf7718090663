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
for name in ("enable_worker_prestart", "prestart_worker_first_driver"):
    os.environ.setdefault(f"RAY_{name}", "0")                   # a worker takes seconds to start: none in vain
os.environ.setdefault("RAY_idle_worker_killing_time_threshold_ms", "600000")
ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster

import istar_nb as inb
from istar_nb.sweeps import executors
from istar_nb.training.records import iterate_records
from istar_nb.sweeps.grids import grid
from istar_nb.sweeps.sweeps import sweep
from toy_task import write_model, write_task

pytestmark = pytest.mark.system          # a cluster is many processes
runs = int(os.environ.get("ISTAR_RAY_RUNS", 8))
folder = tempfile.TemporaryDirectory()
base = dict(task="sst2", model=f"{folder.name}/tiny", epochs=1, limit=64, max_length=16, batch_size=16, lr=1e-3,
            reference_points=2000)
spec = dict(base=base, seeds=list(range(runs//4)),
            runs=[dict(method="none"), dict(method="istar", lam=[-1, 1]), dict(method="istar", lam=1, lr=1e30)])


def one_more(cluster, **options):
    "A node without what no run needs: logs on the driver, metrics and pages for browsers."
    return cluster.add_node(object_store_memory=80*2**20, include_log_monitor=False, **options)


def started(*sizes, seconds=600):
    "Nodes of these sizes; Ray gives up one whose helpers take 15 seconds to start, so a busy machine tries again."
    end, before = time.monotonic() + seconds, psutil.Process().children(recursive=True)
    while True:
        cluster = Cluster()
        try:
            for i, size in enumerate(sizes):
                first = dict(include_dashboard=False, no_monitor=True) if i == 0 else {}
                cluster.other = one_more(cluster, **size, **first, wait=False)
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
    "A head and one more node, each with one core for runs, until a test takes the other one away."
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        missing = ImportError("left out")    # as of Ray without its extras
        patch.setattr(ray._private.utils, "get_dashboard_dependency_error", lambda: missing)
        with joined(dict(num_cpus=1), dict(num_cpus=1)) as cluster: yield cluster


@pytest.fixture(scope="module")
def large(cluster):
    "One more node, with four cores, which says that it has four GPUs; the last test of this file takes it away."
    return one_more(cluster, num_cpus=4, num_gpus=4)


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
    """Vectors of files whose names are not in the order of their rows have the digits of one process.

    Not a row is left out or counted twice. The head waits until the other node has gone, which has done a block.
    """
    for name in ("read", "files"): (tmp_path/name).mkdir()
    rows = torch.randn(12_000, 16, generator=torch.Generator().manual_seed(0))*torch.linspace(2, 0.3, 16) + 1
    names = torch.arange(12_000).split(1000)
    lost, blocks = [], len(names)
    for i, part in zip(torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).tolist(), names):
        table = pa.table(dict(number=part.numpy(), vector=list(rows[part].numpy())))
        parquet.write_table(table, tmp_path/"files"/f"{i:02}.parquet")
    other, gone = cluster.other.node_id, tmp_path/"gone"
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
                cluster.remove_node(cluster.other, allow_graceful=False)
                gone.touch()
            time.sleep(0.01)
    thread = threading.Thread(target=lose, daemon=True)
    files = ray.data.read_parquet(str(tmp_path/"files")).repartition(blocks)    # Ray reads several small ones at once
    data = files.map_batches(read, batch_size=None)
    thread.start()
    found = inb.measure(data, column="vector", ids="number", progress=False).measures
    if not lost: lost.append(blocks)
    thread.join()
    assert found == inb.measure(rows, processes=1, progress=False).measures
    assert lost[0] < blocks, "the node was lost on the way"


def test_runs_of_two_processes_get_two_gpus_each(tmp_path, large, monkeypatch):
    """Two at once, and none has another's; one of them is really carried out, by two processes that its task starts.

    No other node has two cores for the processes of a run.
    """
    carry_out = executors._on_machine
    def told(config, job, places):
        seen, end = tmp_path/"seen"/str(config.seed), time.monotonic() + 300
        seen.write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        while len(list(seen.parent.iterdir())) < 2 and time.monotonic() < end: time.sleep(0.01)
        return executors.failed_record(config, "not carried out") if config.seed else carry_out(config, job, places)
    (tmp_path/"seen").mkdir()
    data = write_task(tmp_path/"data")
    write_model(base["model"])
    monkeypatch.setattr(executors, "_on_machine", told)
    record, other = sweep(dict(base=base, seeds=[0, 1]), executor="ray", processes_per_run=2, data_dir=data,
                          root=tmp_path/"ray", checkpoints=tmp_path/"checkpoints", progress=False)
    given = [(tmp_path/"seen"/str(seed)).read_text().split(",") for seed in (0, 1)]
    assert [len(devices) for devices in given] == [2, 2] and len(set(given[0] + given[1])) == 4
    assert record.status == "done" and record.environment["processes"] == 2, record.error
    assert (other.status, other.error) == ("failed", "not carried out")


def test_a_node_is_lost_and_no_run(tmp_path, cluster, large, monkeypatch):
    """The records are those of one process, failures included.

    A model's folder, tables of one's own and the store are all named relatively; the nodes started somewhere else.
    """
    for node in set(cluster.worker_nodes) - {large}: cluster.remove_node(node)
    taken, end = ray.util.placement_group([dict(CPU=3)]), time.monotonic() + 60    # one core is left on each node
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < end: time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 2 and taken.wait(60)
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
    lost = []
    def lose():
        "Kill the large node while both nodes are at a run and a quarter of the runs is done."
        while not lost:
            at, made = len(list((tmp_path/"checkpoints").glob("*.lock"))), len(list((tmp_path/"on_ray").glob("*.json")))
            if at == 2 and made >= runs//4:
                lost.append(made)
                cluster.remove_node(large, allow_graceful=False)
            time.sleep(0.002)
    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    records = sweep(dict(spec, base=own), executor="ray", gpus_per_run=0, root="on_ray", checkpoints="checkpoints",
                    progress=False)
    if not lost: lost.append(runs)
    thread.join()
    assert lost[0] < runs, "the node was lost on the way"
    end = time.monotonic() + 600
    while [n["Alive"] for n in ray.nodes()].count(True) > 1 and time.monotonic() < end: time.sleep(0.1)
    assert ray.cluster_resources()["CPU"] == 1
    expected = sweep(dict(spec, base=own), root="here", checkpoints="checkpoints", threads=1, progress=False)
    assert len(records) == len(expected) == len(grid(dict(spec, base=own))) == runs
    assert [r.status for r in records] == ["done", "done", "done", "failed"]*(runs//4), [r.error for r in records]
    assert [r.same for r in records] == [r.same for r in expected]
    assert len(list(iterate_records(tmp_path/"on_ray"))) == runs and not list((tmp_path/"checkpoints").iterdir())
    assert {path.name for path in tmp_path.iterdir()} <= {"tiny", "train.csv", "validation.csv", "on_ray", "here",
                                                          "checkpoints"}
