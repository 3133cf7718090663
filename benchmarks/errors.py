"""What measuring costs beside its forward passes: reading a corpus, and the measures and errors at its end.

`python benchmarks/errors.py` prints one row for each shape of model and number of texts; `--record` stores them.
Weights are drawn, since the time does not depend on them; `--rows` chooses rows by number.
"""
import argparse
import os
import time

import torch
from harness import store
from istar_nb.report.model_measures import measure_model
from istar_nb.text.features import text_batches
from istar_nb.text.encoders import load_encoder
from istar_nb.text.tasks import load_task
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

shapes = {"MiniLM, d = 384": None, "BERT base, d = 768": lambda: BertModel(BertConfig()),
          "24-layer decoder, d = 2,048": lambda: GPT2Model(GPT2Config(
              n_layer=24, n_embd=2048, n_head=16, vocab_size=30522, bos_token_id=101, eos_token_id=102))}
rows = [("MiniLM, d = 384", None), ("BERT base, d = 768", 60), ("BERT base, d = 768", 1000),
        ("24-layer decoder, d = 2,048", 60)]


def cost(shape, texts):
    "Seconds of bare forward passes, of the same passes measured, and of what is computed at the end."
    data = load_task("stdlib-docs")
    texts = [(row[data.task.texts[0]],) for row in data.train[:texts]]
    model, tokenizer = load_encoder("minilm")    # its vocabulary is that of BERT
    torch.manual_seed(0)
    if shapes[shape] is not None: model = shapes[shape]().eval()
    bare, reading = [], []

    def batches():
        for batch in text_batches(texts, tokenizer):
            start = time.perf_counter()
            with torch.inference_mode(): model(**batch)
            bare.append(time.perf_counter() - start)
            yield batch
        reading.append(time.perf_counter())

    with torch.inference_mode(): model(**tokenizer(["the first pass is slow"], return_tensors="pt"))
    start = time.perf_counter()
    found = measure_model(model, batches())
    end = time.perf_counter()
    forward, read, finished = sum(bare), reading[0] - start - sum(bare), end - reading[0]
    return dict(texts=len(texts), tokens=found["1"]["count"], layers=len(found) - 1, bare=round(forward, 1),
                measured=round(read, 1), finishing=round(finished, 1), rate_to_bare=round(forward/(read + finished), 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=range(len(rows)), help="which rows, from 0")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before, found = os.getloadavg()[0], {}
    for shape, texts in (rows[i] for i in args.rows):
        found[f"{shape}, {texts or 'all'} texts"] = row = cost(shape, texts)
        print(f"{shape:28} {row['texts']:>5} texts {row['tokens']:>6} tokens: bare {row['bare']:.1f} s, measured "
              f"{row['measured']:.1f} s, at the end {row['finishing']:.1f} s, {row['rate_to_bare']:.2f} of the rate",
              flush=True)
    if args.record: store("errors", load_before, rows=found)
