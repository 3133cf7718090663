"""Test everything: each notebook as `nbdev_test` would, then pytest; end on `N passed, N failed`.

`python tools/test.py` tests all; `python tools/test.py 01_isoscore tests/test_cli.py` only what is named.
"""
import os
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[1]
# One compute thread a worker: the notebooks run side by side, and idle threads would fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from fastcore.parallel import parallel
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.test import test_nb


def test_notebooks(paths, workers):
    "Run the notebooks and return (passed, failed)."
    config = get_config()
    os.chdir(config.nbs_path)
    results = parallel(test_nb, paths, skip_flags=config.tst_flags.split(), force_flags=[], basepath=config.config_path,
                       n_workers=workers, pause=0.01)
    for path, (ok, seconds) in zip(paths, results): print(f"{'PASS' if ok else 'FAIL'} {path.name} {seconds:.1f} s")
    os.chdir(root)
    failed = sum(not ok for ok, _ in results)
    return len(paths) - failed, failed


class Counter:
    "A pytest plugin that counts outcomes; an error in set-up or collection is a failure."
    passed = failed = 0
    def pytest_runtest_logreport(self, report):
        self.passed += report.when == "call" and report.passed
        self.failed += report.failed
    def pytest_collectreport(self, report): self.failed += report.failed


if __name__ == "__main__":
    os.chdir(root)
    named = sys.argv[1:]
    stems = {Path(name).stem for name in named}
    notebooks = [p.absolute() for p in sorted(nbglob(as_path=True)) if not named or p.stem in stems]
    tests = [name for name in named if name.startswith("tests")] if named else ["tests"]
    workers = min(4, os.cpu_count() or 1)
    passed, failed = test_notebooks(notebooks, workers) if notebooks else (0, 0)
    if tests:
        counter = Counter()
        code = pytest.main(["-q", "-n", str(workers), "--dist", "loadfile", *tests], plugins=[counter])   # the tests of a file share what it sets up
        passed, failed = passed + counter.passed, failed + counter.failed
        failed += code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not counter.failed
    print(f"{passed} passed, {failed} failed")
    sys.exit(bool(failed) or not passed)
