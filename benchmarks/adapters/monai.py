"MONAI's metric of collapsed embeddings."
import torch
from monai.metrics import EmbeddingCollapseMetric

packages = "monai", "torch", "numpy"


def rank_score(x):
    'EmbeddingCollapseMetric(include_indicators=["effective_rank"])(x)["effective_rank_score"]'
    return EmbeddingCollapseMetric(include_indicators=["effective_rank"])(torch.from_numpy(x))["effective_rank_score"]

def cka(x, y):
    'EmbeddingCollapseMetric(include_indicators=["domain_shift"])(x, target_embeddings=y)["domain_shift"]'
    metric = EmbeddingCollapseMetric(include_indicators=["domain_shift"])
    return metric(torch.from_numpy(x), target_embeddings=torch.from_numpy(y))["domain_shift"]


measures = {"effective rank score": rank_score, "plain CKA": cka}
documented = {"effective rank score": dict(constant=1.)}    # "rank-0 ... and the function returns 1.0"
notes = {
    "effective rank score":
        "Rounding of the mean leaves singular values just above zero, so the test for a sum of exactly zero, which "
        "returns the documented 1, does not hold.",
    "plain CKA":
        "The Gram matrices are computed in float32 from points that are not centred, and are centred afterwards; "
        "where the denominator is zero the code returns 0.",
}
