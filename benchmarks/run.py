"""Every benchmark in turn: `make bench` prints, `make bench RECORD=1` also stores what the pages show.

A process of its own for each, so that none inherits another's memory or threads. Ends with an error if one failed.
"""
import subprocess
import sys
from pathlib import Path

benchmarks = ("isoscore", "topology", "two_nn", "step", "step --model bert-base --repeats 5", "cost", "measure",
              "errors", "watch", "work", "sample_size", "whole_update")

if __name__ == "__main__":
    failed = []
    for benchmark in benchmarks:
        print(f"==== {benchmark}", flush=True)
        name, *options = benchmark.split()
        script = Path(__file__).with_name(f"{name}.py")
        if subprocess.run([sys.executable, script, *options, *sys.argv[1:]]).returncode: failed.append(benchmark)
    if failed: sys.exit(f"failed: {', '.join(failed)}")
