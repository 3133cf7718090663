"stable-pretraining, whose measures are callbacks of a trainer; its queue of points is put in place of a training."
from types import SimpleNamespace

import torch
from stable_pretraining.callbacks import LiDAR, RankMe

packages = "stable-pretraining", "torch", "numpy"


def logged(callback, x):
    "What the callback logs at the end of the first validation batch."
    found = {}
    callback._target_queue = SimpleNamespace(data=torch.from_numpy(x))
    module = SimpleNamespace(log=lambda name, value, **_: found.update({name: value}))
    callback.on_validation_batch_end(SimpleNamespace(global_rank=0), module, {}, {}, 0)
    if callback.name not in found: raise ValueError("no value is logged")
    return found[callback.name]

def rankme(x):
    "RankMe(name, target, queue_length=n, target_shape=d), what it logs"
    return logged(RankMe("rankme", "embedding", len(x), x.shape[1]), x)

def lidar(x, group):
    "LiDAR(name, target, queue_length=n, target_shape=d, n_classes=n//q, samples_per_class=q), what it logs"
    return logged(LiDAR("lidar", "embedding", len(x), x.shape[1], len(x)//group, group), x)


measures = {"RankMe": rankme, "LiDAR": lidar}
notes = {
    "RankMe": "The code adds 1e-5 to every share of the singular values, and the paper 1e-7.",
    "LiDAR": "All eigenvalues are zero, and ε is added before they are divided by their sum, so all shares are equal "
             "and the value is the largest there is.",
}
