"""A conformance suite for measures of geometry: every implementation against the exact value of its formula.

`python benchmarks/conformance.py` gives each package the clouds of `clouds.py`, whose values are known in closed form:
as they are, changed in ways that change nothing or something known, and spoiled. It also draws samples from a known
distribution, which tells how far an estimate of 64 or 1,000 points is from the population; that is a property of the
estimator, and no verdict. Every package runs in an environment of its own, made once; `--only` names some of them;
`--record` stores what was found, and keeps what the record has of the packages that are not named.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from clouds import Cloud, base, definitions, neighbour_ratios, rotation, slow, spectra
from harness import Peer, peer_python, root, store

adapters = Path(__file__).with_name("adapters")
same_torch = f"torch=={torch.__version__.partition('+')[0]}"
packages = {    # adapter: what its environment needs; None is the interpreter that runs this
    "istar_nb": None,
    "isoscore": ["IsoScore==2.0.1", same_torch],
    "dimensionality": ["dimensionality==0.1.4"],
    "vecscope": ["vecscope==0.2.0"],
    "spectralyte": ["spectralyte==0.4.0"],
    "monai": ["monai==1.6.1", same_torch],
    "stable_pretraining": ["stable-pretraining==0.1.8", same_torch],
    "reptrix": ["reptrix==0.1.0", same_torch],
    "lightly": ["lightly==1.6.0", same_torch],
    "torchmetrics": ["torchmetrics==1.9.0", same_torch],
    "scikit_dimension": ["scikit-dimension==0.5.0"],
    "dadapy": ["dadapy==0.3.4", "numpy<2"],
    "torchid": ["torchid==0.5.1", same_torch],
    "pytorch_cka": ["pytorch-cka==1.1.3", same_torch],
    "ckatorch": ["ckatorch==1.0.3", same_torch],
    "cka_pytorch": ["cka-pytorch==1.1.3", same_torch],
    "torch_cka": ["torch-cka==0.21", same_torch, "matplotlib", "tqdm"],
    "torch_topological": ["torch_topological==0.1.9", same_torch],
    "ripser": ["ripser==0.6.15"],
}

checks = {    # name: what the input is, what is asked of the answer
    "formula": ("the cloud as it is", "the exact value"),
    "fewer points than dimensions": ("a cloud with n < d", "the exact value"),
    "collapsed": ("256 points in 768 dimensions that vary in two directions only", "the exact value"),
    "rotation": ("the cloud rotated", "the same change as the formula's"),
    "small units": ("the cloud times 0.001", "the same change as the formula's"),
    "large units": ("the cloud times 1,000", "the same change as the formula's"),
    "shift": ("the cloud moved", "the same change as the formula's"),
    "duplicates": ("the cloud with points twice", "the same change as the formula's"),
    "order": ("the points in another order", "the same change as the formula's"),
    "single precision": ("the cloud in float32", "the same change as the formula's"),
    "far from the origin": ("the cloud in float32, a thousand units away from the origin", "the value within 1 %"),
    "parts": ("the cloud in three parts, to the package's own accumulation", "the exact value"),
    "integers": ("a cloud of int64", "the exact value, or an error"),
    "constant points": ("points that are all the same, not zero", "an error, NaN, a documented value or the formula's"),
    "one point": ("one point, or one group", "an error, NaN, a documented value or the formula's"),
    "NaN": ("the cloud with one NaN", "an error or NaN"),
}
changes = {"rotation", "small units", "large units", "shift", "duplicates", "order", "single precision",
           "far from the origin"}
spoiled = {"constant points": "constant", "one point": "single", "NaN": None}
tolerance = dict.fromkeys(checks, 1e-3) | dict.fromkeys(["far from the origin", *spoiled], 1e-2)
sizes = {64: 20, 1000: 5}    # points: draws


def scaled(c, factor):
    "The cloud in other units."
    facts = {name: value*factor**2 for name in ("squares", "offset") if (value := getattr(c, name)) is not None}
    return replace(c, x=c.x*factor, bars=None if c.bars is None else c.bars*factor, **facts)


def permuted(c):
    "The points, or the groups of points, in another order."
    rows = np.random.default_rng(0).permutation(len(c.x)//(c.group or 1))
    if c.group: rows = (rows[:, None]*c.group + np.arange(c.group)).ravel()
    return replace(c, x=c.x[rows], y=None if c.y is None else c.y[rows])


def of_type(c, dtype, away=0.):
    return replace(c, x=(c.x + away).astype(dtype), y=None if c.y is None else c.y.astype(dtype))


def whole_numbers(family):
    "A cloud of integers: axes that are not rotated, with whole lengths, or points on a grid."
    if family == "families": return None
    if family == "line":
        gaps = np.array([1, 2, 1, 4, 1, 3, 7, 2])
        return Cloud(np.outer(np.r_[0, gaps.cumsum()], np.eye(8, dtype=np.int64)[0]), n=9, bars=gaps*1.)
    if family == "triangles":
        x = np.random.default_rng(0).integers(0, 1000, (100, 8))
        return Cloud(x, n=100, ratios=neighbour_ratios(x*1.))
    unit = 1000 if family == "power" else 20
    def whole(squares): return np.rint(unit*np.sqrt(squares))**2
    pair = dict(others=whole(slow)) if family == "axes" else {}
    c = base[family](squares=whole(spectra[family]), offset=unit**2*1., **pair)
    y = None if c.y is None else np.rint(c.y @ rotation(c.y.shape[1], 1).T).astype(np.int64)
    return replace(c, x=np.rint(c.x @ rotation(c.d, 0).T).astype(np.int64), y=y)


def built(family):
    "The clouds that a family is built anew for; those that it does not have are left out."
    make = base[family]
    wide = dict(axes=dict(d=80), power=dict(d=160), simplex=dict(d=40), triangles=dict(count=10, d=60), line=dict(d=16))
    moved = dict(axes=8., power=4., simplex=3., line=5.)
    found = {}
    if family in wide: found["fewer points than dimensions"] = make(**wide[family])
    if family == "axes":
        found["collapsed"] = make(squares=np.ones(2), others=np.array([1, .5]), n=256, d=768, offset=0.)
    if family in moved: found["shift"] = make(offset=moved[family])
    if family in ("axes", "power", "line"): found["duplicates"] = make(copies=2)
    if family == "triangles": found["duplicates"] = make(copies=range(0, 60, 2))
    if (whole := whole_numbers(family)) is not None: found["integers"] = whole
    return found


def clouds_for(definition):
    "Check -> the cloud that carries it out, for all checks that the definition has."
    c = base[definition.family]()
    bad = c.x.copy()
    bad[0, 0] = np.nan
    found = {"formula": c, "rotation": replace(c, x=c.x @ rotation(c.d, 7)), "small units": scaled(c, 1e-3),
             "large units": scaled(c, 1e3), "order": permuted(c), "parts": c,
             "single precision": of_type(c, np.float32),
             "constant points": replace(c, x=np.ones_like(c.x)*np.arange(1, c.d + 1)/10),
             "one point": replace(c, x=c.x[:c.group or 1], y=None if c.y is None else c.y[:1]),
             "NaN": replace(c, x=bad)}
    if definition.about == "mean": found["far from the origin"] = of_type(c, np.float32, 1000.)
    if c.squares is None or c.group: found["shift"] = replace(c, x=c.x + 5)
    if definition.family == "simplex": del found["constant points"]    # infinite, and every package adds its own ε
    found |= built(definition.family)
    return {check: found[check] for check in checks if check in found}


def sampled(definition, n, seed):
    "A draw of n points, or groups, from the definition's population; None if it has none."
    if definition.family in ("line", "simplex"): return None
    if definition.family == "triangles":
        x = np.random.default_rng(seed).standard_normal((n, 5)) @ rotation(20, 0)[:5]
        return Cloud(x, n=n, dimension=5.)
    return base[definition.family](**{"samples" if definition.family == "families" else "n": n}, drawn=seed)


class Answers:
    "What one package answers."
    def __init__(self, peer, folder): self.peer, self.path = peer, Path(folder)/"cloud.npz"

    def __call__(self, measure, cloud, parts=0):
        arrays = dict(x=cloud.x)
        if "CKA" in measure: arrays["y"] = cloud.y
        if cloud.group: arrays["group"] = cloud.group
        np.savez(self.path, **arrays)
        answer = self.peer(measure, str(self.path), parts)
        if "error" in answer or math.isfinite(answer["value"]): return answer
        return dict(value=str(answer["value"]))


def close(value, wanted, within, slack=0.): return abs(value - wanted) <= within*abs(wanted) + slack


def verdict(check, answer, wanted, first, name, documented):
    "Pass or fail, and what was expected; `first` is the answer to the plain cloud and its exact value."
    definition, value = definitions[name], answer.get("value")
    if check in spoiled:
        known = getattr(definition, spoiled[check]) if spoiled[check] else None
        allowed = [v for v in (known, documented.get(spoiled[check])) if v is not None]
        fine = not isinstance(value, float) or any(close(value, v, tolerance[check], 1e-6) for v in allowed)
        return fine, allowed[0] if allowed else None
    if "error" in answer: return check == "integers", wanted
    if not isinstance(value, float): return False, wanted
    if check in changes: wanted *= first[0]/first[1]
    return close(value, wanted, tolerance[check], definition.slack), wanted


def examined(answers, about, name):
    "Every check of one measure of one package."
    definition, rows, first = definitions[name], {}, None
    for check, cloud in clouds_for(definition).items():
        if check == "parts" and name not in about["parts"]: continue
        if check in changes and first is None: continue
        answer = answers(name, cloud, 3 if check == "parts" else 0)
        exact = None if check in spoiled else definition.of(cloud)
        if check == "formula" and isinstance(answer.get("value"), float): first = answer["value"], exact
        fine, wanted = verdict(check, answer, exact, first, name, about["documented"].get(name, {}))
        rows[check] = dict(verdict="pass" if fine else "fail", expected=wanted, **answer)
    return rows


def estimated(answers, name):
    "Mean and spread of the answers to draws from a known population, and its exact value."
    rows = {}
    for n, draws in sizes.items():
        clouds = [sampled(definitions[name], n, seed) for seed in range(draws)]
        if clouds[0] is None: return {}
        found = [answers(name, cloud) for cloud in clouds]
        values = [answer["value"] for answer in found if isinstance(answer.get("value"), float)]
        if len(values) < draws: rows[n] = next(answer for answer in found if answer.get("value") not in values)
        else: rows[n] = dict(mean=np.mean(values), sd=np.std(values, ddof=1), draws=draws,
                             truth=definitions[name].of(clouds[0]))
    return rows


def departure(name):
    "The plain cloud's value under the definition of the paper that is cited, where that is another."
    if (cited := definitions[name].cited) is None: return {}
    return dict(cited=dict(definition=cited, value=definitions[cited].of(base[definitions[cited].family]())))


def refusal(requirements, folder, name):
    "Why pip does not make an environment, in one line."
    pip = (folder or root/".venv")/f"peer-{name}"/"bin"/"pip"
    said = subprocess.run([pip, "install", "--quiet", *requirements], capture_output=True, text=True).stderr
    lines = [line for line in said.splitlines() if "ERROR" in line or "error:" in line]
    return lines[0].strip()[:300] if lines else "pip ends with an error"


def opened(name, folder):
    "The package in its environment, or why it cannot be had."
    requirements, environment = packages[name], name.replace("_", "-")
    try: python = peer_python(environment, *requirements, "numpy", folder=folder) if requirements else sys.executable
    except subprocess.CalledProcessError: return None, dict(unavailable=refusal(requirements, folder, environment))
    peer = Peer(python, f"import runpy; runpy.run_path({str(adapters/'serve.py')!r}, run_name='__main__')", name)
    return peer, peer.versions


def conformance(name, folder=None):
    "All that the suite finds of one package."
    peer, about = opened(name, folder)
    if "unavailable" in about: return about
    found = dict(versions=about["versions"], measures={})
    with tempfile.TemporaryDirectory() as place:
        answers = Answers(peer, place)
        for measure, call in about["calls"].items():
            found["measures"][measure] = dict(call=call, checks=examined(answers, about, measure),
                                              estimates=estimated(answers, measure),
                                              note=about["notes"].get(measure, ""), **departure(measure))
    peer.close()
    return found


def shown(name, found):
    "The failures of a package, printed."
    if "unavailable" in found: return print(f"{name}: not run, {found['unavailable']}", flush=True)
    for measure, row in found["measures"].items():
        failed = {check: r for check, r in row["checks"].items() if r["verdict"] == "fail"}
        print(f"{name}, {measure}: {len(row['checks']) - len(failed)} of {len(row['checks'])} checks pass", flush=True)
        for check, r in failed.items():
            print(f"    {check}: {r.get('value', r.get('error'))}, expected {r['expected']}")
        for n, r in row["estimates"].items():
            said = f"{r['mean']:.4f} ± {r['sd']:.4f}, population {r['truth']:.4f}" if "mean" in r else r["error"]
            print(f"    n = {n}: {said}")


def told():
    "What the pages say of checks and definitions, for the record."
    asked = {name: dict(input=what, asked=asked, within=tolerance[name]) for name, (what, asked) in checks.items()}
    return dict(checks=asked, definitions={name: definition.words for name, definition in definitions.items()})


def kept(name, found, load_before):
    "Store what was found of one package beside what the record has of the others."
    file = root/"results"/"benchmarks"/"conformance.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["packages"] if file.exists() else {}
    rows[name] = found
    store("conformance", load_before, **told(), packages={name: rows[name] for name in packages if name in rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=packages, default=list(packages), help="packages to run")
    parser.add_argument("--environments", type=Path, help="folder for those of the other packages; default: .venv")
    parser.add_argument("--record", action="store_true", help="store what was found in results/benchmarks")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    for name in args.only:
        shown(name, found := conformance(name, args.environments))
        if args.record: kept(name, found, load_before)
