"pytorch-cka."
import torch
from cka import cka_from_features

packages = "pytorch-cka", "torch", "numpy"


def cka(x, y):
    "cka_from_features(x, y)"
    return cka_from_features(torch.from_numpy(x), torch.from_numpy(y))


measures = {"debiased CKA": cka}
