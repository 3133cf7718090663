"Shared by the tests: where the labelled data lies, and a command line in a process of its own."
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def data_dir():
    "The folder of labelled data; the test is skipped where there is none."
    folder = os.environ.get("ISTAR_DATA")
    if not folder: pytest.skip("ISTAR_DATA is not set: no labelled data here")
    return Path(folder)


@pytest.fixture
def istar(tmp_path):
    "Start `istar` with some words in a temporary folder; returns the process; keywords are environment variables."
    def start(*words, processes=1, **variables):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes), "--no-python"] if processes > 1 else []
        env = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1", "CUDA_VISIBLE_DEVICES": "", **{name: str(value) for name, value in variables.items()}}
        return subprocess.Popen([*launcher, str(Path(sys.executable).parent/"istar"), *map(str, words)], cwd=tmp_path, env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    return start
