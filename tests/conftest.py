"Shared by the tests: where the labelled data is, and a command line in a process of its own."
import os
import shutil
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
