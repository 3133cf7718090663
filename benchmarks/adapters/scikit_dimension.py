"scikit-dimension."
import skdim

packages = "scikit-dimension", "numpy"


def two_nn(x):
    "skdim.id.TwoNN().fit(X).dimension_"
    return skdim.id.TwoNN().fit(x).dimension_


measures = {"TwoNN": two_nn}
