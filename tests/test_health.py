"Fit for retrieval? The command on files, models and labels, and verdicts that more texts cannot turn."
import json
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from huggingface_hub import ModelCard
from torch import nn

import istar_nb as inb
from istar_nb.app.cli import main
from istar_nb.app.measuring import TextOptions, _table
from istar_nb.embeddings.health import health
from istar_nb.embeddings.reading import sentence_vectors
from istar_nb.text.tasks import load_task

ROWS = load_task("stdlib-docs").train[::20][:120]
TEXTS = [row["sentence"] for row in ROWS]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    "The command in an empty folder: its exit code, and what it says."
    monkeypatch.chdir(tmp_path)

    def carried_out(*words):
        code = 0
        try: main([*words, "--no-progress"])
        except SystemExit as e: code = e.code
        found = capsys.readouterr()
        return code, found.out + found.err
    return carried_out


def clustered(n, seed=0):
    "Vectors of `n` texts in twenty directions that all models of this kind share."
    rng = np.random.default_rng(seed)
    return (np.random.default_rng(7).normal(size=(20, 24))[rng.integers(20, size=n)]
            + 0.8*rng.normal(size=(n, 24))).astype("float32")


def write_tables(vectors):
    "Vectors, pairs of rows with scores, and queries with relevant rows, as files of the working folder."
    unit = vectors/np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save("vectors.npy", vectors)
    pairs = [(i, i + 1, float(unit[i] @ unit[i + 1])) for i in range(0, 80, 2)]
    pd.DataFrame(pairs, columns=["first", "second", "score"]).to_csv("pairs.csv", index=False)
    found = [(i, int((unit[i] @ unit[:120].T - 2*(np.arange(120) == i)).argmax())) for i in range(0, 60, 2)]
    pd.DataFrame(found, columns=["query", "document"]).to_csv("found.csv", index=False)


def test_a_file_of_vectors_is_judged_by_pairs_and_by_relevance(run):
    write_tables(clustered(400))
    code, said = run("health", "vectors.npy", "--pairs", "pairs.csv", "--relevant", "found.csv", "--dims", "12")
    assert code == 0 and "Store int8?" in said and "health/health.html" in said.replace("\\", "/")
    with open("health/health.json", encoding="utf-8") as file: found = json.load(file)
    rows = {row["name"]: row for row in found["variants"]}
    assert rows["as they are"]["spearman"] > 0.999 and rows["as they are"]["recall"] > 0.9
    assert rows["int8"]["bytes"] == 24 and rows["int8"]["agreement"] > 0.999    # what codes stand for
    assert rows["first 12"]["spearman_verdict"] == "worse" and "worse" in found["answers"]["Cut to 12 dimensions?"]
    assert all(set(finding) == {"name", "value", "value_se", "verdict", "note"} for finding in found["findings"])


def test_a_model_is_examined_on_a_table_with_classes_and_pairs(run):
    pd.DataFrame(dict(text=TEXTS, topic=[row["label"] % 2 for row in ROWS])).to_csv("texts.csv", index=False)
    others = [row["sentence"] for row in load_task("stdlib-docs").validation[:40]]
    pd.DataFrame(dict(a=others[::2], b=others[1::2], score=range(20))).to_csv("pairs.csv", index=False)
    words = ["health", "tiny-bert", "texts.csv", "--column", "text", "--label", "topic", "--pairs", "pairs.csv"]
    code, said = run(*words, "--tokens", "mean")
    assert code == 0 and "variance between classes" in said
    assert "20 labelled pairs" in " ".join(said.split()) and "text of texts.csv" in " ".join(said.split())


def test_classes_are_read_from_every_table_that_texts_are(run, tmp_path):
    rows = [dict(text=text, year=row["label"] % 2) for text, row in zip(TEXTS, ROWS)]
    pd.DataFrame(rows[:60]).rename(columns=dict(year="2020")).to_csv("a.csv", index=False)
    pd.DataFrame(rows[60:]).rename(columns=dict(year="2020")).to_csv("b.csv", index=False)
    with open("words.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row | dict(text=row["text"].split())) + "\n" for row in rows)
        file.write(json.dumps(dict(text="This has no class.")))
    for source, label in (("*.csv", "2020"), (f"file://{tmp_path}/*.csv", "2020"), ("words.jsonl", "year")):
        code, said = run("health", "tiny-bert", source, "--column", "text", "--label", label, "--tokens", "mean")
        assert code == 0 and "variance between classes" in said and f"{len(set(TEXTS))} texts" in said, said
    code, said = run("health", "tiny-bert", "a.csv", "--column", "text", "--label", "year")
    assert code == 2 and "has no column 'year'" in said


def test_texts_and_their_classes_come_through_one_pipe(tmp_path):
    os.mkfifo(tmp_path/"pipe.csv")
    content = b"text,topic\nOne.,a\nTwo.,\nThree.,b\n"
    threading.Thread(target=(tmp_path/"pipe.csv").write_bytes, args=[content], daemon=True).start()
    rows, said = TextOptions(str(tmp_path/"pipe.csv"), "text").read("topic")
    assert list(rows) == [("One.", "a"), ("Three.", "b")] and said == "text of pipe.csv"
    (tmp_path/"none.csv").write_bytes(b"text,topic\nOne.,\n")
    with pytest.raises(ValueError, match="no text with a 'topic'"):
        TextOptions(str(tmp_path/"none.csv"), "text").read("topic")


@pytest.mark.parametrize("words, message", [
    ("health", "MODEL is missing"), ("health tiny-bert", "name the texts"),
    ("health vectors.npy texts.txt", "leave out the texts"),
    ("health vectors.npy --pairs nothing.csv", "--pairs"), ("health vectors.npy --pairs texts.txt", "must be a table"),
    ("health vectors.npy --k 0", "--k"),
    ("health vectors.npy --margin 2", "--margin"), ("health vectors.npy --dims 24", "--dims"),
    ("health vectors.npy --tokens cls", "--tokens"),
    ("health tiny-nothing texts.txt", "tiny-nothing"), ("health tiny-bert vectors.npy", "is a file of points"),
    ("health tiny-bert few.txt", "at least 20 different"), ("health wrong.npy", "zero vector"),
    ("health vectors.npy --pairs far.csv", "number of a row")])
def test_what_cannot_be_examined_is_refused_by_name(words, message, run):
    vectors = clustered(60)
    np.save("vectors.npy", vectors)
    np.save("wrong.npy", vectors*(np.arange(60) > 0)[:, None])
    pd.DataFrame([(0, 900, 1.)]*12, columns=["a", "b", "c"]).to_csv("far.csv", index=False)
    for name, texts in (("texts.txt", TEXTS), ("few.txt", TEXTS[:5])):
        with open(name, "w", encoding="utf-8") as file: file.write("\n".join(texts))
    code, said = run(*words.split())
    assert code == 2 and message in said and "Traceback" not in said


def test_no_verdict_is_turned_by_the_number_of_texts():
    "A verdict may become known with more texts. It is never replaced by another one."
    seen = {}
    for n in (64, 512, 4096):
        found = health(clustered(n, seed=n), dims=[12])
        assert found.verdict != "collapsed"
        for finding in found.findings:
            seen.setdefault(finding["name"], []).append(finding["verdict"])
    for name, verdicts in seen.items(): assert len({*verdicts} - {"not known"}) <= 1, (name, verdicts)
    assert seen["collapse, cone"][-1] == "healthy" and seen["evenness of variances"][-1] == "even"


def test_collapsed_vectors_are_said_to_be_and_fail_on_request(run):
    "Moved to a mean cosine of 0.997; an isotropic rest at 0.996; half of the rows copied: all passed before."
    rng = np.random.default_rng(0)
    healthy, away = rng.normal(size=(300, 64)).astype("float32"), np.eye(64, dtype="float32")[0]
    uneven = healthy*np.linspace(3, 0.3, 64, dtype="float32")
    said = {}
    for name, x in dict(healthy=healthy, moved=uneven + 240*away, rest=healthy + 127*away,
                        copied=np.concatenate([healthy[:150], healthy[:150]])).items():
        np.save("vectors.npy", x)
        code, text = run("health", "vectors.npy", "--dims", "16", "--fail-on", "collapsed")
        said[name] = " ".join(text.split())
        assert code == (name != "healthy"), text
        with open("health/health.html", encoding="utf-8") as file:
            assert ("Collapsed (" in file.read()) == (name != "healthy")
    assert said["healthy"].startswith("Healthy") and "cone:" in said["moved"] and "cone:" in said["rest"]
    assert said["copied"].startswith("Collapsed") and "150 pairs of near-duplicates" in said["copied"]


def test_near_duplicates_are_named_as_their_reader_finds_them(tmp_path):
    "Texts by their words, rows of vectors by their numbers; the card is one that the hub's own reader takes."
    found = health("tiny-bert", [*TEXTS, TEXTS[7].upper()], dims=[16])
    named = {text for pair in found.duplicates for text in pair}
    assert named and named <= {*TEXTS, TEXTS[7].upper()} and "counted from 0" not in found.opening()
    x = np.random.default_rng(0).normal(size=(200, 32)).astype("float32")
    x[150] = x[20] + 1e-4
    found = health(x, dims=[16])
    assert found.duplicates == [[20, 150]] and "first row 20 and row 150. Rows are counted from 0." in found.opening()
    card = ModelCard.load(found.save(tmp_path/"card.md"))
    assert "## Geometry of the representations" in card.text and found.sentence in card.text
    values = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert values == {f["name"]: f["value"] for f in found.findings if f["value"] is not None}


def test_the_package_and_its_help_work_without_sentence_transformers_and_its_evaluator_says_what_it_needs():
    code = ("import sys; sys.modules['sentence_transformers'] = None\nimport pydoc, istar_nb as inb\n"
            "pydoc.render_doc(inb)\ntry: inb.IsotropyEvaluator([])\nexcept ImportError as e: print(e)\n"
            "print(inb.health.__name__)")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True).stdout
    assert "needs sentence-transformers: pip install" in said and said.strip().endswith("health")


def test_a_model_is_not_read_in_another_way_where_sentence_transformers_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match="pip install 'istar_nb.sentence-transformers.', or name `tokens`"):
        sentence_vectors("minilm", TEXTS[:2])
    assert sentence_vectors("minilm", TEXTS[:2], "mean").how == "last layer, mean of the tokens"


def test_more_documents_shown_than_there_are_is_an_error():
    found = [(i, i + 1) for i in range(0, 20, 2)]
    assert health(clustered(60), relevant=found, k=9, dims=[12]).variants[0]["recall"] is not None
    with pytest.raises(ValueError, match="`k` is 10, and of 10 documents all"):
        health(clustered(60), relevant=found, dims=[12])


def test_a_query_that_is_also_a_document_does_not_find_itself():
    "Duplicates: each text is to find its copy, and a perfect embedding finds all of them with one document shown."
    half, others = clustered(60), clustered(40, seed=1)
    vectors = np.concatenate([half, half*2, others])    # the cosine of a text and its copy is 1
    found = [(i, (i + 60) % 120) for i in range(120)]
    rows = {row["name"]: row for row in health(vectors, relevant=found, k=1, dims=[4]).variants}
    assert rows["as they are"]["recall"] == 1 and rows["binary"]["recall_verdict"] != "better"
    with pytest.raises(ValueError, match="`k` is 119, and of 119 documents all"):
        health(vectors, relevant=found, k=119, dims=[4])
    with pytest.raises(ValueError, match="`relevant`: number 1 has one text as query and document"):
        health(vectors, relevant=[(0, 60), (3, 3)], k=1)


def test_queries_and_documents_are_read_with_their_prompts(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from istar_nb.text.encoders import load_encoder
    encoder = load_encoder("tiny-bert")
    for part in encoder: part.save_pretrained(tmp_path)
    asks = "Which of these does it ask for, please, and why would that be so: "
    model = SentenceTransformer(str(tmp_path), device="cpu", prompts=dict(query=asks, document="A passage. "))
    queries, documents = ({f"{name}{i}": text for i, text in enumerate(texts)}
                          for name, texts in (("q", TEXTS[:40]), ("d", [text[:-5] for text in TEXTS])))
    expected = InformationRetrievalEvaluator(queries, documents, {f"q{i}": {f"d{i}"} for i in range(40)},
                                             precision_recall_at_k=[5])(model)["cosine_recall@5"]
    found = list(zip(TEXTS[:40], documents.values()))
    def recall(): return health(model, TEXTS, relevant=found, documents=documents.values(), k=5, dims=[8])
    assert recall().variants[0]["recall"] == pytest.approx(expected, abs=0.02) and "prompts" in recall().source
    model.prompts = {}
    assert recall().variants[0]["recall"] > expected + 0.1
    with pytest.raises(ValueError, match="`tokens`"): health(model, TEXTS, tokens="max")
    assert "cls of the tokens" in health(model, TEXTS, tokens="cls", dims=[8]).source


@pytest.mark.parametrize("rows, option", [([("A man.", "A person.", 0.8), ("A cat.", "A dog.", 0.5)], "--pairs"),
                                          ([(3, 4, 0.8), (5, 6, 0.5)], "--pairs"), ([(3, 4), (5, 6)], "--relevant")])
def test_a_file_without_a_header_does_not_lose_its_first_row(rows, option, tmp_path):
    path, size = tmp_path/"pairs.csv", len(rows[0])
    pd.DataFrame(rows).to_csv(path, index=False, header=False)
    with pytest.raises(ValueError, match=f"{option} .*pairs.csv has no header, only the row '{rows[0][0]}'"):
        _table(path, size, option)
    pd.DataFrame(rows, columns=list("abc")[:size]).to_csv(path, index=False)
    assert _table(path, size, option) == rows


def test_a_row_without_a_score_is_named(run):
    np.save("vectors.npy", clustered(60))
    with open("pairs.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(a=i, b=i + 1, score=i)) + "\n" for i in range(12))
        file.write(json.dumps(dict(a=1, b=2)))
    code, said = run("health", "vectors.npy", "--pairs", "pairs.jsonl")
    assert code == 2 and "--pairs: the third part of number 12 must be a number, not None" in said


def test_every_file_of_a_folder_of_pairs_is_read(tmp_path):
    row = pd.DataFrame(dict(a=["x"], b=["y"], c=[1]))
    for name in ("train", "test"): row.to_csv(tmp_path/f"{name}.csv", index=False)
    assert len(_table(tmp_path, 3, "--pairs")) == 2


def test_rows_and_texts_that_are_not_finite_are_named(tmp_path):
    vectors = clustered(60)
    vectors[41, 3] = np.nan
    np.save(tmp_path/"x.npy", vectors)
    for call in (health, inb.measure, lambda x: inb.compare(x, x)):
        with pytest.raises(ValueError, match="row 41"): call(tmp_path/"x.npy")
        with pytest.raises(ValueError, match="row 41"): call(vectors)
    with pytest.raises(ValueError, match="memory") as said: inb.measure(clustered(5000), memory=1e-9)
    assert "`groups`" not in str(said.value)


def test_vectors_that_are_all_equal_have_collapsed(run):
    "Also with labels, pairs and queries, to which nothing can be said."
    np.save("equal.npy", np.ones((200, 24), "float32"))
    write_tables(clustered(200))
    code, said = run("health", "equal.npy", "--pairs", "pairs.csv", "--fail-on", "collapsed")
    assert code == 1 and "Collapsed (total: what differs between texts is 0.00%" in " ".join(said.split())
    found = health(np.ones((60, 24), "float32"), pairs=[(i, i + 1, i) for i in range(20)], labels=[0, 1]*30)
    assert found.verdict == "collapsed" and not found.answers and len(found.variants) == 1


def test_vectors_that_are_nearly_equal_are_ranked():
    x = 1 + 1e-4*torch.randn(200, 24, generator=torch.Generator().manual_seed(0))
    found = health(x, pairs=[(i, i + 1, i) for i in range(50)])
    assert found.verdict == "collapsed" and found.variants[0]["spearman"] is not None


def test_queries_of_another_kind_are_told(run):
    "Queries like the texts, queries about another mean, and texts by their words."
    x = clustered(400)
    alike, gap = clustered(300, seed=1), clustered(300, seed=2) + 12*np.eye(24, dtype="float32")[0]
    said = [{row["name"]: row for row in health(x, queries=q).findings} for q in (alike, gap)]
    far, between = "queries out of distribution, share", "modality gap"
    assert said[0][far]["value"] < 0.05 < 0.5 < said[1][far]["value"] and said[1][far]["verdict"] == "many"
    assert abs(said[0][between]["value"]) < 3*said[0][between]["value_se"] and said[1][between]["value"] > 0.05
    alone = health(x)
    with_them = health(x, queries=alike)
    assert alone.variants == with_them.variants and alone.sentence == with_them.sentence
    np.save("vectors.npy", x)
    np.save("queries.npy", gap)
    assert "modality gap" in run("health", "vectors.npy", "--queries", "queries.npy")[1]
    with pytest.raises(ValueError, match="`queries` must have 24 columns, not 8"): health(x, queries=gap[:, :8])
    found = health("tiny-bert", TEXTS[:60], queries=TEXTS[60:90])
    assert "60 texts" in found.source and any(row["name"] == between for row in found.findings)


def test_rows_have_classes_beside_queries():
    x, classes = clustered(60), [0, 1]*30
    def share(**more):
        found = health(x, labels=classes, dims=[12], **more)
        return next(row for row in found.findings if "classes" in row["name"])
    assert share(queries=clustered(9, seed=1)) == share()


def test_variants_of_tiny_vectors_are_those_of_larger_ones():
    x = clustered(60)
    found, tiny = (health(torch.from_numpy(x)*scale, dims=[4]).frame().agreement for scale in (1., 1e-30))
    assert tiny.tolist()[1:] == pytest.approx(found.tolist()[1:], abs=1e-3)


def test_one_class_is_refused_by_the_name_of_its_argument():
    with pytest.raises(ValueError, match="`labels` must have at least two different classes, and all are 'a'"):
        health(clustered(60), labels=["a"]*60)
    with pytest.raises(ValueError, match="`labels` must give two texts the same class, and all 60 differ"):
        health(clustered(60), labels=range(60))


@pytest.mark.system
def test_the_alarm_stops_the_trainer_of_sentence_transformers(tmp_path):
    "A loss that pulls all texts to one direction is stopped early; one that leaves them alone is not."
    st = pytest.importorskip("sentence_transformers")
    from datasets import Dataset
    from istar_nb.text.encoders import minilm_folder, quiet
    rows = Dataset.from_list([dict(sentence1=a, sentence2=b, score=1.) for a, b in zip(TEXTS[:48], TEXTS[48:96])])

    class Pull(torch.nn.Module):
        def __init__(self, model, strength):
            super().__init__()
            self.model, self.strength = model, strength

        def forward(self, features, labels):
            a, b = (torch.nn.functional.normalize(self.model(part)["sentence_embedding"]) for part in features)
            return self.strength*(1 - a @ b.T).mean()

    def trained(strength):
        with quiet():
            model = st.SentenceTransformer(str(minilm_folder()), device="cpu")
        model[0].auto_model.encoder.layer = model[0].auto_model.encoder.layer[:2]
        alarm = inb.CollapseAlarm(every=2, stop=True)
        args = st.SentenceTransformerTrainingArguments(
            tmp_path, max_steps=8, per_device_train_batch_size=12, learning_rate=1e-3 if strength else 0., seed=0,
            save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
        trainer = st.SentenceTransformerTrainer(model, args, train_dataset=rows, loss=Pull(model, strength),
                                                callbacks=[alarm])
        trainer.train()
        return trainer.state.global_step, alarm

    with pytest.warns(UserWarning, match="step "):
        steps, alarm = trained(1.)
    assert steps < 8 and alarm.stopping
    steps, alarm = trained(0.)
    assert steps == 8 and not alarm.said


class _Blocks(nn.Module):
    "Two equal blocks, and an `encode` as many models have one that are none of sentence-transformers."
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))
    def encode(self, x): return self.body(x)
    def forward(self, x): return self.body(x)


def test_an_alarm_sees_a_model_with_an_encode_of_its_own_and_refuses_one_without_blocks():
    alarm, model = inb.CollapseAlarm(every=1), _Blocks()
    with alarm.attach(model):
        model(torch.randn(32, 8, generator=torch.Generator().manual_seed(0)))
        assert alarm.step() is not None
    with pytest.raises(ValueError, match="`layer` is None, and Linear has no list of repeated blocks"):
        alarm.attach(nn.Linear(8, 8))


def test_an_alarm_sees_a_compiled_model_of_sentences():
    "It is compiled and called before, so that the hook is a reason to compile it anew."
    class Sentences(nn.Linear):
        encode = similarity = None
        def forward(self, x): return dict(sentence_embedding=super().forward(x).tanh())

    torch._dynamo.reset()
    model, x = Sentences(64, 64), torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    model.compile(backend="eager")
    model(x)
    with inb.CollapseAlarm(every=1).attach(model) as alarm:
        model(x)
        assert alarm.step().kinds == dict.fromkeys(("total", "cone", "dimensional"), "healthy")
    torch._dynamo.reset()


def test_an_alarm_leaves_no_hook_behind_after_an_error_in_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self): super().__init__(); self.inner = _Blocks()
        def training_step(self, batch, i): raise RuntimeError("a bad batch")
        def configure_optimizers(self): return torch.optim.Adam(self.parameters())

    module = Module()
    trainer = lightning.Trainer(max_epochs=1, callbacks=[inb.CollapseAlarm()], logger=False, enable_checkpointing=False,
                                accelerator="cpu", default_root_dir=tmp_path, enable_progress_bar=False,
                                enable_model_summary=False)
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="a bad batch"):
        warnings.simplefilter("ignore")
        trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(4, 8)))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
