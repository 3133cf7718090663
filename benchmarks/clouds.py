"""Clouds of points whose measures are known in closed form, and what each published definition gives for them.

Most clouds are columns of a Hadamard matrix times chosen lengths: every row has the same norm, the mean is exactly
zero, and the squared singular values are chosen. So IsoScore, RankMe, cosines, CKA and what else depends on the
spectrum have one exact value, before and after each change that a check makes. `definitions` has the formulas.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Cloud:
    "Points, and the facts from which every definition follows."
    x: np.ndarray                    # (n, d)
    y: np.ndarray|None = None        # (n, e): the same points in another model
    group: int|None = None           # consecutive rows that are views of one sample
    n: float = 0                     # number of points; infinite for the distribution itself
    squares: np.ndarray|None = None  # squared lengths of the columns along the axes, before they are rotated
    others: np.ndarray|None = None   # the same of `y`
    shared: int = 0                  # leading axes that `x` and `y` have in common
    offset: float = 0.               # squared distance of the mean from the origin
    ratios: np.ndarray|None = None   # distance to the second neighbour over that to the first, of every point
    dimension: float = 0.            # of the distribution
    bars: np.ndarray|None = None     # lengths of the H0 barcode

    @property
    def d(self): return self.x.shape[1]


def hadamard(n):
    "Sylvester's matrix of signs; n is a power of two."
    signs = np.ones((1, 1))
    while len(signs) < n: signs = np.block([[signs, signs], [signs, -signs]])
    return signs


def rotation(d, seed): return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


def axes(squares, n, d, offset=0., others=None, drawn=None, copies=1):
    "A cloud with chosen squared lengths; `drawn` is a seed for independent random signs, which are a population's."
    r, shared = len(squares), len(squares)//2
    signs = hadamard(n)[:, 1:] if drawn is None else np.random.default_rng(drawn).choice([-1., 1.], (n, 2*r))
    x = np.zeros((n, d))
    x[:, :r], x[:, r:r+1] = signs[:, :r]*np.sqrt(squares), math.sqrt(offset)
    y = None if others is None else np.c_[signs[:, :shared], signs[:, r:2*r-shared]]*np.sqrt(others) @ rotation(r, 1)
    x, y = np.repeat(x @ rotation(d, 0), copies, 0), None if y is None else np.repeat(y, copies, 0)
    return Cloud(x, y, n=len(x) if drawn is None else math.inf, squares=np.asarray(squares), others=others,
                 shared=shared, offset=offset)


def families(squares, samples, d, within=0.1, drawn=None):
    "Groups of 16 views of each sample, whose scatter within groups is the same in all d = 15 directions."
    means = axes(squares, samples, d, drawn=drawn)
    signs = hadamard(16)[:, 1:]
    if drawn is not None: signs = np.random.default_rng(drawn + 1).choice([-1., 1.], (samples, 16, d))
    x = means.x[:, None] + within*signs
    return replace(means, x=x.reshape(-1, d), group=16, n=len(x)*16)


def neighbour_ratios(x):
    "Second over first distance of every point that has no exact double, by differences in float64."
    apart = np.sqrt(((x[:, None] - x[None])**2).sum(2))
    np.fill_diagonal(apart, np.inf)
    first, second = np.partition(apart, 1, axis=1)[:, :2].T
    return second[first > 0]/first[first > 0]


def triangles(count, d=8, copies=()):
    "Triangles of sides 1 < b < c far apart from each other, so that every ratio of distances is known: b, c and c/b."
    rng = np.random.default_rng(0)
    b = rng.uniform(1.05, 1.9, count)
    c = rng.uniform(b*1.02, b*.1 + (1 + b)*.88)
    u = (1 + b**2 - c**2)/2    # the third corner, seen from the first; the second is one away from it
    corners = np.zeros((count, 3, d))
    corners[:, 1, 0], corners[:, 2, 0], corners[:, 2, 1] = 1, u, np.sqrt(b**2 - u**2)
    corners[:, :, :8] += 20*np.stack([np.arange(count)//3**k % 3 for k in range(8)], 1)[:, None]
    x = corners.reshape(-1, d) @ rotation(d, 0)
    ratios = np.concatenate([b, c, c/b])
    if len(copies): x = np.r_[x, x[list(copies)]]
    return Cloud(x, n=len(x), ratios=neighbour_ratios(x) if len(copies) else ratios)


def line(gaps, d=8, copies=1, offset=0.):
    "Points on a line with chosen gaps, which are the bars."
    x = np.outer(np.r_[0, np.cumsum(gaps)], rotation(d, 0)[0]) + offset
    return Cloud(np.repeat(x, copies, 0), n=copies*len(x), bars=np.asarray(gaps, float))


def entropy(p): return -(p[p > 0]*np.log(p[p > 0])).sum()
def participation(squares): return squares.sum()**2/(squares**2).sum()


def rankme(c):
    "With the paper's ε = 1e-7, which every one of min(n, d) singular values gets."
    sigma = np.sqrt(np.r_[c.squares, c.offset])
    p = np.zeros(int(min(c.n, c.d)))
    p[:len(sigma)] = (sigma/sigma.sum())[:len(p)]
    return math.exp(-((p + 1e-7)*np.log(p + 1e-7)).sum())


def rank_score(c):
    sigma = np.sqrt(c.squares)
    return 1 - math.exp(entropy(sigma/sigma.sum()))/min(c.n - 1, c.d)


def unbiased_isoscore(c):
    "With the unbiased tr(Σ²) and tr(Σ)² of Himeno & Yamada (2014), for rows of one norm."
    if math.isinf(c.n): return (participation(c.squares) - 1)/(c.d - 1)
    n, total = c.n, c.squares.sum()
    squared, trace = (n/(n-1))**2*(c.squares**2).sum(), n/(n-1)*total
    q = n*total**2/(n-1)
    return (((2*squared + (n*n - 3*n + 1)*trace**2 - n*q)/((n-1)*(n-2)*squared + trace**2 - n*q)) - 1)/(c.d - 1)


def mean_cosine(c):
    share = c.offset/(c.squares.sum() + c.offset)
    return share if math.isinf(c.n) else (c.n*share - 1)/(c.n - 1)


def plain_cka(c):
    common = (c.squares*c.others)[:c.shared].sum()
    return common/math.sqrt((c.squares**2).sum()*(c.others**2).sum())


def debiased_cka(c):
    "With the HSIC of Song et al. (2012): Gram matrices with a constant diagonal, which it leaves out."
    if math.isinf(c.n): return plain_cka(c)
    n, k, l = c.n, c.squares.sum(), c.others.sum()
    def hsic(common, a, b): return n*n*common - n*a*b + n*n*a*b/((n-1)*(n-2)) - 2*n*a*b/(n-2)
    own = hsic((c.squares**2).sum(), k, k)*hsic((c.others**2).sum(), l, l)
    return hsic((c.squares*c.others)[:c.shared].sum(), k, l)/math.sqrt(own)


def line_through(c, origin):
    "Slope of -ln(1 - F) on ln μ for the smallest nine tenths of the ratios, F = i/N."
    if c.ratios is None: return c.dimension
    kept = int(0.9*len(c.ratios))
    u, v = np.log(np.sort(c.ratios)[:kept]), -np.log(1 - np.arange(1, kept + 1)/len(c.ratios))
    return (u @ v)/(u @ u) if origin else ((u - u.mean()) @ v)/((u - u.mean()) @ u)


def koleo(c):
    "Every pair of a simplex is equally far apart."
    return -math.log(2*(len(c.squares) + 1)*c.squares[0]/(c.squares.sum() + c.offset))/2


@dataclass(frozen=True)
class Definition:
    "A published quantity."
    family: str               # of clouds
    words: str                # the formula, and where it is from
    of: Callable[[Cloud],float]
    constant: float|None = None # its value for points that are all the same and not zero; None where it has none
    single: float|None = None   # the same for one point
    about: str = "mean"         # or "origin": whether a shift changes it
    slack: float = 0.           # of an answer that is itself drawn
    cited: str|None = None      # the definition of the paper that the package cites, where the package's own is another


definitions = {
    "IsoScore": Definition("axes",
        "(PR - 1)/(d - 1), PR the participation ratio of the sample covariance (Rudman et al. 2022; Rudman & Eickhoff "
        "2024)", lambda c: (participation(c.squares) - 1)/(c.d - 1)),
    "unbiased IsoScore": Definition("axes",
        "(R - 1)/(d - 1), R the ratio of the unbiased estimates of tr(Σ)² and tr(Σ²) (Himeno & Yamada 2014; Chun et "
        "al. 2026)",
        unbiased_isoscore),
    "participation ratio": Definition("axes",
        "(Σλ)²/Σλ², λ the eigenvalues of the sample covariance", lambda c: participation(c.squares)),
    "participation ratio of directions": Definition("axes",
        "(Σλ)²/Σλ², λ the eigenvalues of the covariance of the points divided by their norms",
        lambda c: participation(c.squares), about="origin"),
    "RankMe": Definition("axes",
        "exp(-Σ p ln p), p = σ/Σσ + 1e-7, σ the singular values of the matrix as it is, not centred (Garrido et al. "
        "2023)", rankme, 1., 1., "origin"),
    "effective rank score": Definition("axes",
        "1 - exp(-Σ p ln p)/min(n - 1, d), p = σ/Σσ, σ the singular values of the centred matrix (Roy & Vetterli 2007)",
        rank_score),
    "LiDAR": Definition("families",
        "exp(-Σ p ln p), p = λ/Σλ, λ the eigenvalues of the scatter of group means in units of the scatter within "
        "groups (Thilak et al. 2023)", lambda c: math.exp(entropy(c.squares/c.squares.sum()))),
    "alpha-ReQ": Definition("power", "α of the eigenvalues i^-α of the covariance (Agrawal et al. 2022)", lambda c: 1.),
    "mean cosine": Definition("axes",
        "mean cosine of all pairs of different points (Ethayarajh 2019)", mean_cosine, 1., about="origin"),
    "mean cosine of random pairs": Definition("axes",
        "mean cosine of random pairs of points (Ethayarajh 2019), here over many seeds and within 0.01",
        mean_cosine, 1., about="origin", slack=0.01),
    "TwoNN": Definition("triangles",
        "slope of the line through the origin of -ln(1 - F) on ln μ, the largest tenth of μ left out (Facco et al. "
        "2017)", lambda c: line_through(c, True)),
    "TwoNN, free line": Definition("triangles",
        "minus the slope of the least-squares line, with an intercept, of ln(1 - F) on ln μ, the largest tenth of μ "
        "left out", lambda c: line_through(c, False), cited="TwoNN"),
    "plain CKA": Definition("axes",
        "‖XᵀY‖²/(‖XᵀX‖·‖YᵀY‖) of centred X and Y (Kornblith et al. 2019)", plain_cka),
    "debiased CKA": Definition("axes",
        "HSIC₁(X, Y)/√(HSIC₁(X, X)·HSIC₁(Y, Y)) (Song et al. 2012; Nguyen et al. 2020)", debiased_cka),
    "total H0 persistence": Definition("line",
        "sum of the finite bars of dimension 0 of the Vietoris-Rips barcode", lambda c: c.bars.sum(), 0., 0.),
    "persistent entropy": Definition("line",
        "-Σ p ln p, p = ℓ/Σℓ, ℓ the finite bars of dimension 0 above zero",
        lambda c: entropy(c.bars/c.bars.sum()), 0., 0.),
    "persistent entropy in bits": Definition("line",
        "-Σ p log₂ p, p = ℓ/Σℓ, ℓ the finite bars of dimension 0 above zero",
        lambda c: entropy(c.bars/c.bars.sum())/math.log(2), 0., 0.),
    "KoLeo": Definition("simplex",
        "-mean ln of the distance to the nearest other direction (Sablayrolles et al. 2019)", koleo, about="origin"),
}

slow = 1/np.arange(1, 25)**.5
spectra = dict(axes=1/np.arange(1, 25), power=1/np.arange(1, 128), simplex=np.full(15, .4), families=1/np.arange(1, 13))
base = dict(axes=lambda **more: axes(**dict(squares=spectra["axes"], n=64, d=26, others=slow, offset=2.) | more),
            power=lambda **more: axes(**dict(squares=spectra["power"], n=128, d=128) | more),
            simplex=lambda **more: axes(**dict(squares=spectra["simplex"], n=16, d=18) | more),
            families=lambda **more: families(spectra["families"], **dict(samples=32, d=15) | more),
            triangles=lambda **more: triangles(**dict(count=100) | more),
            line=lambda **more: line(**dict(gaps=np.r_[1., 2, 1, 4, 1, 3, 7, 2]) | more))
