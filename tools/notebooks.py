"""Run notebooks and store their outputs: `python tools/notebooks.py [name ...]` (all by default).

Exports first, so that each notebook imports what it and the others define now; cleans last, so that only what a
reader needs is committed. Names are file stems, `01_scores`, or paths.
"""
import os
import sys
import time
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.output_widget import OutputWidget
from nbdev.clean import nbdev_clean
from nbdev.config import update_version
from nbdev.export import nb_export
from nbdev.doclinks import nbdev_export
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))
import records
import surface

root = Path(__file__).resolve().parents[1]
skip_flags = {"slow", "cuda", "net"}


def find(names):
    "Notebook paths for the stems or paths in `names`; every notebook when empty."
    every = sorted(p for p in (root/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts
                   and "_proc" not in p.parts)
    stems = {Path(name).stem for name in names}
    missing = stems - {p.stem for p in every}
    if missing: sys.exit(f"no such notebook: {', '.join(sorted(missing))}")
    return [p for p in every if not stems or p.stem in stems]


def flagged(cell):
    "Whether the cell carries a flag such as `#| slow`, and so keeps the output it has."
    first_lines = cell.source.splitlines()[:3]
    return any(line.replace(" ", "") == f"#|{flag}" for line in first_lines for flag in skip_flags)


class OneWay(OutputWidget):
    "The place below a menu. What is shown there is not sent back to the kernel, or a cell's end can be missed."
    def sync_state(self): pass


class Client(NotebookClient):
    "A client that leaves flagged cells alone."
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.widget_registry["@jupyter-widgets/output"]["OutputModel"] = OneWay

    async def async_execute_cell(self, cell, *args, **kwargs):
        return cell if flagged(cell) else await super().async_execute_cell(cell, *args, **kwargs)


def store_no_progress(cell):
    "Forget what a cell showed whose result the site hides: how far a sweep is, in lines and in bars."
    if any(line.replace(" ", "") == "#|output:false" for line in cell.source.splitlines()[:3]):
        cell.outputs = [output for output in cell.outputs if output.output_type != "stream"
                        and "application/vnd.jupyter.widget-view+json" not in output.get("data", {})]


def store_no_controls(cell):
    "Put words in place of controls, whose state, names and scripts are not stored."
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        page = data.get("text/html", "").startswith("<iframe srcdoc=")
        if page or "application/vnd.jupyter.widget-view+json" in data:
            output.data = nbformat.from_dict({"text/plain": "Interactive: run this cell to use the controls."})


def store_few_colors(cell):
    "Keep 256 colours of a figure, which nobody can tell from all: it is drawn for sharp screens, and large."
    for output in cell.get("outputs", []):
        if "image/png" not in output.get("data", {}): continue
        image, small = Image.open(BytesIO(b64decode(output.data["image/png"]))), BytesIO()
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(small, "png", optimize=True, dpi=(192, 192))    # two dots where a page has one
        output.data["image/png"] = b64encode(small.getvalue()).decode() + "\n"


def run(path):
    "Execute the notebook at `path` in place, in a fresh kernel started in its own folder."
    start, nb = time.time(), nbformat.read(path, 4)
    for cell in nb.cells:
        if cell.cell_type == "code" and not flagged(cell): cell.outputs = []
    Client(nb, timeout=900, coalesce_streams=True, resources={"metadata": {"path": str(path.parent)}},
           extra_arguments=["--log-level=40", "--InlineBackend.figure_formats=retina"]).execute()
    for cell in nb.cells:
        if cell.cell_type == "code" and not flagged(cell): store_no_progress(cell)
        store_no_controls(cell)
        if not flagged(cell): store_few_colors(cell)
    nb.metadata.pop("widgets", None)
    nb.metadata.pop("records", None)
    if path in records.pages() and (read := records.hash_of(nb)): nb.metadata["records"] = read
    nb.metadata["kernelspec"] = {"display_name": "python3", "language": "python", "name": "python3"}
    nbformat.write(nb, path)
    nbdev_clean(str(path))
    print(f"ran {path.relative_to(root)} in {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    # The same outputs on every machine and every run.
    os.environ.update(PYTHONHASHSEED="0", OMP_NUM_THREADS="1", COLUMNS="100", HF_HUB_DISABLE_PROGRESS_BARS="1")
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # with `istar`
    os.chdir(root)
    paths = find(sys.argv[1:])
    if sys.argv[1:]:
        for path in paths: nb_export(path, root/"istar_nb")
        update_version(root/"istar_nb")
    else: nbdev_export()
    surface.write(root)
    for path in paths: run(path)
