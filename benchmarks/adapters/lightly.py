"lightly, which has no measure of rank; KoLeo is a loss of its own."
import torch
from lightly.loss import KoLeoLoss

packages = "lightly", "torch", "numpy"


def koleo(x):
    "KoLeoLoss()(x)"
    return KoLeoLoss()(torch.from_numpy(x))


measures = {"KoLeo": koleo}
notes = {"KoLeo": "The only point is taken for its own nearest neighbour, at a distance that consists of ε."}
