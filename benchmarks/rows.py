"""Rows an hour of `istar measure` on a file of embeddings that does not fit into memory, beside reading it once.

`python benchmarks/rows.py --record` makes 10 million rows of 768 float32 numbers, 31 GB, in `--folder`, measures them,
reads them, and removes them. The file is sparse: a block of 65,536 random rows is written at its start and at every
twentieth block after it, and what lies between is zeros that take no room on the disk, so that `--dense` is needed to
see the disk as well. Both are also given in processor seconds, which another program on the machine changes less.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import store

block = 65_536


def made(path, n, d, dense):
    "The file, with random rows in some or all of its blocks."
    x = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, d))
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((block, d), dtype=np.float32)/np.sqrt(np.arange(1, d + 1, dtype=np.float32))
    for start in range(0, n, block if dense else 20*block): x[start:start+block] = rows[:n-start]
    x.flush()
    return os.stat(path).st_blocks*512


def spent(command):
    "Seconds, processor seconds and the most memory of its own of a program, and what it wrote."
    start, before, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        while program.poll() is None:    # the pages of a mapped file are not its own: they can be dropped at any time
            peak = max(peak, own_memory(program.pid))
            time.sleep(0.1)
        written = program.stdout.read()
    if program.returncode: sys.exit(f"{command[-1]}: {program.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return dict(seconds=time.perf_counter() - start, processor_seconds=cpu, peak_mb=peak/1e6), written


def own_memory(pid):
    "Bytes that a process has written to; 0 once it has ended."
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return sum(1024*int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


READ = """
import sys
from istar_nb.base.matrices import matrix_parts
print(sum(len(part) for part in matrix_parts(sys.argv[1])))
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dims", type=int, default=768)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--dense", action="store_true", help="random rows everywhere, which takes room on the disk")
    parser.add_argument("--record", action="store_true", help="store the figures in results/benchmarks")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        file = Path(folder)/"rows.npy"
        on_disk = made(file, args.rows, args.dims, args.dense)
        reading, read = spent([sys.executable, "-c", READ, str(file)])
        measuring, _ = spent([sys.executable, "-m", "istar_nb.app.cli", "measure", "--embeddings", str(file),
                              "--out", folder, "--no-progress"])
        values, = json.loads((Path(folder)/"isotropy.json").read_text())["measures"].values()
    if not int(read) == values["points"]["count"] == args.rows: sys.exit("rows are missing")
    for name, r in (("reading", reading), ("measuring", measuring)):
        r["rows_an_hour"], r["rows_a_processor_hour"] = (3600*args.rows/r[f"{part}seconds"]
                                                         for part in ("", "processor_"))
        print(f"{name}: {r['seconds']:,.0f} s, {r['processor_seconds']:,.0f} processor seconds, "
              f"{r['rows_an_hour']/1e6:,.1f} million rows an hour, peak {r['peak_mb']:,.0f} MB")
    if args.record: store("rows", load_before, rows=args.rows, d=args.dims, on_disk=on_disk, reading=reading,
                          measuring=measuring)
