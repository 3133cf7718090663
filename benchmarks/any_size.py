"""The same vectors and texts by one process, by three, from shards in another order and by Ray; peak memory by width,
with sums of all dimensions and folded; and what is kept of a wide decoder, whose weights are random.

`python benchmarks/any_size.py --record` takes some minutes. Digits are compared as they are, without rounding.
"""
import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import istar_nb as inb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from harness import root, store
from rows import spent

from istar_nb.geometry.halves import cloud_of, unbiased_of
from istar_nb.report.model_measures import Measurement, take_in_layer
from istar_nb.text.encoders import hidden_states, load_encoder
from istar_nb.text.features import Numbering, text_batches
from istar_nb.text.tasks import load_task

shown = ("isoscore", "isoscore_se", "isoscore_unbiased", "mean_cosine", "effective_rank_centred", "two_nn")
WIDE = """
import sys, torch, istar_nb as inb
x = torch.randn(12_000, int(sys.argv[1]), generator=torch.Generator().manual_seed(0))
if len(sys.argv) > 2: inb.measure(x, memory=float(sys.argv[2]))
"""
small = 0.017    # GB, which sums of 1,024 dimensions need


def written(folder, x):
    "The rows in one file, and numbered in shards whose names are in another order."
    np.save(folder/"x.npy", x.numpy())
    (folder/"shards").mkdir()
    shards = torch.arange(len(x)).tensor_split(100)
    for i, rows in zip(torch.randperm(100, generator=torch.Generator().manual_seed(1)).tolist(), shards):
        table = pa.table(dict(number=rows.numpy(), vector=list(x[rows].numpy())))
        parquet.write_table(table, folder/"shards"/f"{i:03}.parquet")


def by_ray(folder, texts):
    "Vectors and texts, measured by Ray Data on two nodes of this machine."
    import ray
    from ray.cluster_utils import Cluster
    cluster = Cluster()
    for _ in range(2): cluster.add_node(num_cpus=1, object_store_memory=200*2**20, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False)
    rows = ray.data.from_items([dict(number=i, text=text) for i, text in enumerate(texts)], override_num_blocks=8)
    found = (inb.measure(ray.data.read_parquet(str(folder/"shards")), column="vector", ids="number"),
             inb.measure("minilm", rows, tokens="mean", column="text", ids="number"))
    ray.shutdown()
    cluster.shutdown()
    return found


def decoder(layers, d=4096, every=33):
    "What is kept of a layer of a decoder if 33 of them share 2 GB, and its score beside that of all dimensions."
    from transformers import LlamaConfig, LlamaModel
    torch.manual_seed(0)
    tokenizer = load_encoder("tiny-gpt2").tokenizer
    config = LlamaConfig(hidden_size=d, num_hidden_layers=layers, num_attention_heads=32, intermediate_size=d,
                         vocab_size=len(tokenizer))
    model, folded, whole = LlamaModel(config).eval(), Measurement(memory=2/(every + 3)), Measurement(memory=8)
    for batch in text_batches([(text,) for text in sentences(450)], Numbering(tokenizer), 2048, 64):
        numbers = batch.pop("text_numbers")
        with torch.no_grad(): states = hidden_states(model, batch)
        states = replace(states, layers=[x if x is None else x.bfloat16() for x in states.layers])
        for m in (folded, whole): take_in_layer(m, states, layers, "real", numbers)
    exact = unbiased_of(cloud_of(whole.halves))
    scores = dict(all_dimensions={"isoscore_unbiased": exact[0].item(), "isoscore_unbiased_se": exact[1].item()})
    scores["folded"] = {name: folded.summary()[name] for name in scores["all_dimensions"]}
    kept = dict(all_dimensions=2*(d + 4)*(d + 1)*8, folded=folded.halves.sums.nbytes + folded.halves.lines.nbytes)
    return dict(d=d, layers=layers, tokens=folded.count, sums_mb={way: size/1e6 for way, size in kept.items()},
                sums_of_33_gb={way: size*every/1e9 for way, size in kept.items()}, scores=scores,
                sample_mb=folded.halves.points.nbytes/1e6, two_nn_mb=folded.sample.points.nbytes/1e6)


def sentences(count): return [row["sentence"] for row in load_task("stdlib-docs").train[:count]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    parser.add_argument("--ray", action="store_true", help="by Ray as well")
    parser.add_argument("--layers", type=int, default=2, help="of the decoder; 0 leaves it out")
    args, load_before = parser.parse_args(), os.getloadavg()[0]
    torch.set_num_threads(1)
    x = torch.randn(args.rows, 384, generator=torch.Generator().manual_seed(0))*torch.linspace(2, 0.3, 384) + 0.5
    texts, options = sentences(args.texts), dict(tokens="mean")
    read = {"one process": inb.measure("minilm", texts, processes=1, **options),
            "three processes, an iterator": inb.measure("minilm", iter(texts), processes=3, **options)}
    with tempfile.TemporaryDirectory() as folder:
        written(folder := Path(folder), x)
        numbered = dict(column="vector", ids="number")
        routes = {"one process": inb.measure(x), "three processes": inb.measure(folder/"x.npy", processes=3),
                  "shards in another order": inb.measure(folder/"shards", **numbered),
                  "such shards, three processes": inb.measure(folder/"shards", processes=3, **numbered)}
        if args.ray: routes["Ray, two nodes"], read["Ray, two nodes"] = by_ray(folder, texts)
    found = {route: next(iter(m.measures.values()))["points"] for route, m in routes.items()}
    of_texts = {route: next(iter(m.measures.values())) for route, m in read.items()}
    equal = {route: summary == found["one process"] for route, summary in found.items()}
    equal_texts = {route: all(layers.get(l) in (None, s) for l, s in of_texts["one process"].items())
                   for route, layers in of_texts.items()}
    table = {route: {name: summary[name] for name in shown} for route, summary in found.items()}
    table_texts = {route: {name: layers["6"][name] for name in shown} for route, layers in of_texts.items()}
    print(json.dumps(dict(table=table, equal=equal, texts=table_texts, equal_texts=equal_texts), indent=1), flush=True)
    earlier, memory = json.loads((root/"results/benchmarks/any_size.json").read_text(encoding="utf-8"))["memory"], {}
    for d in (384, 768, 1536, 3072, 4096, 8192):
        command = [sys.executable, "-c", WIDE, str(d)]
        held = spent(command)[0]["peak_mb"]
        ways = (dict(all_dimensions="8") if d <= 3072 else {}) | (dict(folded=str(small)) if d > 1024 else {})
        memory[d] = {way: spent([*command, allowed])[0]["peak_mb"] - held for way, allowed in ways.items()}
        memory[d] |= {way: mb for way, mb in earlier.get(str(d), {}).items() if way == "four_matrices"}
        print(d, memory[d], flush=True)
    figures = dict(rows=args.rows, d=384, texts=len(texts), table=table, equal=equal, table_texts=table_texts,
                   equal_texts=equal_texts, memory=memory)
    if args.record: store("any_size", load_before, **figures)
    if args.layers:
        print(json.dumps(figures := figures | dict(decoder=decoder(args.layers)), indent=1))
        if args.record: store("any_size", load_before, **figures)
