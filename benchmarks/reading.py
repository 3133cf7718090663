"""What MiniLM, MPNet and a random BERT are measured to be on 300 docstrings: the landmarks of `istar measure`.

    python benchmarks/reading.py --record    # MPNet needs its five packages
"""
import os
import sys

import torch
from harness import store
from transformers import BertConfig, BertModel

import istar_nb as inb
from istar_nb.app.measuring import spread_rows
from istar_nb.report.reports import READING
from istar_nb.text.encoders import load_encoder
from istar_nb.text.tasks import load_task


def random_bert():
    "BERT-base as it is before training, with the tokenizer of MiniLM."
    tokenizer = load_encoder("minilm").tokenizer
    torch.manual_seed(0)
    return BertModel(BertConfig(vocab_size=tokenizer.vocab_size)).eval(), tokenizer


def ends(model):
    "Measure -> its lowest and highest value of layers 1…L."
    texts = [row["sentence"] for row in spread_rows(load_task("stdlib-docs").train, 300)]
    [layers] = inb.measure(model, texts).measures.values()
    layers = [summary for layer, summary in layers.items() if layer not in ("0", "pooled")]
    values = {name: [summary[name] for summary in layers] for name in READING}
    return {name: (min(each), max(each)) for name, each in values.items()}


if __name__ == "__main__":
    load_before, ranges = os.getloadavg()[0], {}
    for name, model in (("MiniLM", "minilm"), ("MPNet", "mpnet"), ("random BERT", random_bert())):
        ranges[name] = ends(model)
        print(name, ranges[name], flush=True)
    if "--record" in sys.argv: store("reading", load_before, ranges=ranges)
