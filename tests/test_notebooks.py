"Notebooks that anyone can open: with a kernel, from any folder, and the same bytes after they are saved."
import json
import re
import shutil
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
notebooks = sorted(path for path in (root/"nbs").rglob("*.ipynb") if not re.search(r"/[._]", path.as_posix()))


def read(path): return json.loads(path.read_text(encoding="utf-8"))


def test_every_notebook_names_its_kernel():
    kernel = dict(display_name="python3", language="python", name="python3")
    assert [path.stem for path in notebooks if read(path)["metadata"].get("kernelspec") != kernel] == []


def test_no_cell_reads_a_file_beside_its_notebook():
    cells = [(path.stem, "".join(cell["source"])) for path in notebooks
             for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    assert [name for name, code in cells if re.search(r"""["'](\.\./)+(results|nbs|data|docs)\b""", code)] == []


def test_saving_in_jupyterlab_changes_no_byte(tmp_path):
    manager = pytest.importorskip("jupyter_server.services.contents.filemanager", reason="JupyterLab is not installed")
    hook, = re.findall(r"--ContentsManager.pre_save_hook=(\S+)", (root/"Makefile").read_text(encoding="utf-8"))
    for path in (root/"settings.ini", notebooks[0]): shutil.copy(path, tmp_path)
    contents = manager.FileContentsManager(root_dir=str(tmp_path), pre_save_hook=hook)
    model = contents.get(notebooks[0].name)
    metadata, first = (model["content"]["metadata"],
                       next(cell for cell in model["content"]["cells"] if cell["cell_type"] == "code"))
    metadata["kernelspec"]["display_name"], metadata["language_info"] = ("Python 3 (ipykernel)",
                                                                         dict(name="python", version="3.11.2"))
    first["execution_count"], first["metadata"]["trusted"] = 7, True
    contents.save(model, notebooks[0].name)
    assert (tmp_path/notebooks[0].name).read_bytes() == notebooks[0].read_bytes()
