"dimensionality, by the authors of the unbiased participation ratio (Chun et al. 2026)."
import dimensionality

packages = "dimensionality", "numpy"


def unbiased(x):
    "(participation_ratio(Phi, return_all=True)['row'] - 1)/(d - 1)"
    return (dimensionality.participation_ratio(x, return_all=True)["row"] - 1)/(x.shape[1] - 1)


def ratio(x):
    "participation_ratio(Phi, return_all=True)['naive']"
    return dimensionality.participation_ratio(x, return_all=True)["naive"]


measures = {"unbiased IsoScore": unbiased, "participation ratio": ratio}
_note = ("The mean is taken off algebraically, from sums of products of the points as they are; in points far from the "
         "origin, or all the same, rounding exceeds what remains.")
notes = {"unbiased IsoScore": _note, "participation ratio": _note}
