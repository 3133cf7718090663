"ripser."
import numpy as np
from ripser import ripser

packages = "ripser", "numpy"


def persistence(x):
    'deaths = ripser(x, maxdim=0)["dgms"][0][:, 1]; deaths[isfinite(deaths)].sum()'
    deaths = ripser(x, maxdim=0)["dgms"][0][:, 1]
    return deaths[np.isfinite(deaths)].sum()


measures = {"total H0 persistence": persistence}
