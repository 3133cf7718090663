"""Measuring a corpus against the bare forward passes: token rate and peak memory, each in a process of its own.

`python benchmarks/measure.py --task stdlib-docs` prints ratios; `--task sst2 --data-dir DATA --record` also stores them.
"""
import argparse
import json
import resource
import subprocess
import sys
import time
from datetime import date
from pathlib import Path


def job(kind, task, data_dir, limit):
    "Run one of the two passes; tokens, seconds and peak memory."
    import torch
    from istar_nb.encoders import load_encoder
    from istar_nb.reports import measure_model, text_batches
    from istar_nb.tasks import load_task
    data = load_task(task, data_dir)
    texts = [tuple(row[c] for c in data.task.texts) for row in data.train[:limit]]
    model, tokenizer = load_encoder("minilm")
    start, tokens = time.perf_counter(), 0
    if kind == "measure": tokens = measure_model(model, text_batches(texts, tokenizer))["1"]["count"]
    else:
        with torch.inference_mode():
            for batch in text_batches(texts, tokenizer):
                model(**batch)
                tokens += int(batch["attention_mask"].sum())
    return dict(kind=kind, texts=len(texts), tokens=tokens, seconds=round(time.perf_counter()-start, 2),
                peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024))


def apart(*args): return json.loads(subprocess.run([sys.executable, __file__, "--job", *map(str, args)], capture_output=True, text=True, check=True).stdout.splitlines()[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="stdlib-docs")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        kind, task, data_dir, limit = args.job
        print(json.dumps(job(kind, task, data_dir or None, None if limit == "None" else int(limit))))
        sys.exit()
    from istar_nb.runs import environment
    few, bare, whole = (apart(kind, args.task, args.data_dir, limit) for kind, limit in [("measure", 1000), ("bare", None), ("measure", None)])
    rate = (whole["tokens"]/whole["seconds"])/(bare["tokens"]/bare["seconds"])
    record = dict(benchmark="measure", task=args.task, rate_to_bare=round(rate, 3), extra_mb=whole["peak_mb"]-few["peak_mb"], few=few, bare=bare, whole=whole,
                  date=str(date.today()), environment=environment())
    print(f"{whole['texts']:,} texts, {whole['tokens']:,} tokens: {rate:.2f} of the bare token rate; peak memory {record['extra_mb']:+,} MB against {few['texts']:,} texts")
    if args.record:
        path = Path(__file__).resolve().parents[1]/"results"/"benchmarks"/f"measure-{args.task}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
