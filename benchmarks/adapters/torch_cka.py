"torch-cka, which compares models, here two that only pass their input on, and takes no float64."
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_cka import CKA

packages = "torch-cka", "torch", "numpy"


def loader(x):
    x = x.astype(np.float32) if x.dtype == np.float64 else x
    return DataLoader(TensorDataset(torch.from_numpy(x)), batch_size=len(x))


def cka(x, y):
    'CKA(model1, model2, "first", "second", ["0"], ["0"]).compare(loader1, loader2), all points in one batch of float32'
    models = [torch.nn.Sequential(torch.nn.Identity()) for _ in range(2)]
    measure = CKA(*models, "first", "second", ["0"], ["0"])
    measure.compare(loader(x), loader(y))
    return measure.export()["CKA"]


measures = {"debiased CKA": cka}
notes = {
    "debiased CKA":
        "The Gram matrices are computed in float32 from points that are not centred, and so far away HSIC is lost in "
        "rounding: it comes out as zero, by which the code divides.",
}
