"MPNet from its five packages, where they are installed."
import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr

from istar_nb.text.encoders import load_encoder
from istar_nb.report.isotropy import measure
from istar_nb.text.encoders import join_parts, mpnet_files, mpnet_parts
from istar_nb.training.runs import RunConfig
from istar_nb.text.tasks import load_task
from istar_nb.training.training import train


def installed(name):
    try: return bool(distribution(name))
    except PackageNotFoundError: return False


wanted = pytest.mark.skipif(not all(map(installed, mpnet_parts)), reason="the five packages of mpnet are not installed")
labelled = pytest.mark.skipif(not os.environ.get("ISTAR_DATA"), reason="ISTAR_DATA names no folder with STS-B")


@pytest.fixture(scope="module")
def mpnet(): return load_encoder("mpnet")


@wanted
def test_the_encoder_has_the_size_of_bert_base(mpnet):
    model, tokenizer = mpnet
    assert (model.config.num_hidden_layers, model.config.hidden_size, model.config.model_type) == (12, 768, "mpnet")
    assert tokenizer.padding_side == "right" and tokenizer("a b")["input_ids"][0] == tokenizer.cls_token_id


@wanted
@labelled
def test_its_sentence_embeddings_agree_with_people(mpnet):
    "Cosines of mean-pooled states of 150 pairs of STS-B: what one knows of this model is a rank correlation near 0.88."
    model, tokenizer = mpnet
    rows = load_task("stsb").validation[::10]
    def embedded(texts):
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad(): states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        return (states*mask).sum(1)/mask.sum(1)
    def column(name): return torch.cat([embedded([r[name] for r in rows[i:i+50]]) for i in range(0, len(rows), 50)])
    cosines = torch.nn.functional.cosine_similarity(column("sentence1"), column("sentence2"))
    assert spearmanr(cosines.numpy(), [r["label"] for r in rows]).statistic > 0.85


@wanted
def test_it_is_measured_and_trained_like_any_other(tmp_path):
    texts = [f"sentence number {i} is about {'nothing' * (i % 3)}" for i in range(12)]
    found = measure("mpnet", texts[:8]).measures["mpnet"]
    assert len(found) == 14 and found["pooled"]["isoscore"] > 0
    (tmp_path/"own.csv").write_text("text,label\n" + "".join(f"{text},{'ab'[i % 2]}\n" for i, text in enumerate(texts)),
                                    encoding="utf-8")
    config = RunConfig(train=str(tmp_path/"own.csv"), text="text", label="label", model="mpnet", epochs=1, batch_size=4,
                       method="istar-own-means", lam=-5, batches="random", reference_points=500)
    record = train(config, tmp_path/"runs", progress=False)
    assert record.status == "done" and record.data["model_sha256"]


def test_parts_that_are_cut_short_are_no_archive(tmp_path):
    (tmp_path/"a.zip.001").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match="no whole zip archive"):
        join_parts([tmp_path/"a.zip.001"], mpnet_files, Path(tmp_path)/"model")
    assert not (tmp_path/"model").exists()
