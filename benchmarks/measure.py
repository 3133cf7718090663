"""Measuring a corpus against the bare forward passes: token rate and peak memory.

`python benchmarks/measure.py --task stdlib-docs` prints ratios; `--task sst2 --data-dir DATA --record` also stores
them; `--limit 8000` is a quick look. For the rate every batch goes through the model twice, bare and measured, so that
a machine that is busy for a while slows both. Tokenizing is timed once and counts in both, the measures computed at the
end in that of measuring. Peak memory is that of a process that only measures, for corpora of growing size.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import time

from harness import store


def job(kind, task, data_dir, limit):
    "Measure a corpus, for the rate with a bare pass before every batch; tokens, seconds and peak memory."
    import torch

    from istar_nb.text.encoders import load_encoder
    from istar_nb.report.model_measures import measure_model
    from istar_nb.text.features import text_batches
    from istar_nb.text.tasks import load_task
    data = load_task(task, data_dir)
    texts = [tuple(row[c] for c in data.task.texts) for row in data.train[:limit]]
    model, tokenizer = load_encoder("minilm")
    seconds = dict(tokenizing=0., bare=0.)

    def timed(kind, f):
        start = time.perf_counter()
        result = f()
        seconds[kind] += time.perf_counter() - start
        return result

    def batches():
        found = text_batches(texts, tokenizer)
        while batch := timed("tokenizing", lambda: next(found, None)):
            if kind == "rate": timed("bare", lambda: model(**batch) and None)
            yield batch

    with torch.inference_mode(): model(**tokenizer(["the first pass is slow"], return_tensors="pt"))
    start = time.perf_counter()
    tokens = measure_model(model, batches())["1"]["count"]
    seconds["measuring"] = time.perf_counter() - start - sum(seconds.values())
    memory = dict(peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024)) if kind == "memory" else {}
    return dict(kind=kind, texts=len(texts), tokens=tokens,
                seconds={kind: round(value, 2) for kind, value in seconds.items() if value}, **memory)


def apart(*args):
    return json.loads(subprocess.run([sys.executable, __file__, "--job", *map(str, args)], stdout=subprocess.PIPE,
                                     text=True, check=True).stdout.splitlines()[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="stdlib-docs")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--limit", type=int, default=0, help="measure this many texts; 0 for all")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        kind, task, data_dir, limit = args.job
        print(json.dumps(job(kind, task, data_dir or None, int(limit) or None)))
        sys.exit()
    load_before = os.getloadavg()[0]
    rate = apart("rate", args.task, args.data_dir, args.limit)
    sizes = [n for n in (500, 1000, 2000, 4000) if n < rate["texts"]]
    memory = [apart("memory", args.task, args.data_dir, n) for n in (*sizes, args.limit)]
    seconds, few, whole = rate["seconds"], memory[0], memory[-1]
    ratio = (seconds["tokenizing"] + seconds["bare"])/(seconds["tokenizing"] + seconds["measuring"])
    print(f"{whole['texts']:,} texts, {whole['tokens']:,} tokens: {ratio:.3f} of the bare token rate; "
          f"peak memory {whole['peak_mb'] - few['peak_mb']:+,} MB against {few['texts']:,} texts")
    if args.record: store(f"measure-{args.task}", load_before, task=args.task, rate_to_bare=round(ratio, 3),
                          extra_mb=whole["peak_mb"] - few["peak_mb"], rate=rate, memory=memory)
