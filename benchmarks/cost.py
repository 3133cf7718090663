"""What the measures cost as n and d grow, and what more processes gain: `python benchmarks/cost.py [--help]`.

IsoScore\\* and its gradient over a grid of shapes, beside the two bare matrix products that are its floor; then the
streaming measures of a cloud of points dealt to one and to two processes of one thread each, start to merged result.
More processes than this are simulated: every share is measured by itself, one after another, and the slowest of them
counts, with the merging of all in a row. That leaves out the network and what processes cost each other.
"""
import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from harness import store, timed
from istar_nb.geometry.scores import isoscore
from istar_nb.geometry.streaming import IsotropyMetrics


def shape(n, d, repeats):
    "Median seconds of one shape. With fewer points than dimensions the floor is the Gram matrix and its product."
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0), requires_grad=True)
    points = x.detach()
    def score(): torch.autograd.grad(isoscore(x), x)
    small = points if n >= d else points.T
    square = small.T @ small
    def floor(): return small.T @ small, small @ square
    seconds = timed(dict(score=score, floor=floor), repeats)
    return dict(n=n, d=d) | {name: statistics.median(times) for name, times in seconds.items()}


def measure_share(rank, processes, n, d, meeting, queue):
    "Stream one process's share of the points and merge; the first process reports the seconds and the score."
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=processes)
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).chunk(processes)[rank]
    metrics = IsotropyMetrics()
    metrics.update(x[:256])
    metrics.reset()
    dist.barrier()
    start = time.perf_counter()
    for part in x.split(2048): metrics.update(part)
    found = metrics.compute()
    dist.barrier()
    if not rank: queue.put((time.perf_counter() - start, float(found["isoscore"])))
    dist.destroy_process_group()


def throughput(processes, n, d, repeats):
    "Points a second on some processes: the median of repeats, and the score."
    found, context = [], mp.get_context("spawn")
    for _ in range(repeats):
        queue = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(measure_share, (processes, n, d, f"{folder}/meeting", queue), processes)
        found.append(queue.get())
    seconds = statistics.median(seconds for seconds, _ in found)
    return dict(processes=processes, points_a_second=n/seconds, isoscore=found[0][1])


def simulated(processes, n, d):
    "Points a second if every process had a machine of its own, and the score."
    torch.set_num_threads(1)
    shares = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).chunk(processes)
    metrics, seconds = [IsotropyMetrics() for _ in shares], []
    metrics[0].update(shares[0][:256])
    metrics[0].reset()
    for metric, share in zip(metrics, shares):
        start = time.perf_counter()
        for part in share.split(2048): metric.update(part)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    for metric in metrics[1:]: metrics[0].merge_state(metric)
    found = metrics[0].compute()
    merging = time.perf_counter() - start
    return dict(processes=processes, points_a_second=n/(max(seconds) + merging), isoscore=float(found["isoscore"]),
                merging_seconds=merging)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="+", default=[32, 128, 512, 2048, 8192, 32768])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--stream", type=int, default=200_000, help="points that are streamed")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before, shapes = os.getloadavg()[0], []
    for d in args.dims:
        for n in args.points:
            shapes.append(row := shape(n, d, args.repeats))
            print(f"n = {n:6}, d = {d:5}: {row['score']*1e3:9.3f} ms, {row['score']/row['floor']:.2f} of the floor",
                  flush=True)
    streamed = [throughput(processes, args.stream, 384, 3) for processes in (1, 2)]
    beyond = [simulated(processes, args.stream, 384) for processes in (1, 2, 4, 8, 16)]
    for how, rows in (("measured", streamed), ("simulated", beyond)):
        for row in rows: print(f"{row['processes']} processes, {how}: {row['points_a_second']:,.0f} points a second")
    gap = max(abs(row["isoscore"]/streamed[0]["isoscore"] - 1) for row in streamed + beyond)
    if gap > 1e-6: raise SystemExit(f"more processes give another score: {gap:.0e}")
    if args.record: store("cost", load_before, shapes=shapes, streamed=streamed, simulated=beyond, stream=args.stream,
                          repeats=args.repeats)
