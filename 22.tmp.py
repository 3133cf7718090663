# %%
#| default_exp runs

# %% [markdown]
# # Runs
#
# > What a run is, what it leaves behind, and how many of them become one table
#
# Which run was that? A number without its configuration, data, seed and versions cannot be trusted or repeated, so a run is
# described in exactly one place, `RunConfig`, and leaves exactly one file, its `RunRecord`.

# %%
#| export
import hashlib
import json
import math
import os
import platform
import subprocess
import warnings
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import ClassVar, Literal, get_args, get_origin
from uuid import uuid4

import istar_nb

# %%
import tempfile


# %%
def error_of(f, *args, **kwargs):
    "The error that calling `f` raises."
    try: f(*args, **kwargs)
    except (TypeError, ValueError) as e: return e
    raise AssertionError("no error was raised")


# %% [markdown]
# ## The configuration
#
# A frozen dataclass holds everything that decides the *result* of a run, and nothing else: where the data lies, where
# records go and how often to save are arguments of `train`. `batch_size` counts the sentences of one step over *all* processes, so
# the same configuration is the same run on one process or eight.
#
# The defaults are the papers' where they agree with each other, and are stated where they do not: the I-STAR paper accumulates gradients over 2
# batches and tries $\lambda\in\{-5,-3,-1,1,3,5\}$, $\zeta\in\{0.2,0.4,0.6,0.8\}$.
#
# | method | what it does | strength | page |
# |---|---|---|---|
# | `none` | plain fine-tuning | | |
# | `istar` | λ(1 - IsoScore*) with shrinkage toward a reference covariance; λ of either sign | must be given | [regularizers](10_regularizers.ipynb) |
# | `istar-unbiased` | the same with the unbiased score of the batch, no reference | must be given | [regularizers](10_regularizers.ipynb) |
# | `cosreg` | λ times the mean cosine of the last layer's tokens | 1 | [regularizers](10_regularizers.ipynb) |
# | `entropy` | minus the persistent entropy of every class's [CLS] states; one batch is a whole update, `batch_size` times `accumulate`, 64 in the paper | 1 | [topology](11_topology.ipynb) |
# | `vicreg` | squared covariances between dimensions | 1 | [regularizers](10_regularizers.ipynb) |
# | `uniformity` | log-mean Gaussian potential on the sphere | 1 | [regularizers](10_regularizers.ipynb) |
# | `isolayer` | fine-tune on 70 %, then a linear layer on the frozen [CLS] | | [isolayer](12_isolayer.ipynb) |
# | `isobn` | isotropic batch normalization of [CLS] before the head | | [isolayer](12_isolayer.ipynb) |

# %%
#| export
Method = Literal["none", "istar", "istar-unbiased", "cosreg", "entropy", "vicreg", "uniformity", "isolayer", "isobn"]
schema = 1  # of configurations and records; raised when a default or a meaning changes

@dataclass(frozen=True)
class RunConfig:
    "Everything that decides the result of a run."
    task: str = "stdlib-docs"         # a task of `istar tasks`
    model: str = "minilm"             # an alias (minilm, tiny-bert, ...), a local folder or a hub id
    method: Method = "none"           # what is done about isotropy; see the table above
    lam: float | None = None          # λ, the strength of the penalty; None for the method's own. istar: above 0 raises isotropy, below 0 lowers it
    relative: float | None = None     # instead of λ: hold the penalty's gradient at this fraction of the task's; its sign is that of λ
    target: float | None = None       # istar: pull IsoScore* toward this value in (0, 1) instead of raising or lowering it
    zeta: float | Literal["auto"] = 0.2  # istar: shrinkage ζ in [0, 1] toward the reference covariance, 0 needs none; "auto" to estimate it from every batch
    refresh: Literal["epoch", "start", "average"] = "epoch"  # istar: make the reference anew every epoch, or only once, or keep a moving average over batches
    refresh_every: int | None = None  # istar: also make it anew after this many updates
    average: float = 0.05             # istar: weight of the newest batch in the moving average
    reference_points: int = 250_000   # istar: points behind the reference covariance
    layers: tuple[int, ...] | None = None  # layers under the penalty, 0 is the embeddings; None for all others (istar, istar-unbiased) or the last (cosreg, entropy, ...)
    tokens: Literal["real", "cls", "all"] | None = None  # tokens under the penalty; None for real (istar, cosreg) or cls (the rest); "all" counts padding, as released
    per_layer: bool = False           # istar: average one score per layer instead of scoring the union of layers
    scope: Literal["global", "local"] = "global"  # penalty of the batch of all processes, or of each its own
    max_points: int | None = None     # tokens of a batch that the penalty sees, drawn at random to save memory; None for all
    selection: Literal["atienza", "released", "none"] = "atienza"  # entropy: which bars count as features
    normalize: bool = False           # entropy: divide every entropy by the logarithm of its number of bars
    temperature: float = 2.           # uniformity: t in exp(-t·distance²)
    depth: int = 1                    # isolayer: linear layers inserted
    keep: Literal["score", "isoscore"] = "score"  # isolayer: keep the epoch with the best score, or the most isotropic that scores no worse than without
    stage_epochs: int = 200           # isolayer: passes over the frozen features, at most
    stage_loss: Literal["joint", "task"] = "joint"  # isolayer: the paper's loss, or the task's alone: the control that shows what the isotropy loss adds
    bias_correction: bool = True      # isobn: correct the running averages for starting at zero; the released code does not
    head: Literal["own", "linear"] | None = None  # the model's own classification head, or one linear layer on [CLS]; None for own, with isolayer and isobn linear
    epochs: int = 3                   # passes over the training data
    batch_size: int = 32              # sentences in a step, over all processes
    accumulate: int = 1               # steps whose gradients are added up before an update; the I-STAR paper uses 2
    lr: float = 5e-5                  # peak learning rate of AdamW
    weight_decay: float = 0.01        # of AdamW, not on biases and layer norms
    warmup: float = 0.1               # share of updates in which the learning rate rises
    schedule: Literal["linear", "constant"] = "linear"  # after the warm-up: falling to zero, or constant as in the released code
    max_grad_norm: float = 1.         # gradients are clipped to this norm; 0 for no clipping
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # mixed precision of the model; penalties are always float32
    gradient_checkpointing: bool = False  # compute states again in the backward pass instead of keeping them: slower, less memory
    max_length: int | None = None     # tokens kept of a text; None for the task's own
    limit: int | None = None          # train on this many randomly drawn rows (the draw depends on `seed`); None for all
    hold_out: float = 0.              # share of the training rows kept out and measured in place of the validation rows, to choose options with
    seed: int = 0                     # of the head, dropout, order of batches and everything else drawn

    def __post_init__(self):
        for f in fields(self): check_type(f.name, getattr(self, f.name), f.type)
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, int) and not isinstance(value, bool) and float in (f.type, *get_args(f.type)): object.__setattr__(self, f.name, float(value))  # 1 and 1.0 are one run
        self.check_ranges()
        self.check_method()

    def check_ranges(self)->None:
        "An error that names a number out of its range."
        for name in ("epochs", "batch_size", "accumulate", "lr", "reference_points", "refresh_every", "max_length", "limit", "max_points", "temperature", "depth", "stage_epochs"):
            if (value := getattr(self, name)) is not None and value <= 0: raise ValueError(f"`{name}` must be above 0, not {value}")
        for name in ("weight_decay", "max_grad_norm", "seed"):
            if getattr(self, name) < 0: raise ValueError(f"`{name}` must not be negative, and is {getattr(self, name)}")
        for name in ("zeta", "warmup", "average"):
            if (value := getattr(self, name)) != "auto" and not 0 <= value <= 1: raise ValueError(f"`{name}` must lie in [0, 1], not {value}")
        if not 0 <= self.hold_out < 1: raise ValueError(f"`hold_out` must lie in [0, 1), not {self.hold_out}")
        if self.target is not None and not 0 < self.target < 1: raise ValueError(f"`target` must lie in (0, 1), not {self.target}")
        if self.layers is not None and (not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0):
            raise ValueError(f"`layers` must be ascending layer numbers from 0, not {self.layers}")

    def check_method(self)->None:
        "An error if the method lacks a strength, or has one or options that are not its own."
        method, penalty, strength = self.method, self.method in penalties, self.relative or self.lam
        if not penalty and strength: raise ValueError(f"`lam` is {strength}, and method {method!r} has no penalty: name a method that has one")
        if self.lam is not None and self.relative is not None: raise ValueError(f"`lam` and `relative` are two ways to set one strength: give {self.lam} or {self.relative}, not both")
        if self.relative == 0 or penalty and self.lam == 0: raise ValueError(f"`lam` must not be 0 with method {method!r}: method 'none' is the run without a penalty")
        if self.target is not None and strength is not None and strength < 0: raise ValueError(f"`target` pulls from both sides, and a strength below 0 ({strength}) would push away")
        if penalty and methods[method]["lam"] is None and (self.lam, self.relative, self.target) == (None, None, None): raise ValueError(f"`lam` is missing: method {method!r} has no strength of its own; give lam, relative or target")
        for name, owners in options.items():
            if method not in ("none", *owners) and getattr(self, name) not in (defaults[name], methods[method].get(name)): raise ValueError(f"`{name}` is an option of {', '.join(owners)}, and the method is {method!r}")
        if method in ("isolayer", "isobn") and self.head == "own": raise ValueError(f"`head` must be 'linear' with method {method!r}, not 'own'")

    @property
    def complete(self)->"RunConfig":
        "The same run with the method's own values in place of None; a plain run has no options of penalties, whatever grid it comes from."
        own = {name: value for name, value in methods[self.method].items() if getattr(self, name) is None}
        if self.target is not None and self.lam is None: own["lam"] = 1.
        if self.relative is not None: own.pop("lam", None)
        if self.method == "none": own |= {name: defaults[name] for name in options} | dict(lam=0., tokens="real")
        return replace(self, **own)

    @property
    def canonical(self)->str:
        "JSON of what differs from the defaults, keys sorted: the same text for the same run, also after an option was added."
        mine, plain = vars(self.complete), vars(RunConfig().complete)
        return json.dumps(dict(schema=schema, **{k: v for k, v in mine.items() if v != plain[k]}), sort_keys=True)

    @property
    def id(self)->str: # 16 hexadecimal digits
        "The run's id: a hash of `canonical`."
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls,
        values:dict, # names and values of fields; the others keep their defaults
    )->"RunConfig":
        "A configuration from parsed JSON or YAML; unknown names are an error."
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known): raise ValueError(f"`{cls.__name__}` has no field {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}")
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


defaults = {f.name: f.default for f in fields(RunConfig)}
methods = {  # what None stands for
    "none":           dict(lam=0., tokens="real", head="own"),
    "istar":          dict(lam=None, tokens="real", head="own"),
    "istar-unbiased": dict(lam=None, tokens="real", head="own"),
    "cosreg":         dict(lam=1., tokens="real", head="own"),
    "entropy":        dict(lam=1., tokens="cls", head="own"),
    "vicreg":         dict(lam=1., tokens="cls", head="own"),
    "uniformity":     dict(lam=1., tokens="cls", head="own"),
    "isolayer":       dict(lam=0., tokens="real", head="linear"),
    "isobn":          dict(lam=0., tokens="real", head="linear"),
}
penalties = tuple(name for name, own in methods.items() if own["lam"] != 0)
options = {  # which methods an option belongs to
    **dict.fromkeys(("relative", "layers", "scope"), penalties), **dict.fromkeys(("max_points",), tuple(p for p in penalties if p != "entropy")), "tokens": tuple(p for p in penalties if p != "entropy"),
    **dict.fromkeys(("target", "per_layer"), ("istar", "istar-unbiased")), **dict.fromkeys(("zeta", "refresh", "refresh_every", "average", "reference_points"), ("istar",)),
    **dict.fromkeys(("selection", "normalize"), ("entropy",)), "temperature": ("uniformity",), **dict.fromkeys(("depth", "keep", "stage_epochs", "stage_loss"), ("isolayer",)),
    "bias_correction": ("isobn",)}


# %%
#| export
def check_type(name:str, value, wanted)->None:
    "An error that names the field if `value` is not of the annotated type. Integers pass for floats; NaN and infinity do not."
    parts = (wanted,) if get_origin(wanted) in (None, Literal, tuple, list) else get_args(wanted)
    choices, kinds = [c for p in parts if get_origin(p) is Literal for c in get_args(p)], [p for p in parts if get_origin(p) is not Literal]
    if isinstance(value, str) and value in choices: return
    if any(fits(value, kind) for kind in kinds):
        if isinstance(value, float) and not math.isfinite(value): raise ValueError(f"`{name}` must be finite, not {value}")
        return
    if choices and not set(kinds) - {NoneType}: raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, not {value!r}")
    names = [getattr(get_origin(k) or k, "__name__") for k in kinds if k is not NoneType] + [repr(c) for c in choices]
    raise TypeError(f"`{name}` must be {' or '.join(names)}, not {value!r}")


def fits(value, kind)->bool:
    "Whether a value is of a plain type; True and False are no numbers."
    if get_origin(kind) is tuple: return isinstance(value, tuple) and all(fits(v, int) for v in value)
    if get_origin(kind) is list: return isinstance(value, list) and all(isinstance(v, dict) for v in value)
    if isinstance(value, bool): return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


# %% [markdown]
# Equal configurations have equal ids, in every process and on every machine. The hash of the defaults is frozen here: when it
# changes because a default has changed, old records would be mistaken for new ones, and `schema` must be raised. (An option that is added changes it too,
# but no id: then only this line is updated.)

# %%
assert RunConfig().id == RunConfig.from_dict(json.loads(json.dumps(asdict(RunConfig())))).id
assert RunConfig(lam=1, method="istar").id == RunConfig(lam=1., method="istar").id
config = RunConfig(task="cola", method="istar", lam=-0.1, layers=(1, 2))
assert hashlib.sha256(json.dumps([asdict(RunConfig()), methods], sort_keys=True).encode()).hexdigest()[:8] == "3fbe8c0e"
config.canonical, config.id

# %% [markdown]
# What is left at None is filled in by `complete`: the method's own value. Two ways to write one run have one id, and the plain run of a grid has none of the
# options of its penalties.

# %%
assert RunConfig(method="cosreg").id == RunConfig(method="cosreg", lam=1, tokens="real").id != RunConfig().id
assert RunConfig(zeta=0.8, target=0.1, layers=(3,)).id == RunConfig().id
assert RunConfig(method="istar", target=0.1).complete.lam == 1 and RunConfig(method="istar", relative=0.1).complete.lam is None
assert RunConfig(method="entropy").complete.tokens == "cls" and RunConfig(method="isobn").complete.head == "linear"
assert all(RunConfig(method=m, **({} if own["lam"] is not None else dict(lam=1))).complete.complete.method == m for m, own in methods.items())
assert set(methods) == set(get_args(Method)) and set(options) < set(defaults)
RunConfig(method="istar", target=0.1).canonical

# %%
for bad in [dict(zeta=1.5), dict(epochs=0), dict(lam=0.1), dict(method="magic"), dict(lr="fast"), dict(lr=float("nan")), dict(seed=True),
            dict(layers=(3, 1)), dict(layers=("a",)), dict(precision="fp8"), dict(limit=0), dict(method="istar"), dict(method="istar", lam=0), dict(hold_out=1.),
            dict(method="istar", lam=1, relative=0.1), dict(method="istar", target=0.1, lam=-1), dict(method="cosreg", zeta=0.5), dict(method="isobn", head="own"),
            dict(method="isolayer", lam=1), dict(method="istar", lam=1, zeta="magic")]:
    print(repr(error_of(RunConfig, **bad)))
error_of(RunConfig.from_dict, dict(lambda_=3))


# %% [markdown]
# ## The record
#
# A finished run leaves one JSON file: the configuration, the state of the world it ran in, what was measured after every
# epoch, and how it ended. A failed run leaves one too, with the error. Records are immutable; a run whose record exists is not run again.

# %%
#| export
@dataclass(frozen=True)
class RunRecord:
    "What one run leaves behind."
    config: dict                    # of `RunConfig.complete`, every field
    id: str                         # `RunConfig.id`
    status: Literal["done", "failed"]
    metric: str = ""                # name of the task's primary metric
    score: float | None = None      # its value after the last epoch, on the validation rows
    epochs: list[dict] = field(default_factory=list)     # measurements before training (epoch 0) and after every epoch
    steps: list[dict] = field(default_factory=list)      # losses, penalty and gradient norm along the way
    data: dict = field(default_factory=dict)             # source, hash and number of rows
    environment: dict = field(default_factory=dict)      # versions, commit and hardware
    seconds: float | None = None    # of wall-clock time, over all starts
    started: str = ""               # UTC time of the first start, ISO 8601
    error: str = ""                 # traceback of a failed run
    schema: int = schema            # version of this layout
    describes: ClassVar[type] = RunConfig # class of the configuration

    def __post_init__(self):
        for f in fields(self): check_type(f.name, getattr(self, f.name), f.type)

    @property
    def same(self)->dict:
        "All that must be equal when the same run is made twice: everything but times and environment."
        return {k: v for k, v in asdict(self).items() if k not in ("seconds", "started", "environment", "error")}

    @classmethod
    def from_json(cls, text:str)->"RunRecord":
        "A record from its JSON; an error says what is wrong with one that is none."
        try: values = json.loads(text)
        except RecursionError: raise ValueError("a record must not be nested as deeply as this text is") from None
        if not isinstance(values, dict): raise ValueError("a record must be a JSON object")
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known): raise ValueError(f"a record has no field {', '.join(map(repr, unknown))}")
        if values.get("schema") != schema: raise ValueError(f"the record has schema {values.get('schema')}, and {schema} is read")
        record = cls(**values)
        if cls.describes.from_dict(record.config).id != record.id: raise ValueError(f"the record's id {record.id!r} does not belong to its configuration")
        return record

    def to_json(self)->str:
        "JSON with a line for every field, epoch and step; NaN and infinity, which JSON lacks, become null."
        def text(value): return json.dumps(value, ensure_ascii=False, allow_nan=False)
        def lines(value): return "[\n  " + ",\n  ".join(map(text, value)) + "]" if isinstance(value, list) and value else text(value)
        return "{" + ",\n ".join(f"{text(k)}: {lines(v)}" for k, v in finite(asdict(self)).items()) + "}\n"


def finite(value):
    "`value` with every NaN and infinity in it replaced by None."
    if isinstance(value, float): return value if math.isfinite(value) else None
    if isinstance(value, dict): return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, (list, tuple)) else value


# %% [markdown]
# The environment is recorded so that a difference between two numbers can be traced to it.

# %%
#| export
def git_commit()->str|None: # hash, with "+" when the checkout has changes; None outside a checkout
    "The commit of the checkout that `istar_nb` is imported from."
    package = Path(istar_nb.__file__)
    def git(*args):
        done = subprocess.run(["git", "-C", str(package.parent), *args], capture_output=True, text=True, timeout=10)
        if done.returncode: raise OSError(done.stderr)
        return done.stdout.strip()
    try:
        if git("ls-files", package.name) == "": return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError): return None


def processor()->str: # such as "AMD EPYC 7763"
    "The processor's name."
    try: lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError: lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


def environment()->dict:
    "Versions, commit and hardware."
    from importlib.metadata import version

    import torch
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return dict(versions={name: version(name) for name in ("istar_nb", "torch", "transformers", "accelerate", "numpy")},
                python=platform.python_version(), commit=git_commit(), system=platform.system(), processor=processor(),
                threads=torch.get_num_threads(), gpus=gpus, processes=int(os.environ.get("WORLD_SIZE", 1)))


# %%
assert environment() == environment() and environment()["versions"]["torch"]
sorted(environment())


# %% [markdown]
# ## The store
#
# Records lie side by side below one root, which is any fsspec URL: a folder, `memory://`, `s3://…`. A record is written to a
# temporary name and renamed, so a reader sees all of it or nothing, whatever dies; an object store shows a file only when all of it has come, and renames by copying, so there it is
# written in one piece. (`tests/test_store.py` has eight processes write one store at once, on disk and on an S3 server.) The file name is the id, which is hexadecimal by construction: nothing in a configuration
# can name a path outside the root.

# %%
#| export
def open_root(
    root:str|Path, # folder or fsspec URL
)->tuple:          # (file system, path on it)
    "The file system and path of a store."
    import fsspec
    return fsspec.core.url_to_fs(str(root), use_listings_cache=False)    # other machines write there too


def record_path(root:str|Path, run_id:str)->str: # path on the store's file system
    "Where the record of a run lies."
    if len(run_id) != 16 or set(run_id) - set("0123456789abcdef"): raise ValueError(f"`run_id` must be 16 hexadecimal digits, not {run_id!r}")
    return f"{open_root(root)[1].rstrip('/')}/{run_id}.json"


object_stores = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"}    # a file appears there when all of it has come

def write_whole(
    fs,         # fsspec file system
    path:str,   # of the file; its folder is made
    text:str,   # what it shall hold
)->None:
    "Write a file, whole or not at all, whoever else writes it."
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    if object_stores & ({fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)): return fs.pipe_file(path, text.encode())
    temporary = f"{path}.{uuid4().hex}.tmp"
    fs.pipe_file(temporary, text.encode())
    fs.mv(temporary, path)


def read_text(fs, path:str)->str|None:
    "What a file holds; None when there is none."
    try: return fs.cat_file(path).decode()
    except FileNotFoundError: return None


def json_files(fs, folder:str)->list[str]:
    "The JSON files of a folder."
    try: return sorted(p for p in fs.ls(folder, detail=False) if p.endswith(".json"))
    except FileNotFoundError: return []


def save_record(
    record:RunRecord, # of a run that has ended
    root:str|Path,    # folder or fsspec URL of the store
)->str:               # path of the record
    "Write a record, whole or not at all."
    path = record_path(root, record.id)
    write_whole(open_root(root)[0], path, record.to_json())
    return path


def find_record(
    root:str|Path, # folder or fsspec URL of the store
    run_id:str,    # `RunConfig.id`
    kind:type=RunRecord, # class of the record
)->RunRecord|None: # None when there is none
    "The record of a run."
    text = read_text(open_root(root)[0], record_path(root, run_id))
    return None if text is None else kind.from_json(text)


def iterate_records(
    root:str|Path,                 # folder or fsspec URL of the store
    kind:type=RunRecord,           # class of the records
    ids:Collection[str]|None=None, # only these runs; the others are not read
):                                 # yields them in the order of their ids
    "All records of a store; files that are none are skipped with a warning."
    fs, folder = open_root(root)
    for path in json_files(fs, folder):
        if ids is not None and Path(path).stem not in ids: continue
        try: yield kind.from_json(fs.cat_file(path).decode())
        except (ValueError, TypeError) as e: warnings.warn(f"{Path(path).name} is skipped: {e}", stacklevel=2)


# %%
record = RunRecord(asdict(config.complete), config.id, "done", metric="matthews", score=0.5,
                   epochs=[dict(epoch=0, isoscore=0.26, matthews=float("nan")), dict(epoch=1, isoscore=0.2, matthews=0.5, layers=[0.3, 0.2])])
with tempfile.TemporaryDirectory() as root:
    save_record(record, root)
    assert find_record(root, config.id).same == RunRecord.from_json(record.to_json()).same
    assert find_record(root, RunConfig().id) is None
    (Path(root)/"notes.json").write_text("{}")
    (Path(root)/f"{RunConfig().id}.json").write_text(record.to_json()[:50])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(iterate_records(root))) == 1
[str(w.message)[:60] for w in caught]

# %%
save_record(record, "memory://store")
assert next(iterate_records("memory://store")).id == config.id
broken = json.loads(record.to_json())
for change in [dict(schema=99), dict(colour="red"), dict(id="../../outside")]: print(repr(error_of(RunRecord.from_json, json.dumps({**broken, **change}))))
error_of(record_path, "memory://store", "../../outside")


# %% [markdown]
# ## One table
#
# `load_records` gives one row a run, with the configuration's fields, how it ended, and what was measured after the last epoch; or one row a run and
# epoch. Measurements that are lists, such as scores by layer, stay lists in their cell.

# %%
#| export
def load_records(
    root:str|Path,                 # folder or fsspec URL of the store
    every_epoch:bool=False,        # one row per run and epoch instead of the last epoch of each run
    ids:Collection[str]|None=None, # only these runs; the others are not read
):                                 # pandas DataFrame
    "The records of a store as one table. An option added since a record was written has its default there."
    import pandas as pd
    rows = []
    for record in iterate_records(root, ids=ids):
        head = dict(id=record.id, status=record.status, **defaults | record.config, metric=record.metric, score=record.score,
                    seconds=record.seconds, data_sha256=record.data.get("sha256"), error=record.error)
        last = record.epochs if every_epoch else record.epochs[-1:]
        rows += [{**head, **epoch} for epoch in last or [{}]]
    return pd.DataFrame(rows)


# %%
table = load_records("memory://store", every_epoch=True)
assert table.epoch.tolist() == [0, 1] and table.matthews.isna().tolist() == [True, False]
table[["id", "task", "method", "lam", "epoch", "isoscore", "matthews", "layers"]]

# %%
older = find_record("memory://store", table.id[0])
save_record(replace(older, config={name: value for name, value in older.config.items() if name != "stage_loss"}), "memory://older")
assert load_records("memory://store", ids=[older.id]).id.tolist() == [older.id] and load_records("memory://store", ids=[]).empty
load_records("memory://older").stage_loss.item()


# %% [markdown]
# ## Made again
#
# Anybody can make a run again, into a store of their own, and ask whether it is the same. On the same machine, with the same versions and number of threads, a record is equal but for times and environment; elsewhere sums are
# taken in another order, and the differences say how much came of it.

# %%
#| export
def agreement(
    a, # a value of JSON
    b, # another one
)->tuple[bool,set[str]]: # whether they are equal in all that both have; names that only one has
    "Compare what two records have in common: an older one may lack a quantity that is recorded since."
    if isinstance(a, dict) and isinstance(b, dict): found, alone = [agreement(a[k], b[k]) for k in a.keys() & b.keys()], set(a.keys() ^ b.keys())
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b): found, alone = [agreement(x, y) for x, y in zip(a, b)], set()
    else: return a == b, set()
    return all(same for same, _ in found), alone.union(*(names for _, names in found))


def compare_stores(
    root:str|Path,   # folder or fsspec URL of a store
    other:str|Path,  # of another one
):                   # pandas DataFrame, one row for every run of both: id, task, model, method, lam, seed, equal, in_one_only, and differences, other minus root, of score and isoscore
    "Runs that were made twice: whether their records are equal but for times and environment, what only one of them has, and how far apart they ended."
    import pandas as pd
    rows, columns = [], ["task", "model", "method", "lam", "seed"]
    mine = {record.id: record for record in iterate_records(root)}
    for b in iterate_records(other):
        if (a := mine.get(b.id)) is None: continue
        equal, alone = agreement(*({**json.loads(r.to_json()), "config": defaults | r.config, **dict.fromkeys(("seconds", "started", "environment", "error"))} for r in (a, b)))
        ends = [dict(record.epochs[-1] if record.epochs else {}, score=record.score) for record in (a, b)]
        apart = {f"{name}_difference": None if None in (x := [end.get(name) for end in ends]) else x[1] - x[0] for name in ("score", "isoscore")}
        rows.append(dict(id=b.id, **{name: b.config[name] for name in columns}, equal=equal, in_one_only=", ".join(sorted(alone)), **apart))
    return pd.DataFrame(rows, columns=["id", *columns, "equal", "in_one_only", "score_difference", "isoscore_difference"])


# %%
save_record(replace(record, seconds=1.), "memory://again")
assert compare_stores("memory://store", "memory://again").equal.tolist() == [True] and compare_stores("memory://store", "memory://empty").empty
assert agreement({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "c": 3}]}) == (True, {"c"}) and not agreement([1], [1, 2])[0] and not agreement({"a": 1}, {"a": 2})[0]
save_record(replace(record, score=0.25), "memory://again")
compare_stores("memory://store", "memory://again").drop(columns="id")
