"DADApy."
from dadapy import Data

packages = "dadapy", "numpy"


def two_nn(x):
    "data = Data(x); data.compute_distances(maxk=3); data.compute_id_2NN()[0]"
    data = Data(x, verbose=False, n_jobs=1)
    data.compute_distances(maxk=3)
    return data.compute_id_2NN()[0]


measures = {"TwoNN": two_nn}
notes = {"TwoNN": "The first distance of a duplicate is zero and its ratio infinite, which reaches the fit; "
                  "`remove_identical_points` removes duplicates beforehand."}
