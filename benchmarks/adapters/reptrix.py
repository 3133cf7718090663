"reptrix."
import torch
from reptrix import alpha, lidar, rankme

packages = "reptrix", "torch", "numpy"


def rank(x):
    "rankme.get_rankme(activations)"
    return rankme.get_rankme(torch.from_numpy(x))

def power(x):
    "alpha.get_alpha(activations)[0]"
    return alpha.get_alpha(torch.from_numpy(x))[0]

def lda_rank(x, group):
    "lidar.get_lidar(activations, num_samples=n//q, num_augs=q)"
    return lidar.get_lidar(torch.from_numpy(x), len(x)//group, group)


measures = {"RankMe": rank, "alpha-ReQ": power, "LiDAR": lda_rank}
notes = {
    "RankMe":
        "The entropy is that of PCA's shares of explained variance, which are squares of the singular values of the "
        "centred matrix; the paper takes the singular values of the matrix itself.",
    "LiDAR":
        "The spectrum is taken by a PCA of the rows of the matrix that LiDAR defines, which gives squares of the "
        "eigenvalues of its rows about their mean, and not its eigenvalues.",
}
