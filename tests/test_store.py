"One store, many writers: eight processes at once, on disk and on a local S3 server (given s3fs and moto)."
import json
import sys
import threading
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import pytest

from istar_nb.report.figures import comparison_figure
from istar_nb.report.judging import judge, read_runs
from istar_nb.base.files import open_root
from istar_nb.sweeps.grids import compare_stores, load_records
from istar_nb.training import records
from istar_nb.training.records import (RunRecord, find_record, iterate_records, pack_records, packed_file, record_json,
                                       record_texts, save_record)
from istar_nb.app.explorers import compact_runs
from istar_nb.study.pretrain_runs import PretrainRecord
from istar_nb.training.runs import RunConfig, schema
from processes import FORKED, Process

writers, own, shared = 8, 15, 10


def record_of(seed, writer):
    "A record of some length, in which every line says who wrote it."
    config = RunConfig(seed=seed)
    steps = [dict(update=i, task_loss=float(writer)) for i in range(300)]
    return RunRecord(asdict(config), config.id, "done", "matthews", float(writer), [dict(epoch=0, score=float(writer))],
                     steps, seconds=float(writer))


def write(root, writer, barrier, read):
    "Records that nobody else writes, and between them ones that all do, over and over; half of them once one is read."
    barrier.wait()
    for i in range(own):
        if i == own//2: read.wait(600)
        save_record(record_of(1000*(writer+1) + i, writer), root)
        save_record(record_of(i % shared, writer), root)


def check_whole(record):
    "Everything in a record is from one writer."
    assert ({record.score, record.seconds, *(s["task_loss"] for s in record.steps)} == {record.score}
            and len(record.steps) == 300)


def written_by_eight(root):
    "Let eight processes write while this one reads; how many records it read meanwhile."
    barrier, read, seen = FORKED.Barrier(writers), FORKED.Event(), 0
    processes = [Process(write, root, w, barrier, read) for w in range(writers)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")                # a torn record would be skipped with a warning
        while any(p.code is None for p in processes):
            for record in iterate_records(root):
                check_whole(record)
                read.set()
                seen += 1
        records = {r.id: r for r in iterate_records(root)}
    assert [p.code for p in processes] == [0]*writers, [p.said for p in processes]
    for record in records.values(): check_whole(record)
    assert set(records) == {RunConfig(seed=1000*(w+1) + i).id for w in range(writers)
                            for i in range(own)} | {RunConfig(seed=i).id for i in range(shared)}
    fs, folder = open_root(root)
    assert len(fs.ls(folder, detail=False)) == len(records), "no temporary file is left"
    return seen


def test_a_store_in_s3_names_the_extra_that_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ImportError, match=r"^s3://bucket/runs: .*pip install 'istar_nb\[s3\]'$"): open_root("s3://bucket/runs")


def test_eight_writers(tmp_path): assert written_by_eight(str(tmp_path/"store")) > 0


@pytest.fixture
def bucket(monkeypatch):
    "An empty bucket on a server of this machine."
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in dict(AWS_ENDPOINT_URL=f"http://{host}:{port}", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b",
                            AWS_DEFAULT_REGION="us-east-1").items():
        monkeypatch.setenv(name, value)
    import s3fs
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"isotropy-{uuid4().hex}"
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/runs"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_eight_writers_on_s3(bucket): assert written_by_eight(bucket) > 0


def test_a_sweep_on_s3(bucket, tmp_path):
    from istar_nb.sweeps.sweeps import sweep
    spec = dict(base=dict(model="tiny-bert", epochs=1, limit=64, batch_size=16, max_length=16), seeds=[0],
                runs=[dict(method="none"), dict(method="istar", lam=1, reference_points=500)])
    assert load_records(bucket).empty and find_record(bucket, "0"*16) is None
    first = sweep(spec, root=bucket, progress=False, checkpoints=tmp_path)
    assert ([r.status for r in first] == ["done"]*2
            and sweep(spec, root=bucket, progress=False, checkpoints=tmp_path) == first)
    assert load_records(bucket).method.tolist() == [r.config["method"] for r in sorted(first, key=lambda r: r.id)]
    other = replace(first[0], seconds=1.)
    process = Process(save_record, record_of(5, 0), bucket)   # another machine
    said = process.wait()
    assert process.code == 0, said
    assert find_record(bucket, RunConfig(seed=5).id) is not None and len(load_records(bucket)) == 3
    save_record(other, bucket)
    assert find_record(bucket, other.id).seconds == 1.


def finished(isoscore, layers, **options):
    "A record of a run whose last evaluation found these scores."
    config = RunConfig(**options).complete
    last = dict(epoch=1, score=0.5, isoscore=isoscore, isoscore_layers=layers)
    return RunRecord(asdict(config), config.id, "done", "accuracy", 0.5, [last])


def test_a_run_with_a_layer_without_variance_does_not_hide_the_others(tmp_path):
    save_record(finished(0.2, [0.1, 0.2, 0.3], method="none"), tmp_path)
    save_record(finished(None, [0.1, None, 0.1], method="istar", lam=-1.), tmp_path)
    runs = compact_runs(tmp_path)
    assert sorted(runs["isoscore"], key=str) == [0.2, None] and [0.1, None, 0.1] in runs["layers"]


@pytest.mark.parametrize("options", ([], [dict(method="none")]))
def test_a_store_without_a_method_says_so(options, tmp_path):
    for each in options: save_record(finished(0.2, [0.1, 0.2, 0.3], **each), tmp_path)
    with pytest.raises(ValueError, match="finished run with a method"): compact_runs(tmp_path)


def test_a_record_of_a_later_schema_is_named_as_such():
    text = json.dumps(json.loads(finished(0.2, [0.1], method="none").to_json()) | dict(schema=schema + 1, new_field=3))
    with pytest.raises(ValueError, match=f"has schema {schema + 1}, and {schema} is read"): RunRecord.from_json(text)


def test_a_figure_of_one_seed_refuses_two():
    two = [finished(0.2, [0.1, 0.2, 0.3], method="none", seed=seed) for seed in (0, 1)]
    with pytest.raises(ValueError, match="2 runs and only 1 name"): comparison_figure(two)


@pytest.mark.parametrize("name", ["a{1}", "a[1]*?", "a::b", "a%20b #1"])
def test_a_store_may_have_any_name(name, tmp_path, monkeypatch, capsys):
    from istar_nb.app.cli import main
    monkeypatch.chdir(tmp_path)
    record = finished(0.2, [0.1, 0.2, 0.3], method="none")
    save_record(record, name)
    assert [file.name for file in (tmp_path/name).iterdir()] == [f"{record.id}.json"]
    for more in ([], ["--against", name]):
        main(["runs", name, *more])
        assert name in capsys.readouterr().out
    assert find_record(name, record.id) == record


def test_where_finds_what_is_not_set(tmp_path, capsys):
    from istar_nb.app.cli import main
    for more in (dict(), dict(limit=64)): save_record(finished(0.2, [0.1], **more), tmp_path)
    for value in ("None", "64"):
        main(["runs", str(tmp_path), "--where", f"limit={value}"])
        assert "1 rows of" in capsys.readouterr().out


def test_a_damaged_record_is_named_by_its_file(tmp_path):
    record = finished(0.2, [0.1], method="none")
    path = save_record(record, tmp_path)
    for text in (record.to_json()[:200], "[]", "{}", '{"schema": 1}'):
        (tmp_path/f"{record.id}.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=f"{record.id}.json is no record: "): find_record(tmp_path, record.id)
        with pytest.warns(UserWarning, match=f"{record.id}.json is skipped: "): found = list(iterate_records(tmp_path))
        assert not found
    assert path == str(tmp_path/f"{record.id}.json")


def test_a_finished_record_without_epochs_hides_no_other(tmp_path):
    whole = [finished(0.2, [0.1, 0.2, 0.3], method="istar", lam=1.), finished(0.2, [0.1, 0.2, 0.3])]
    for record in (*whole, replace(finished(0.2, [0.1], seed=1), epochs=[])): save_record(record, tmp_path)
    assert len(compact_runs(tmp_path)["seed"]) == 2


# Judgements ----------------------------------------------------------------------------------------------------------

def scored(root, gain=0., seeds=range(6), **options):
    "Save runs of one arm whose scores are a gain above what the seed gives."
    for seed in seeds:
        config = RunConfig(seed=seed, model="tiny-bert", **options).complete
        score = 0.5 + seed/100 + gain*(1 + seed/100)
        save_record(RunRecord(asdict(config), config.id, "done", "accuracy", score, [dict(epoch=1, score=score)],
                              data=dict(sha256="a"*64)), root)


def test_runs_of_a_selection_are_no_arms(tmp_path):
    scored(tmp_path)
    scored(tmp_path, 0.1, method="istar", lam=1.)
    before = judge(tmp_path, "none")
    scored(tmp_path, 0.3, hold_out=0.1)
    scored(tmp_path, 0.2, seeds=[0], hold_out=0.1, method="istar", lam=0.3)
    after = judge(tmp_path, "none")
    assert after.table.equals(before.table) and after.table.p_holm.tolist() == [2/2**6]
    assert "7 runs measured on held-out training rows left out" in after.note and "left out" not in before.note


def test_runs_measured_on_other_rows_are_not_compared(tmp_path):
    scored(tmp_path)
    scored(tmp_path, 0.1, method="istar", lam=1., validation_limit=50)
    [row] = judge(tmp_path, "none").table.to_dict("records")
    assert (row["measured on"], row["seeds"], row["lacking"]) == ("validation_limit=50", 0, "6x baseline missing")
    scored(tmp_path, validation_limit=50)
    assert judge(tmp_path, "none").table.verdict.tolist() == ["higher"]


def test_rows_that_are_held_out_depend_on_the_limit(tmp_path):
    scored(tmp_path, hold_out=0.1)
    scored(tmp_path, 0.1, hold_out=0.1, limit=100, method="cosreg")
    [row] = judge(tmp_path, "none").table.to_dict("records")
    assert row["seeds"] == 0 and row["measured on"] == "hold_out=0.1 limit=100"


@pytest.mark.parametrize("options, arm", [
    (dict(max_length=64), "istar lam=1 max_length=64"), (dict(limit=1234567), "istar lam=1 limit=1234567"),
    (dict(tokens="cls"), "istar lam=1 tokens=cls"), (dict(layers=(1, 2)), "istar lam=1 layers=[1, 2]"),
    (dict(reference_points=9), "istar lam=1 reference_points=9"),
    (dict(whole_update=True), "istar lam=1 whole_update=True")])
def test_an_option_of_one_arm_is_not_told_of_the_others(options, arm, tmp_path):
    scored(tmp_path)
    scored(tmp_path, 0.1, method="istar", lam=1., **options)
    scored(tmp_path, method="isolayer")
    assert set(read_runs(tmp_path).arm) == {"none", "isolayer", arm}
    load_records(tmp_path).to_csv(tmp_path/"runs.csv", index=False)
    assert set(read_runs(tmp_path/"runs.csv").arm) == {"none", "isolayer", arm}
    assert judge(tmp_path, "none").markdown() == judge(tmp_path/"runs.csv", "none").markdown()


def test_every_committed_record_is_read_under_its_id():
    "Also those that were written when a run had other fields: `from_json` computes each id anew."
    results = Path(__file__).resolve().parents[1]/"results"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kinds = dict(runs=RunRecord, rerun=RunRecord, demo=RunRecord, pretrained=PretrainRecord)
        read = {folder: [r.id for r in iterate_records(results/folder, kind)] for folder, kind in kinds.items()}
    for folder, ids in read.items():
        assert ids == [name for name, _ in record_texts(results/folder)] == sorted({*ids})
    assert len(read["runs"]) > 1600 and min(map(len, read.values())) > 2


def test_committed_records_are_packed_as_they_were_written(tmp_path):
    "Rows come back as the JSON that runs write, and packing these files again gives the committed bytes."
    rerun = Path(__file__).resolve().parents[1]/"results"/"rerun"
    texts = dict(record_texts(rerun))
    for name, text in texts.items(): (tmp_path/f"{name}.json").write_text(text, encoding="utf-8")
    records = list(iterate_records(rerun))
    for r in records:
        written = json.loads(texts[r.id])
        assert written == json.loads(r.to_json()) | dict(config=written["config"])
    assert pack_records(tmp_path) == len(records) and [path.name for path in tmp_path.iterdir()] == [packed_file]
    assert dict(record_texts(tmp_path)) == texts and compare_stores(tmp_path, rerun).equal.all()


def test_a_store_holds_files_and_a_packed_file(tmp_path):
    "A run that was made again is read from its file; records with other fields are packed too, an edited one is left."
    first, second = (RunRecord(asdict(c.complete), c.id, "done", score=score)
                     for c, score in ((RunConfig(), 0.1 + 0.2), (RunConfig(seed=1), None)))
    for record in (first, second): save_record(record, tmp_path)
    assert pack_records(tmp_path) == 2 and list(iterate_records(tmp_path, ids=[first.id])) == [first]
    assert load_records(tmp_path, ids=[]).empty
    again = replace(first, score=0.7)
    save_record(again, tmp_path)
    assert find_record(tmp_path, first.id) == again and list(iterate_records(tmp_path, ids=[second.id])) == [second]
    assert load_records(tmp_path).set_index("id").score[first.id] == 0.7
    assert pack_records(tmp_path) == 2 and find_record(tmp_path, first.id) == again
    assert pack_records(tmp_path/"none") == 0
    older = json.loads(find_record(tmp_path, second.id).to_json())
    third = RunConfig(seed=2)
    lines = RunRecord(asdict(third.complete), third.id, "done").to_json().replace(' "error": "",\n', "")
    (tmp_path/f"{third.id}.json").write_text(lines, encoding="utf-8")
    fourth = RunConfig(seed=3)
    edited = tmp_path/f"{fourth.id}.json"
    edited.write_text(json.dumps(older | dict(id=fourth.id, config=asdict(fourth.complete))), encoding="utf-8")
    with pytest.warns(UserWarning, match=f"{fourth.id}.json stays as it is"): assert pack_records(tmp_path) == 3
    assert record_json(tmp_path, third.id) == lines and edited.exists()
    assert len(list(iterate_records(tmp_path))) == 4


def test_files_that_look_like_records_are_not_packed(tmp_path):
    save_record(finished(0.2, [0.1]), tmp_path)
    for name in ("odd", "0123456789abcdef"):
        (tmp_path/f"{name}.json").write_text(f'{{"x": 1,\n "id": "{name}"}}\n', encoding="utf-8")
    with pytest.warns(UserWarning, match="stays as it is"): assert pack_records(tmp_path) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"odd.json", "0123456789abcdef.json", packed_file}


def test_two_packs_at_once_lose_nothing(tmp_path, monkeypatch):
    "Another run ends, and another pack begins, when the first has read the store."
    runs, write = [finished(0.2, [0.1], seed=seed) for seed in range(2)], records.write_whole
    save_record(runs[0], tmp_path)
    other = threading.Thread(target=pack_records, args=[tmp_path])
    def meanwhile(fs, path, content):
        monkeypatch.setattr(records, "write_whole", write)
        save_record(runs[1], tmp_path)
        other.start()
        other.join(0.5)
        write(fs, path, content)
    monkeypatch.setattr(records, "write_whole", meanwhile)
    assert pack_records(tmp_path) == 1
    other.join()
    assert set(record_texts(tmp_path)) == {(run.id, run.to_json()) for run in runs}
    assert [path.name for path in tmp_path.iterdir()] == [packed_file]


def test_a_record_that_is_packed_while_others_are_read_is_read_too(tmp_path):
    runs = [finished(0.2, [0.1], seed=seed) for seed in range(2)]
    for run in runs: save_record(run, tmp_path)
    reading = record_texts(tmp_path)
    first, _ = next(reading)
    pack_records(tmp_path)
    assert {first, *(name for name, _ in reading)} == {run.id for run in runs}


def test_a_pack_that_is_cut_short_is_named(tmp_path):
    save_record(finished(0.2, [0.1]), tmp_path)
    pack_records(tmp_path)
    (tmp_path/packed_file).write_bytes((tmp_path/packed_file).read_bytes()[:50])
    with pytest.raises(ValueError, match="packed.parquet holds no packed records"): load_records(tmp_path)
