"""Test as if on other machines: `python tools/machines.py` does so under every setting, `... avx2 alone` under some.

A setting is what a machine or a reader may have otherwise than the last one: vector instructions, threads, the order
and the processes of the notebooks, locale and time zone, folders with spaces, the working folder. Other words go to
tools/test.py: `... avx2 nbs` tests the notebooks as on a machine with AVX2. Ends on a table and `N passed, N failed`.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

root = Path(__file__).resolve().parents[1]


class Setting(NamedTuple):
    what: str               # in words
    environment: dict = {}  # variables; None removes one
    options: tuple = ()     # of tools/test.py
    alone: bool = False     # each notebook in a process of its own
    moved: bool = False     # a checkout and a home whose paths have a space


def cpu(torch, mkl, onednn, openblas):
    "The variables that turn vector instructions off; libraries read them when they are loaded."
    return dict(ATEN_CPU_CAPABILITY=torch, MKL_ENABLE_INSTRUCTIONS=mkl, ONEDNN_MAX_CPU_ISA=onednn,
                OPENBLAS_CORETYPE=openblas)


# PyTorch's compiler cannot be imported where the locale is ASCII: it reads files of its own that are not.
COMPILED = ("--deselect=nbs/penalties/06_integrations.ipynb::cells",
            "--deselect=tests/test_integrations.py::test_compiled_by_inductor_in_the_trainer")

SETTINGS = {
    "sse42": Setting("SSE4.2 alone", cpu("default", "SSE4_2", "SSE41", "Nehalem")),
    "avx2": Setting("up to AVX2", cpu("avx2", "AVX2", "AVX2", "Haswell")),
    "all": Setting("all instructions of this machine, one thread",
                   cpu(None, None, None, None) | dict(OMP_NUM_THREADS="1")),
    "threads2": Setting("two threads", dict(OMP_NUM_THREADS="2")),
    "threads3": Setting("three threads", dict(OMP_NUM_THREADS="3")),
    "shuffled": Setting("in random order in one process", options=("-n0", f"--shuffle={time.time_ns() % 10**6}")),
    "alone": Setting("every notebook in a process of its own", alone=True),
    "elsewhere": Setting("spaces in the paths, ASCII files, another time zone",
                         dict(LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="utf-8", TZ="Asia/Kolkata"), COMPILED,
                         moved=True),
    "german": Setting("a German locale", dict(LC_ALL="de_DE.UTF-8", TZ="America/St_Johns")),
    "root": Setting("working folder = repository root", options=("--from-root",)),
}


def copy_to(folder):
    "A copy of the tracked files as they are now; the data beside the checkout stays where it is."
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                           capture_output=True, check=True)
    for name in filter(None, files.stdout.decode().split("\0")):
        if not (root/name).is_file(): continue
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        (folder/name).write_bytes((root/name).read_bytes())


def test(words, folder, environment):
    "(passed, failed) of one run of tools/test.py; a run that does not say so has failed."
    run = subprocess.Popen([sys.executable, str(folder/"tools"/"test.py"), *words], cwd=folder, env=environment,
                           text=True, stdout=subprocess.PIPE)
    counts = None
    for line in run.stdout:
        print(line, end="", flush=True)
        counts = re.fullmatch(r"(\d+) passed, (\d+) failed\n", line) or counts
    run.wait()
    passed, failed = map(int, counts.groups()) if counts else (0, 1)
    return passed, failed or int(run.returncode != 0)


def run(setting, names):
    "(passed, failed) under a setting."
    changed = {name: value for name, value in setting.environment.items() if value is not None}
    kept = {name: value for name, value in os.environ.items() if name not in setting.environment}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)/"a checkout" if setting.moved else root
        if setting.moved:
            copy_to(folder)
            changed["HOME"] = str(Path(temporary)/"a home")
            Path(changed["HOME"]).mkdir()
        compiled = str(Path(temporary)/"compiled")    # what one machine has compiled can crash another
        environment = kept | changed | dict(PYTHONPATH=str(folder), TORCHINDUCTOR_CACHE_DIR=compiled)
        if not setting.alone: return test([*setting.options, *(names or ["nbs", "tests"])], folder, environment)
        notebooks = [p.stem for p in sorted((root/"nbs").rglob("[!._]*.ipynb")) if not names or p.stem in names
                     or "nbs" in names]
        return tuple(map(sum, zip(*(test(["-n0", name], folder, environment) for name in notebooks))))


def main(words):
    "Run the settings that are named, or all; return whether everything passed."
    chosen, names = [w for w in words if w in SETTINGS] or list(SETTINGS), [w for w in words if w not in SETTINGS]
    table = []
    for name in chosen:
        print(f"==== {name}: {SETTINGS[name].what}", *SETTINGS[name].options, flush=True)
        start = time.monotonic()
        table.append((name, SETTINGS[name].what, *run(SETTINGS[name], names), time.monotonic() - start))
    for name, what, passed, failed, seconds in table:
        print(f"{name:10} {what:55} {passed:5} passed {failed:3} failed {seconds:6.0f} s")
    passed, failed = sum(row[2] for row in table), sum(row[3] for row in table)
    print(f"{passed} passed, {failed} failed")
    return not failed


if __name__ == "__main__": sys.exit(not main(sys.argv[1:]))
