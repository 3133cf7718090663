"What users of nbdev expect of its commands: settings that lead somewhere, and pages that its documentation can take."
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fastcore.foundation import read_config_file
from processes import Process

root = Path(__file__).resolve().parents[1]
notebooks = sorted(path.relative_to(root/"nbs") for path in (root/"nbs").rglob("*.ipynb")
                   if not re.search(r"/[._]", path.as_posix()))


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    "The parts of the repository that nbdev reads, where it may write."
    folder = tmp_path_factory.mktemp("copied")
    for part in ("nbs", "istar_nb", "results"):
        shutil.copytree(root/part, folder/part, ignore=shutil.ignore_patterns("__pycache__", ".*", "_proc"))
    for name in ("settings.ini", "README.md"): shutil.copy(root/name, folder)
    return folder


def nbdev(folder, program):
    "Run a Python program of nbdev in a copy of the repository."
    process = Process(exec, program, {}, folder=folder, PYTHONPATH=folder, JUPYTER_PLATFORM_DIRS=1)
    said = process.wait()
    assert not process.code, said[-3000:]


def test_the_documentation_of_nbdev_takes_every_page(copied):
    "What `nbdev_docs` does before it calls Quarto: it evaluates imports and definitions, and documents each."
    nbdev(copied, "import os\nfrom nbdev.serve import proc_nbs\nproc_nbs(n_workers=0, force=True)\n"
                  "os._exit(0)    # without clearing a shell for each page, which takes longer than the pages")
    assert sorted(path.relative_to(copied/"_proc") for path in (copied/"_proc").rglob("*.ipynb")) == notebooks
    page = (copied/"_proc"/"geometry"/"01_scores.ipynb").read_text(encoding="utf-8")
    assert "isoscore_star" in page and "#| export" not in page


def test_quarto_gets_the_settings(copied):
    "The configuration that nbdev writes for Quarto names what settings.ini names."
    nbdev(copied, "from nbdev.quarto import nbdev_sidebar, refresh_quarto_yml\nrefresh_quarto_yml()\nnbdev_sidebar()")
    quarto, made, sidebar = ((copied/"nbs"/name).read_text(encoding="utf-8")
                             for name in ("_quarto.yml", "nbdev.yml", "sidebar.yml"))
    settings = read_config_file(root/"settings.ini", delimiters=["="])
    for name in ("doc_path", "doc_host", "doc_baseurl", "git_url", "branch", "title", "description"):
        assert settings[name] in made, name
    assert quarto == (root/"nbs"/"_quarto.yml").read_text(encoding="utf-8") and "styles.css" not in quarto
    assert "metadata-files: [nbdev.yml, sidebar.yml]" in quarto
    assert [str(path) for path in notebooks if str(path) not in sidebar] == []


def test_the_readme_is_not_made_by_nbdev():
    "`nbdev_docs` would write another README than `make notebooks`: it is told of a notebook that does not exist."
    settings = read_config_file(root/"settings.ini", delimiters=["="])
    assert not (root/settings["nbs_path"]/settings["readme_nb"]).exists() and (root/"README.md").exists()


def test_the_ci_ends_on_one_count(tmp_path):
    "Whatever a step does, its failure is counted."
    steps = dict(demo="exit 0", test="echo 5 passed, 0 failed\necho 40 passed, 2 failed\nexit 1")
    for name, status in (("demo", "exit 0"), ("demo", "exit 2")):
        cases = "\n".join(f"{step})\n{lines};;" for step, lines in (steps | {name: status}).items())
        (tmp_path/"make").write_text(f"#!/bin/sh\ncase $1 in\n{cases}\nesac\n")
        (tmp_path/"make").chmod(0o755)
        done = subprocess.run([root/".ci"/"run"], capture_output=True, encoding="utf-8",
                              env=os.environ | dict(PATH=f"{tmp_path}:{os.environ['PATH']}"))
        assert done.returncode == 1
        assert done.stdout.splitlines()[-1] == f"40 passed, {2 + (status != 'exit 0')} failed"
