"pytorch-cka."
import torch
from cka import cka_from_features

packages = "pytorch-cka", "torch", "numpy"


def cka(x, y):
    "cka_from_features(x, y)"
    return cka_from_features(torch.from_numpy(x), torch.from_numpy(y))


measures = {"debiased CKA": cka}
notes = {"debiased CKA": "The Gram matrices are computed from points that are not centred; a denominator of zero is "
                         "replaced by 1e-6, and the value is clipped to [0, 1]."}
