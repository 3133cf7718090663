"Results that other tools wrote themselves are read as runs."
import json

import numpy as np
import pandas as pd
import pytest
from transformers import TrainerState

import istar_nb as inb
from istar_nb.report.results import read_results
from istar_nb.text.encoders import minilm_folder


def test_a_log_of_the_trainer(tmp_path):
    "The last checkpoint counts, and of its last evaluation the first measure."
    for arm, gain in (("plain", 0), ("mine", 0.02)):
        for seed in range(6):
            for step in (10, 20):
                history = [dict(loss=1., step=s) for s in range(step)]
                history += [dict(eval_loss=0.5, eval_accuracy=0.8 + gain + seed/100 + s/1000, eval_runtime=1., step=s)
                            for s in range(10, step + 1, 10)]
                folder = tmp_path/arm/f"seed-{seed}"/f"checkpoint-{step}"
                folder.mkdir(parents=True)
                TrainerState(log_history=history, global_step=step).save_to_json(folder/"trainer_state.json")
    found = inb.judge(tmp_path, "plain").table.iloc[0]
    assert (found.value, found.seeds, found.verdict) == ("accuracy", 6, "higher")
    np.testing.assert_allclose(found.against, 0.8 + 0.025 + 0.02)


def test_samples_whose_texts_hold_ends_of_lines(tmp_path):
    "lm-evaluation-harness writes U+2028 and U+0085 as they are, which are no ends of lines of its file."
    for arm in ("base", "tuned"):
        (tmp_path/arm).mkdir()
        items = [dict(doc_id=i, doc="one\u2028two\u0085three", metrics=["acc"], acc=float(i % 2)) for i in range(4)]
        text = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        (tmp_path/arm/"samples_toy.jsonl").write_text(text, encoding="utf-8")
    assert len(read_results(tmp_path)) == 8


@pytest.mark.system
def test_an_evaluator_of_sentence_transformers(tmp_path):
    "The file that its evaluator writes, with the score that it returned."
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
    model = st.SentenceTransformer(str(minilm_folder()), device="cpu")
    pairs = ["a cat", "a dog", "the sea"], ["a kitten", "a wolf", "a chair"], [0.9, 0.6, 0.1]
    (folder := tmp_path/"plain-3"/"eval").mkdir(parents=True)
    evaluate = EmbeddingSimilarityEvaluator(*pairs, name="dev", write_csv=True)
    told = [evaluate(model, str(folder), epoch, 10*epoch) for epoch in (1, 2)][-1]
    found = read_results(tmp_path).iloc[0]
    assert (found.arm, found.seed, found.task, found.step) == ("plain", 3, "similarity_evaluation_dev", 20)
    assert found.cosine_spearman == pytest.approx(told["dev_spearman_cosine"])


def test_a_table_of_a_tracker(tmp_path):
    "What `mlflow.search_runs().to_csv` writes, also where MLflow is not installed, and the same from MLflow itself."
    runs = [dict(Name=f"{arm}-{seed}", accuracy=0.8 + gain + seed/100, seed=seed)
            for arm, gain in (("plain", 0), ("mine", 0.02)) for seed in range(6)]
    ours = pd.DataFrame(runs)
    theirs = pd.DataFrame({"run_id": [f"{i:032x}" for i in range(12)], "experiment_id": "1", "status": "FINISHED",
                           "metrics.accuracy": ours.accuracy, "params.lr": "0.0001", "params.seed": ours.seed.map(str),
                           "tags.mlflow.runName": ours.Name})
    ours.assign(State="finished").to_csv(tmp_path/"wandb.csv", index=False)
    theirs.to_csv(tmp_path/"mlflow.csv")
    for given in (tmp_path/"wandb.csv", tmp_path/"mlflow.csv", theirs):
        found = inb.judge(given, "plain", value="accuracy").table.iloc[0]
        assert (found.contrast, found.seeds, found.verdict) == ("mine − plain", 6, "higher"), given
        np.testing.assert_allclose(found.effect, 0.02)


def test_runs_that_mlflow_logged(tmp_path):
    "The table of MLflow's own store, where MLflow is installed."
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    for arm, gain in (("plain", 0), ("mine", 0.02)):
        for seed in range(6):
            with mlflow.start_run(run_name=f"{arm}-{seed}"):
                mlflow.log_params(dict(method=arm, seed=seed))
                mlflow.log_metrics(dict(accuracy=0.8 + gain + seed/100))
    found = inb.judge(mlflow.search_runs(), "plain", value="accuracy").table.iloc[0]
    assert (found.contrast, found.seeds, found.verdict) == ("mine − plain", 6, "higher")
