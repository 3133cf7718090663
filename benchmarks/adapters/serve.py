"""The other side of a `Peer`: answers requests for one package's measures, in whatever environment runs it.

An adapter is a file of this folder. It has `packages`, whose versions are told; `measures`, the function for each
definition that the package follows, with the call as its docstring; `documented`, what the package says of input that
has no value; and `notes`, where in its code a difference comes from. A request is a measure and a file of arrays; the
answer is a number or an error.
"""
import importlib.metadata
import importlib.util
import json
import os
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np


def described(adapter):
    "What the suite must know of an adapter before it asks."
    calls = {name: function.__doc__ for name, function in adapter["measures"].items()}
    versions = {name: importlib.metadata.version(name) for name in adapter["packages"]}
    rest = {name: adapter.get(name, {}) for name in ("documented", "notes")}
    return dict(versions=versions, calls=calls, parts=[*adapter.get("parts", [])], **rest)


def answered(adapter, measure, arrays, parts=0):
    "The value, or the error in one line."
    function = (adapter["parts"] if parts else adapter["measures"])[measure]
    if parts: arrays = {name: np.array_split(a, parts) for name, a in arrays.items()}
    try: return dict(value=float(function(**arrays)))
    except Exception as e: return dict(error=f"{type(e).__name__}: {' '.join(str(e).split())[:160]}")


def read(path):
    with np.load(path) as file: return {name: a if a.ndim else a.item() for name, a in file.items()}


def import_torchvision():
    "Import it where a package needs it, also without its compiled operators if they do not fit torch: none is used."
    if importlib.util.find_spec("torchvision") is None: return
    try: importlib.import_module("torchvision")
    except RuntimeError:
        define = importlib.import_module("torch").library.define
        for name in ("nms", "qnms"):
            define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def serve(name):
    "Answer line by line; whatever the package prints goes to the error output."
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    def say(answer): print(json.dumps(answer), file=out, flush=True)
    warnings.simplefilter("ignore")
    try:
        if name != "istar_nb": import_torchvision()
        adapter = runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))
        say(described(adapter))
    except Exception as e: return say(dict(unavailable=f"{type(e).__name__}: {' '.join(str(e).split())[:160]}"))
    for line in sys.stdin:
        measure, path, parts = json.loads(line)
        say(answered(adapter, measure, read(path), parts))


if __name__ == "__main__": serve(sys.argv[1])
