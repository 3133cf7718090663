"cka-pytorch, which compares models: two that pass on a part of their input each."
import numpy as np
import torch
from cka_pytorch.cka import CKACalculator
from torch.utils.data import DataLoader, TensorDataset

packages = "cka-pytorch", "torch", "numpy"


class Columns(torch.nn.Module):
    "Passes on some columns."
    def __init__(self, columns):
        super().__init__()
        self.columns, self.out = columns, torch.nn.Identity()

    def forward(self, x): return self.out(x[:, self.columns])


def cka(x, y):
    'CKACalculator(model1, model2, ["out"]).calculate_cka_matrix(loader, num_epochs=1), all points in one batch'
    d, both = x.shape[1], torch.from_numpy(np.concatenate([x, y], 1))
    models = Columns(slice(None, d)), Columns(slice(d, None))
    calculator = CKACalculator(*models, ["out"], ["out"], device=torch.device("cpu"), verbose=False)
    return calculator.calculate_cka_matrix(DataLoader(TensorDataset(both, both), batch_size=len(both)), num_epochs=1)


measures = {"debiased CKA": cka}
notes = {
    "debiased CKA":
        "The default `epsilon=1e-4` is added under the root of the denominator, whatever the units of the points; the "
        "Gram matrices are computed in float32 from points that are not centred.",
}
