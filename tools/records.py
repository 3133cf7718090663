"""Which records a notebook reads, and whether its stored output was made from those that are there now.

`tools/notebooks.py` stores one hash of them in the notebook's metadata, and `tools/check.py` compares it.
"""
import json
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

root = Path(__file__).resolve().parents[1]
readers = re.compile(r"\b(opened|Evidence|Store|every_claim|benchmark_record|load_selections)\(|\"results\"")
everything = re.compile(r"\b(every_claim|main_claims)\(|find_folder\(\"results\", \"runs\"\)")


@cache
def ids_of(grid):
    "The ids of a grid's runs."
    from istar_nb.sweeps.grids import grid as configs
    return [config.id for config in configs(grid)]


@cache
def _hashes(results, state):
    from istar_nb.training.records import packed_file, record_texts
    files = {path.relative_to(results).as_posix(): path.read_bytes() for path in results.rglob("*.json")}
    for path in results.rglob(packed_file):
        folder = path.parent.relative_to(results)
        files |= {f"{folder}/{run}.json": text.encode() for run, text in record_texts(path.parent)}
    return {name: sha256(content).digest() for name, content in files.items()}


def hashes(results):
    "The hash of every stored result by its name, a packed record as the file that it was; read again after a change."
    return _hashes(results, frozenset((path, path.stat().st_size, path.stat().st_mtime_ns)
                                      for path in results.rglob("*") if path.is_file()))


def names_of(nb, results, grids=root/"nbs"/"experiments"/"grids"):
    "The stored results that a notebook reads: all, or those of the grids and benchmarks that it names."
    cells = ["".join(cell["source"]) for cell in nb["cells"]]
    text = "\n".join(cells)
    if not readers.search(text): return set()
    named = {path for path in grids.glob("*.yaml") if f"{path.name}" in text or f'"{path.stem}"' in text}
    pretraining = {path for path in named if path.stem in ("pretrain", "pretrain-masked", "pretrain-positions")}
    found = {f"runs/{run}.json" for path in named - pretraining for run in ids_of(path)}
    found |= {f"benchmarks/{name}.json" for name in re.findall(r'benchmark_record\("([\w-]+)"', text)}
    folders = dict(pretrained="pretrained" in text, stability="stability" in text) | {
        "benchmarks": 'find_folder("results", "benchmarks")' in text,
        "runs/selection": "selected" in text or "load_selections(" in text}
    if everything.search(text):
        folders |= dict.fromkeys(("runs", "pretrained", "stability"), True)
        found |= {"majority.json", "crossed.json"}
    below = tuple(f"{name}/" for name, read in folders.items() if read)
    return {name for name in hashes(results) if name in found or name.startswith(below)}


def hash_of(nb, results=root/"results"):
    "One hash of the names and contents of the records that a notebook reads; None if it reads none."
    if not (names := names_of(nb, results)): return None
    whole, kept = sha256(), hashes(results)
    for name in sorted(names): whole.update(name.encode() + kept[name])
    return whole.hexdigest()[:16]


def pages():
    "The pages of evidence, and the first page of the site."
    return [*sorted((root/"nbs"/"experiments").glob("*.ipynb")), *sorted((root/"nbs"/"study").glob("*.ipynb")),
            root/"nbs"/"index.ipynb"]


def stale(results=root/"results"):
    "The notebooks whose stored output is not of the records that are there now."
    read = {path: json.loads(path.read_text(encoding="utf-8")) for path in pages()}
    return [path.relative_to(root) for path, nb in read.items()
            if hash_of(nb, results) != nb["metadata"].get("records")]
