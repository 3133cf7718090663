"Kill at random, start again: nothing lost, nothing doubled, nothing different."
import os
import subprocess
import sys
from pathlib import Path


def test_random_kills():
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("killed.py")), os.environ.get("ISTAR_KILLS", "4"), "1"], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, timeout=3000)
    assert done.returncode == 0 and "all equal" in done.stdout, done.stderr[-3000:]
