"Shared by the tests: where the labelled data is, finished runs, and a command line in a process of its own."
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from istar_nb.training.runs import RunConfig
from istar_nb.training.training import train


@pytest.fixture
def data_dir():
    "The folder of labelled data; the test is skipped where there is none."
    folder = os.environ.get("ISTAR_DATA")
    if not folder: pytest.skip("ISTAR_DATA is not set: no labelled data here")
    return Path(folder)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Records of small runs of which a test only needs that they are finished; `finished.root` is their store.

    All processes that test share it, so that a run is trained once, by whoever first asks for it.
    """
    own = tmp_path_factory.getbasetemp()
    def record(config=None, **options):
        while True:
            try: return train(config or RunConfig(**options), record.root, progress=False)
            except BlockingIOError: time.sleep(0.1)    # another process is at it
    record.root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)/"finished"
    return record


@pytest.fixture
def istar(tmp_path):
    "Start `istar` with some words in a temporary folder; returns the process; keywords are environment variables."
    from processes import Process

    from istar_nb.app.cli import main
    return lambda *words, **variables: Process(main, [*map(str, words)], folder=tmp_path, **variables)


def pytest_runtest_setup(item):
    "Python in a C locale cannot write such names at all."
    if item.get_closest_marker("any_names") and sys.getfilesystemencoding() == "ascii": pytest.skip("names of files are ASCII here")


@pytest.fixture
def forked_workers(monkeypatch):
    "The workers of a sweep are forked from a process that has imported everything; elsewhere they start as for users."
    monkeypatch.setattr(sys, "executable", shutil.which("forked-python"))


@pytest.fixture
def drawn(): "Asked for by a test whose figures matter, where `blank_figures` holds for all others of its file."


@pytest.fixture
def blank_figures(request, monkeypatch):
    "Figures are made and not drawn, which takes three quarters of a small measurement's time."
    from matplotlib import pyplot as plt

    from istar_nb.embeddings import health
    from istar_nb.report import comparing, figures, reports
    def blank(fig, dpi=150):
        plt.close(fig)
        return b"\x89PNG"
    for module in () if "drawn" in request.fixturenames else (figures, reports, comparing, health): monkeypatch.setattr(module, "png_bytes", blank)
