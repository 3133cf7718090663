"""Test everything: the checks, each notebook, and what a notebook cannot host; end on `N passed, N failed`.

`python tools/test.py` tests all, and with `--tier=fast`, `lessons` or `system` one part of it (see conftest.py);
`python tools/test.py 01_scores tests/test_cli.py` only what is named, without the
checks. Words that begin with a dash go to pytest, which does the work: pytest.ini and conftest.py say how. Notebooks
and tests are counted; checks only where they fail.
"""
import os
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]


class Counter:
    "A pytest plugin that counts outcomes; an error in set-up or collection is a failure."
    passed = failed = 0

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == "call" and report.passed
        self.failed += report.failed

    def pytest_collectreport(self, report): self.failed += report.failed


def path(name):
    "The file or folder that `name` is: a path, or the stem of a notebook or test; `::test` may follow."
    file, colons, test = name.partition("::")
    if (root/file).exists(): return name
    found = [p for part in ("nbs", "tests")
             for p in (root/part).rglob(f"{Path(file).stem}.*") if p.suffix in (".ipynb", ".py")]
    if len(found) != 1: sys.exit(f"no such notebook or test: {name}")
    return f"{found[0].relative_to(root)}{colons}{test}"


def main(words):
    "Run what is named, or everything, and return whether all passed."
    options, names = [w for w in words if w.startswith("-")], [w for w in words if not w.startswith("-")]
    os.chdir(root)
    counter = Counter()
    if not names: counter.failed += subprocess.run([sys.executable, root/"tools"/"check.py"]).returncode != 0
    workers = min(4, 1 + (os.cpu_count() or 1))    # one more than cores: some wait for a browser or a cluster
    # the tests of a file share what it sets up
    side_by_side = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    code = pytest.main([*side_by_side, *options, *map(path, names)], plugins=[counter])
    failed = counter.failed + (code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not counter.failed)
    print(f"{counter.passed} passed, {failed} failed")
    return bool(counter.passed) and not failed


if __name__ == "__main__": sys.exit(not main(sys.argv[1:]))
