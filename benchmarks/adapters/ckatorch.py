"ckatorch."
import torch
from ckatorch import cka_base

packages = "ckatorch", "torch", "numpy"


def plain(x, y):
    "cka_base(x, y)"
    return cka_base(torch.from_numpy(x), torch.from_numpy(y))

def debiased(x, y):
    "cka_base(x, y, unbiased=True)"
    return cka_base(torch.from_numpy(x), torch.from_numpy(y), unbiased=True)


measures = {"plain CKA": plain, "debiased CKA": debiased}
