"spectralyte."
from spectralyte.metrics import anisotropy, dimensionality, intrinsic_dim

packages = "spectralyte", "numpy"


def cosine(x):
    "anisotropy.compute(x).score"
    return anisotropy.compute(x).score

def ratio(x):
    "dimensionality.compute(x).participation_ratio"
    return dimensionality.compute(x).participation_ratio

def two_nn(x):
    "intrinsic_dim.compute(x).d_int"
    return intrinsic_dim.compute(x).d_int


measures = {"mean cosine": cosine, "participation ratio": ratio, "TwoNN, free line": two_nn}
notes = {
    "mean cosine":
        "The score is clipped to [0, 1], and a mean cosine can be negative.",
    "participation ratio":
        "Rounding of the mean leaves one direction, whose participation ratio is 1; the code also returns 1 where "
        "nothing is left.",
    "TwoNN, free line":
        "`scipy.stats.linregress` fits an intercept; the line of Facco et al. has none.",
}
