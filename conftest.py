"""Every notebook is a test: `pytest nbs/geometry/01_scores.ipynb` runs its cells from top to bottom, in the folder it is in.

There are three tiers, which `--tier=fast` and so on choose: *fast* tests start no process, no browser and no training,
*lessons* are the notebooks, and everything else is *system*. Cells with a flag of settings.ini's `tst_flags` are left out, as by `nbdev_test`. An exported cell runs under the name and
line numbers of the module it is exported to, so that a traceback leads there and coverage counts it.
"""
import ast
import gc
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from unittest.mock import patch

# One compute thread a worker: tests run side by side, and idle threads would fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from execnb.nbio import read_nb
from execnb.shell import CaptureShell
from IPython.core.compilerop import CachingCompiler
from nbdev.config import get_config

root = Path(__file__).resolve().parent
# What takes longest starts first, so that no core is left idle at the end.
LONGEST = ["test_ray", "test_cli", "test_launchers", "test_resume", "test_accelerator", "test_training", "test_docs", "test_sweeps", "test_teams",
           "test_nbdev", "test_howto", "test_pages", "09_training", "11_pretraining", "test_typed", "test_experiments", "test_integrations",
           "03_isolayer", "test_kills", "test_watch", "test_pretraining", "test_streaming", "1_measure", "05_isotropy", "06_integrations",
           "01_executors", "test_paper_grids", "test_explore", "test_lab", "test_places", "07_claims", "00_regularizers", "11_transforms"]


# What a test of the system calls, itself or by its fixtures and helpers: processes, browsers, trainings of the library.
PROGRAMS, TRAININGS = {"subprocess", "Process", "on_two", "browser_page"}, {"train", "sweep", "select", "pretrain", "launch", "fine_tuning"}
MOST_SECONDS = 60    # seconds of processor time: three times what a fast test may take here, for slower machines


def pytest_addoption(parser):
    parser.addoption("--tier", choices=["fast", "lessons", "system"], help="run only the tests of this tier")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files in an order drawn with this seed")
    parser.addoption("--from-root", action="store_true", help="run the notebooks in the repository's root, not in their own folder")


def names_in(code):
    "The names that a function's code looks up, and those in the functions that it defines."
    return {*code.co_names}.union(*(names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


def starts_something(function, seen):
    "Whether a function of the tests calls one that starts a process, a browser or a training."
    if not isinstance(function, FunctionType) or function in seen or str(root/"tests") not in function.__code__.co_filename: return False
    seen.add(function)
    names = names_in(function.__code__)
    known = {name: function.__globals__[name] for name in names if name in function.__globals__}
    if names & PROGRAMS or any(str(getattr(known.get(name), "__module__", "")).startswith("istar_nb.") for name in TRAININGS): return True
    return any(starts_something(each, seen) for each in known.values())


def tier_of(item):
    "The tier of a test; a file or a test that the rule does not find is marked `system`."
    if isinstance(item, Run): return "lessons"
    fixtures = [one.func for many in item._fixtureinfo.name2fixturedefs.values() for one in many]
    return "system" if item.get_closest_marker("system") or any(starts_something(f, set()) for f in (item.function, *fixtures)) else "fast"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = sum(os.times()[:4])
    result = yield
    spent = sum(os.times()[:4]) - before
    if spent > MOST_SECONDS and tier_of(item) == "fast": pytest.fail(f"a fast test took {spent:.0f} s of processor time: mark it `system`")
    return result


def changed():
    "The files that differ from the commit before."
    try: return {root/name for name in subprocess.run(["git", "diff", "--name-only", "HEAD~1"], cwd=root, capture_output=True, text=True).stdout.splitlines()}
    except OSError: return set()


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".ipynb": return Notebook.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(config, items):
    "One tier, and whole files in another order, what has changed first; the tests of a file share what it sets up."
    if tier := config.getoption("tier"):
        config.hook.pytest_deselected(items=[item for item in items if tier_of(item) != tier])
        items[:] = [item for item in items if tier_of(item) == tier]
    seed, files, new = config.getoption("shuffle"), list(dict.fromkeys(item.path for item in items)), changed()
    places = {name: i for i, name in enumerate(LONGEST)}
    if seed is None: files.sort(key=lambda path: (path not in new, places.get(path.stem, len(places))))
    else: random.Random(seed).shuffle(files)
    items.sort(key=lambda item: files.index(item.path))


def settle():
    "Spare the garbage collector what stays: looking through all imports costs a quarter of a second, and training loops ask for it often."
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session): settle()


def pytest_sessionstart(session):
    "Programs that a notebook starts, such as the `istar` of a %%bash cell, are forked from one that has its imports."
    if session.config.getoption("numprocesses", None): return      # its workers carry out the tests
    sys.path.insert(0, str(root/"tests"))
    from processes import serve_programs
    folder = tempfile.TemporaryDirectory()
    session.config.add_cleanup(folder.cleanup)
    serve_programs(Path(folder.name))
    os.environ["PATH"] = os.pathsep.join([folder.name, os.path.dirname(sys.executable), os.environ.get("PATH", "")])


@contextmanager
def forked():
    "Within it the library forks its workers and processes, too; `test_launchers` starts new interpreters."
    import torch.multiprocessing as mp
    from processes import serve

    from istar_nb.base import programs
    plain, python = programs.Team.__init__, shutil.which("forked-python")
    def team(*args, **options):
        with patch.object(sys, "executable", python): plain(*args, **options)
    def spawn(*args, **options):
        serve()
        return mp.start_processes(*args, **options, start_method="forkserver")
    with patch.object(programs.Team, "__init__", team), patch.object(mp, "spawn", spawn): yield


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path: settle()


class ModuleLines(CachingCompiler):
    "Compiles an exported cell as the lines of its module."
    places, shift = {}, 0     # of each exported source: the module's path, and how far down its lines are

    def cache(self, transformed_code, number=0, raw_code=None):
        path, self.shift = self.places.get(raw_code, (None, 0))
        return path or super().cache(transformed_code, number, raw_code)

    def ast_parse(self, *args, **kwargs): return ast.increment_lineno(super().ast_parse(*args, **kwargs), self.shift)


class Shell(CaptureShell): compiler_class = ModuleLines


def places(path, nb):
    "Where the exported cells of a notebook are: {source: (module path, number of lines above it)}."
    name = re.search(r"#\| default_exp ([\w.]+)", "".join(cell.source for cell in nb.cells[:2]))
    if not name: return {}
    module = get_config().lib_path/f"{name[1].replace('.', '/')}.py"
    above = {line.rpartition("#")[2]: i for i, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1) if line.startswith("# %%")}
    directives = {cell.id: len(re.match(r"(#\|.*\n)*", cell.source)[0].splitlines()) for cell in nb.cells}
    return {cell.source: (str(module), above[cell.id] - directives[cell.id]) for cell in nb.cells if cell.id in above}


class Notebook(pytest.File):
    def collect(self): yield Run.from_parent(self, name="cells")


class Run(pytest.Item):
    "All cells of a notebook."
    def runtest(self):
        config, main, path, folder = get_config(), sys.modules["__main__"], sys.path[:], Path.cwd()
        before = process_state()
        nb, shell = read_nb(self.path), Shell(self.path)
        shell.compile.places = places(self.path, nb)
        flags = re.compile(rf"#\|\s*({'|'.join(config.tst_flags.split())}|eval:\s*false)\b", re.I)
        sys.path.insert(0, str(root))
        os.chdir(root if self.config.getoption("from_root") else self.path.parent)
        try:
            with forked(): shell.run_all(nb, exc_stop=True, preproc=lambda cell: bool(flags.match(cell.source)))
        except Exception as error: raise CellFailed(shell.prettytb(self.path)) from error
        finally:
            sys.modules["__main__"], sys.path[:] = main, path
            os.chdir(folder)
        after = process_state()
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        if changed: raise CellFailed(f"{self.path.name} changes what the next notebook finds: {changed}")

    def repr_failure(self, excinfo): return str(excinfo.value) if excinfo.errisinstance(CellFailed) else super().repr_failure(excinfo)

    def reportinfo(self): return self.path, None, self.path.stem


class CellFailed(Exception):
    "A notebook's cell raised, or left the process another one than it was."


def process_state():
    "What a notebook could change for those that run after it in the same process."
    import pandas
    import torch
    for_all = [action for action, message, category, module, _ in warnings.filters if category is Warning and not (message or module)]
    ours = {name: value for name, value in os.environ.items() if name.startswith("ISTAR_")}
    return dict(warnings=for_all, environment=ours, logging=logging.root.manager.disable, width=pandas.get_option("display.max_colwidth"), dtype=torch.get_default_dtype(), gradients=torch.is_grad_enabled(), threads=torch.get_num_threads(),
                deterministic=torch.are_deterministic_algorithms_enabled())
