"IsoScore, the authors' package."
import IsoScore.IsoScore
import torch

packages = "IsoScore", "torch", "numpy"


def isoscore(x):
    "IsoScore.IsoScore.IsoScore(points)"
    return IsoScore.IsoScore.IsoScore(torch.from_numpy(x))


measures = {"IsoScore": isoscore}
notes = {"IsoScore": "Rounding of the mean leaves one direction, whose score is 0 up to rounding."}
