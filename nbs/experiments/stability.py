"""Make the records that 00_stability reads: `python stability.py figure2 [name ...]`, all of them by default.

A finished record is left alone, and one that was cut short goes on. Names: figure2; figure2-700; power-half,
power-one, power-three-halves; stale; tokens and sentences (token states of MiniLM); coverage-half, coverage-one.
"""
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from istar_nb.base.covariance import covariance
from istar_nb.text.encoders import hidden_states, load_encoder
from istar_nb.geometry.scores import isoscore, isoscore_from_cov, isoscore_unbiased
from istar_nb.training.records import environment
from istar_nb.study.stability import COVERAGE, MINILM, REAL, SYNTHETIC, Cloud, round_to, run_coverage, run_stability
from istar_nb.text.features import Collator, encode
from istar_nb.text.tasks import load_task

root = Path(__file__).resolve().parents[2]/"results"/"stability"


@torch.inference_mode()
def token_states(model, layer, task):
    "States of all tokens of a task's sentences in one layer, their sentence numbers, and the data's hash."
    data, encoder = load_task(task), load_encoder(model)
    features = encode(data.train + data.validation, data.task, encoder.tokenizer)
    order = sorted(range(len(features)), key=lambda i: len(features[i]["input_ids"]))
    states, collate = [None]*len(features), Collator(encoder.tokenizer)
    for start in range(0, len(order), 64):
        chosen = order[start:start+64]
        batch = collate([features[i] for i in chosen])
        batch.pop("labels")
        layers = hidden_states(encoder.model, batch)
        for i, points in zip(chosen, layers.points(layer).split(layers.mask.sum(1).tolist())): states[i] = points
    sentences = torch.arange(len(states)).repeat_interleave(torch.tensor([len(s) for s in states]))
    return torch.cat(states), sentences, data


def activation_cloud(config):
    "Token states as a cloud. S is all tokens of randomly chosen sentences; the truth is the plug-in score of all."
    assert config.cloud == MINILM
    points, sentences, data = token_states("minilm", 6, "stdlib-docs")
    total = torch.bincount(sentences)
    shuffled = torch.randperm(len(total), generator=torch.Generator().manual_seed(config.seed))
    inside = torch.zeros(len(total), dtype=torch.bool)
    inside[shuffled[total[shuffled].cumsum(0) <= config.reference]] = True
    in_S = inside[sentences]
    reference, cov = covariance(points[in_S]), covariance(points)
    scores = {"all points, plug-in": isoscore(points), "all points, unbiased": isoscore_unbiased(points),
              "all points, sentence-aware": isoscore_unbiased(points, sentences),
              "reference": isoscore_from_cov(reference)}
    facts = {name: score.item() for name, score in scores.items()}
    facts |= dict(points=len(points), sentences=len(total), reference_points=int(in_S.sum()), data_sha256=data.sha256,
                  data_note=data.note,
                  eigenvalues=[round_to(v, 4) for v in torch.linalg.eigvalsh(cov.double()).flip(0).tolist()])
    return Cloud(points[~in_S], reference, facts["all points, plug-in"], facts, sentences[~in_S])


if __name__ == "__main__":
    every = {**SYNTHETIC, **REAL, **COVERAGE}
    names = sys.argv[1:] or list(every)
    if unknown := [name for name in names if name not in every]:
        sys.exit(f"no such record: {', '.join(unknown)}; there are {', '.join(every)}")
    here = environment()
    here["versions"]["scikit-learn"] = version("scikit-learn")
    for name in names:
        if name in COVERAGE: run_coverage(every[name], root, here)
        elif name in REAL: run_stability(every[name], root, activation_cloud, here)
        else: run_stability(every[name], root, environment=here)
        print(f"{(root/name).relative_to(root.parents[1])}.json", flush=True)
