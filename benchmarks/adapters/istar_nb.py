"istar_nb itself."
import istar_nb as inb
import torch
from istar_nb.base.covariance import covariance, participation_ratio

packages = "istar_nb", "torch", "numpy"


def isoscore(x):
    "isoscore(x)"
    return inb.isoscore(x)

def unbiased(x):
    "isoscore_unbiased(x)"
    return inb.isoscore_unbiased(x)

def ratio(x):
    "participation_ratio(covariance(x))"
    return participation_ratio(covariance(x))

def rankme(x):
    "effective_rank(x, eps=1e-7)"
    return inb.effective_rank(x, eps=1e-7)

def cosine(x):
    "mean_cosine(x)"
    return inb.mean_cosine(x)

def two_nn(x):
    "two_nn(x)"
    return inb.two_nn(x)

def plain_cka(x, y):
    "cka(x, y, debiased=False)"
    return inb.cka(x, y, debiased=False)

def debiased_cka(x, y):
    "cka(x, y)"
    return inb.cka(x, y)

def persistence(x):
    "h0_bars(x).sum()"
    return inb.h0_bars(x).sum()

def entropy(x):
    "persistent_entropy(h0_bars(x))"
    return inb.persistent_entropy(inb.h0_bars(x))

def koleo(x):
    "KoLeo()(HiddenStates([x[:, None]], mask))"
    x = torch.from_numpy(x)
    return inb.KoLeo()(inb.HiddenStates([x[:, None]], torch.ones(len(x), 1)))


def streamed(metric, x):
    "Two metrics with a part each, merged."
    first, *rest = ([metric(), part] for part in x)
    for own, part in (first, *rest): own.update(part)
    for own, _ in rest: first[0].merge_state(own)
    return first[0].compute()


measures = {"IsoScore": isoscore, "unbiased IsoScore": unbiased, "participation ratio": ratio, "RankMe": rankme,
            "mean cosine": cosine, "TwoNN": two_nn, "plain CKA": plain_cka, "debiased CKA": debiased_cka,
            "total H0 persistence": persistence, "persistent entropy": entropy, "KoLeo": koleo}
parts = {"IsoScore": lambda x: streamed(inb.IsoScoreMetric, x),
         "participation ratio": lambda x: streamed(inb.IsotropyMetrics, x)["participation_ratio"],
         "mean cosine": lambda x: streamed(inb.IsotropyMetrics, x)["mean_cosine"]}
documented = {"KoLeo": dict(single=0.)}    # in training, zero for a batch that is too small, with a warning
