"torchid."
import torch
import torchid

packages = "torchid", "torch", "numpy"


def two_nn(x):
    "torchid.estimators.TwoNN().fit(X).dimension_"
    return torchid.estimators.TwoNN().fit(torch.from_numpy(x)).dimension_


measures = {"TwoNN": two_nn}
