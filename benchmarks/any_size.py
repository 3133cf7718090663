"""The same vectors by one process, by three, from shards in another order and by Ray, and peak memory by width.

`python benchmarks/any_size.py --record` takes some minutes. Digits are compared as they are, without rounding.
"""
import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import istar_nb as inb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from harness import store
from rows import spent

shown = ("isoscore", "isoscore_se", "isoscore_unbiased", "mean_cosine", "effective_rank_centred", "two_nn")
WIDE = """
import sys, torch, istar_nb as inb
x = torch.randn(12_000, int(sys.argv[1]), generator=torch.Generator().manual_seed(0))
if len(sys.argv) > 2: inb.measure(x)
"""


def written(folder, x):
    "The rows in one file, and numbered in shards whose names are in another order."
    np.save(folder/"x.npy", x.numpy())
    (folder/"shards").mkdir()
    shards = torch.arange(len(x)).tensor_split(20)
    for i, rows in zip(torch.randperm(20, generator=torch.Generator().manual_seed(1)).tolist(), shards):
        table = pa.table(dict(number=rows.numpy(), vector=list(x[rows].numpy())))
        parquet.write_table(table, folder/"shards"/f"{i:02}.parquet")


def by_ray(folder):
    "Measured by Ray Data, or None where it is not installed."
    try: import ray
    except ImportError: return None
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    found = inb.measure(ray.data.read_parquet(str(folder/"shards")), column="vector", ids="number")
    ray.shutdown()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    parser.add_argument("--ray", action="store_true", help="by Ray as well")
    args, load_before = parser.parse_args(), os.getloadavg()[0]
    torch.set_num_threads(1)
    x = torch.randn(args.rows, 384, generator=torch.Generator().manual_seed(0))*torch.linspace(2, 0.3, 384) + 0.5
    with tempfile.TemporaryDirectory() as folder:
        written(folder := Path(folder), x)
        numbered = dict(column="vector", ids="number")
        routes = {"one process": inb.measure(x), "three processes": inb.measure(folder/"x.npy", processes=3),
                  "shards in another order": inb.measure(folder/"shards", **numbered),
                  "such shards, seven processes": inb.measure(folder/"shards", processes=7, **numbered)}
        if args.ray and (found := by_ray(folder)) is not None: routes["Ray"] = found
    found = {route: next(iter(m.measures.values()))["points"] for route, m in routes.items()}
    first = next(iter(found.values()))
    equal = {route: summary == first for route, summary in found.items()}
    table = {route: {name: summary[name] for name in shown} for route, summary in found.items()}
    print(json.dumps(dict(table=table, equal=equal), indent=1))
    memory = {}
    for d in (384, 768, 1536, 3072):
        command = [sys.executable, "-c", WIDE, str(d)]
        held, measured = (spent([*command, *more])[0]["peak_mb"] for more in ([], ["measure"]))
        memory[d] = dict(rows_mb=12_000*d*4/1e6, measuring_mb=measured - held)
        print(d, memory[d])
    if args.record: store("any_size", load_before, rows=args.rows, d=384, table=table, equal=equal, memory=memory)
