"""Statistics of paired seeds: Wilcoxon's signed-rank test, Holm's correction, and what a number of seeds can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata, t

ALPHA = 0.05
POWER = 0.8


@dataclass(frozen=True)
class PairedTest:
    """Wilcoxon's signed-rank test of paired differences (n,), exact with ties and zeros too.

    Args:
        n: pairs, those without a difference among them.
        mean: of the differences.
        sd: of the differences; NaN for one pair.
        p_less: one-sided, that the differences are below 0.
        p_greater: one-sided, that they are above 0.
        p_two_sided: that they are not 0.
        agree: how many pairs have the sign of the mean.
    """

    n: int
    mean: float
    sd: float
    p_less: float
    p_greater: float
    p_two_sided: float
    agree: int

    @property
    def lower(self) -> bool:
        """The direction that the ranks point to, which a few seeds can make another than that of the mean."""
        return self.p_less < self.p_greater


def paired_differences(values: Sequence[float], others: Sequence[float]) -> np.ndarray:
    """values - others (n,), to twelve significant digits of the largest score.

    Accuracies are fractions k / N: equal steps of them differ in their last bits, and would not be ties.
    """
    a, b = np.asarray(values, float), np.asarray(others, float)
    largest = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0))
    if not np.isfinite(largest) or largest == 0:
        return a - b
    step = 10.0 ** (math.floor(math.log10(largest)) - 12)
    return np.round((a - b) / step) * step


def paired_test(differences: Sequence[float]) -> PairedTest:
    """Test differences (n,) of paired seeds; pairs without a difference are left out of the ranks, as Wilcoxon did."""
    d = np.asarray(differences, float)
    if not len(d) or not np.isfinite(d).all():
        raise ValueError(f"Paired differences must be finite numbers, and there must be some: {d}.")
    changed = d[d != 0]
    mean = float(d.mean())
    agree = int((np.sign(changed) == np.sign(mean)).sum())
    sd = float(d.std(ddof=1)) if len(d) > 1 else math.nan
    p_less, p_greater = _signed_rank(changed)
    return PairedTest(len(d), mean, sd, p_less, p_greater, min(1.0, 2 * min(p_less, p_greater)), agree)


def _signed_rank(d: np.ndarray) -> tuple[float, float]:
    """P(W <= w) and P(W >= w) of the sum W of the positive ranks, where each sign is as likely as the other.

    By the distribution of W itself, rank by rank: scipy's is exact only up to 13 differences when some are tied, and
    then goes through all signs, which takes a second.
    """
    # Ranks of ties are halves at most: doubled they are places in an array.
    ranks = np.round(2 * rankdata(np.abs(d))).astype(int)
    chance = np.zeros(ranks.sum() + 1)
    chance[0] = 1
    for rank in ranks:
        chance[rank:] = (chance[rank:] + chance[: len(chance) - rank]) / 2
        chance[:rank] /= 2
    seen = ranks[d > 0].sum()
    return min(1.0, float(chance[: seen + 1].sum())), min(1.0, float(chance[seen:].sum()))


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of (n,) values, which are taken as normal over seeds; n is at least 2."""
    x = np.asarray(values, float)
    half = float(t.ppf((1 + level) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return float(x.mean()) - half, float(x.mean()) + half


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (m,) of one family of tests, in the given order."""
    p = np.asarray(p_values, float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted.tolist()


def smallest_p(pairs: int, two_sided: bool = False) -> float:
    """The least p-value that so many pairs can reach: all differences have one sign."""
    return min(1.0, 2.0 ** (int(two_sided) - pairs))


def seeds_to_reach(tests: int, two_sided: bool = False, alpha: float = ALPHA) -> int:
    """The least number of paired seeds with which one test of a family of `tests` can pass Holm at all.

    The first of Holm's steps compares the smallest p with alpha / tests.
    """
    return math.ceil(math.log2(tests / alpha) - 1e-12) + int(two_sided)


def seeds_for_power(
    effect: float, tests: int = 1, two_sided: bool = False, alpha: float = ALPHA, power: float = POWER
) -> int | None:
    """How many paired seeds would show an effect (mean / SD of the differences) with this power; None for no effect.

    That of a paired t-test at alpha / tests by Guenther's formula, times pi / 3, which is Wilcoxon's cost where
    differences are normal (Pitman efficiency), and never fewer than can reach that level at all. It takes the effect
    as if it were known.
    """
    if not math.isfinite(effect) or effect == 0:
        return None
    level = alpha / tests / (2 if two_sided else 1)
    z = float(norm.isf(level))
    needed = ((z + norm.ppf(power)) ** 2 / effect**2 + z**2 / 2) * math.pi / 3
    return max(math.ceil(needed), seeds_to_reach(tests, two_sided, alpha))
