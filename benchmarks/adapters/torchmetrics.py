"torchmetrics, whose pairwise cosines are summed and divided by the number of pairs here."
import torch
from torchmetrics.functional.pairwise import pairwise_cosine_similarity

packages = "torchmetrics", "torch", "numpy"


def cosine(x):
    "pairwise_cosine_similarity(x).sum()/(n*(n - 1))"
    return pairwise_cosine_similarity(torch.from_numpy(x)).sum()/(len(x)*(len(x) - 1))


measures = {"mean cosine": cosine}
