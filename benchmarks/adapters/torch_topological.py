"torch-topological."
import torch
from torch_topological.nn import VietorisRipsComplex
from torch_topological.utils import persistent_entropy

packages = "torch_topological", "giotto-ph", "torch", "numpy"


def diagram(x): return VietorisRipsComplex(dim=0)(torch.from_numpy(x))[0].diagram

def persistence(x):
    "VietorisRipsComplex(dim=0)(x)[0].diagram[:, 1].sum()"
    return diagram(x)[:, 1].sum()

def entropy(x):
    "persistent_entropy(VietorisRipsComplex(dim=0)(x)[0].diagram)"
    return persistent_entropy(diagram(x))


measures = {"total H0 persistence": persistence, "persistent entropy in bits": entropy}
notes = {
    "total H0 persistence": "The diagram is empty where a point has a NaN, and the sum of no bars is 0.",
    "persistent entropy in bits": "The diagram is empty where a point has a NaN, and the sum of no bars is 0.",
}
