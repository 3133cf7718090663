"fastwonn."
import torch
from fastwonn import twonn_id

packages = "fastwonn", "torch", "numpy"


def two_nn(x):
    "twonn_id(x)"
    return twonn_id(torch.from_numpy(x))


measures = {"TwoNN": two_nn}
