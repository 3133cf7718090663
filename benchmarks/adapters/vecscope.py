"vecscope."
import numpy as np
from vecscope.diagnostics import anisotropy

packages = "vecscope", "numpy"


def directions(x):
    'anisotropy(x)["effective_rank"]'
    return anisotropy(x)["effective_rank"]

def cosine(x):
    'anisotropy(x, seed=i)["mean_random_cosine"], the mean over 400 seeds'
    return np.mean([anisotropy(x, seed=i)["mean_random_cosine"] for i in range(400 if len(x) < 500 else 40)])


measures = {"participation ratio of directions": directions, "mean cosine of random pairs": cosine}
documented = {"participation ratio of directions": dict(constant=0., single=0.)}    # 0 for constant input
notes = {
    "participation ratio of directions":
        "The mean is rounded in float32, so identical rows are not exactly zero once it is subtracted, and the test "
        "for constant input, a total variance of zero, does not hold.",
}
