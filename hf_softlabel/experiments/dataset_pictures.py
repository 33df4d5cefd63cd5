"""The figures of `Soft-Label Training Preserves Epistemic Uncertainty`: data sets, soft against majority labels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..figures.entropy import entropy_histograms
from ..figures.examples import example_panels
from ..figures.seeds import paired_bars
from ..figures.sweep import WIDTH
from ..metrics import entropy
from ..metrics.arrays import human, model
from ..metrics.summary import TITLES
from . import published
from .captions import count
from .content import Picture
from .published import EPISTEMIC
from .runs import Run
from .setting import Setting, metric

COMPARED = ("soft", "majority")
SCORES = ("kl", "entropy_correlation")
THEIR_DATA = ("chaosnli", "popquorn", "cifar10h")
# Figure 1 goes from agreement to disagreement: each panel's example is agreed on less than this share of them all.
SHARES = (0.5, 0.75, 0.9, 0.98)
AMBIGUOUS = 4
# Of a histogram's title.
CHARACTERS = 28


class HeldOut(NamedTuple):
    """Mean probabilities (N, C) over the runs that held an example out, and how many these are, (N,)."""

    ids: np.ndarray
    votes: np.ndarray
    mean: np.ndarray
    runs: np.ndarray


def held_out(runs: Iterable[Run]) -> HeldOut:
    """The examples of all runs' eval splits, by id."""
    read = [run.predictions() for run in runs]
    ids, first, place, times = np.unique(
        np.concatenate([one.ids for one in read]), return_index=True, return_inverse=True, return_counts=True
    )
    q = np.concatenate([model(one.values, one.from_logits) for one in read])
    total = np.zeros((len(ids), q.shape[1]))
    np.add.at(total, place, q)
    return HeldOut(ids, np.concatenate([one.votes for one in read])[first], total / times[:, None], times)


def example_pictures(setting: Setting) -> list[Picture]:
    """Soft and majority labels on single examples: from agreed on to disputed, and the most ambiguous."""
    runs = {method: setting.predicted(method) for method in COMPARED}
    if not all(runs.values()):
        return []
    found = {method: held_out(by_seed.values()) for method, by_seed in runs.items()}
    soft, majority = found.values()
    ids, mine, theirs = np.intersect1d(soft.ids, majority.ids, return_indices=True)
    if not len(ids):
        return []
    p = human(soft.votes[mine])
    # Rounding, so that examples that are as much disagreed on come in their own order.
    order = np.argsort(entropy(p).round(12), kind="stable")
    means = {"annotators": p, "soft": soft.mean[mine], "majority": majority.mean[theirs]}
    class_names = next(iter(runs["soft"].values())).class_names
    over = (
        f"Bars: the annotators' distribution, and each delivery's mean probabilities over the seeds that held the "
        f"example out ({count([*soft.runs[mine], *majority.runs[theirs]])}). KL: from the annotators to the model."
    )

    def picture(key: str, title: str, what: str, rows: Sequence[int], numbers: str) -> Picture:
        titles = [f"example {ids[row]}, entropy {entropy(p[row : row + 1])[0]:.2f}" for row in rows]
        panels = {title: {name: q[row] for name, q in means.items()} for title, row in zip(titles, rows, strict=True)}
        return Picture(key, title, f"{what} {over}", example_panels(panels, class_names), f"{EPISTEMIC}, {numbers}")

    disputed = list(dict.fromkeys(int(order[int(share * (len(order) - 1))]) for share in SHARES))
    shares = ", ".join(f"{share:.0%}" for share in SHARES)
    return [
        picture(
            "examples-range",
            "From agreement to disagreement",
            f"Held-out examples: at least as much disagreed on as {shares} of all.",
            disputed,
            "Figures 1 and 2",
        ),
        picture(
            "examples-ambiguous",
            "The most ambiguous examples",
            "The held-out examples with the largest entropy of the votes.",
            order[::-1][:AMBIGUOUS].tolist(),
            "Figure 5",
        ),
    ]


def report_pictures(settings: Sequence[Setting]) -> list[Picture]:
    """The figures that compare data sets."""
    return [picture for picture in (entropy_picture(settings), soft_or_majority(settings)) if picture is not None]


def entropy_picture(settings: Sequence[Setting]) -> Picture | None:
    votes = {}
    for setting in settings:
        title = "\n".join(textwrap.wrap(dataset_name(setting), CHARACTERS))
        # All runs of a seed hold the same examples out.
        by_seed = {run.seed: run for run in setting.runs if run.has_predictions}
        if title not in votes and by_seed:
            votes[title] = held_out(by_seed.values()).votes
    if not votes:
        return None
    figure = entropy_histograms(votes)
    figure.set_figwidth(min(figure.get_figwidth(), WIDTH))
    return Picture(
        "annotator-entropy",
        "How much people disagree",
        "Entropy of the annotators' votes divided by the logarithm of the number of classes, over all examples that a "
        "seed held out, each once. Dashed: the mean.",
        figure,
        f"{EPISTEMIC}, Figure 3",
    )


def dataset_name(setting: Setting) -> str:
    """Data set and subset: what the name of a setting begins with."""
    return setting.name.split(", ")[0]


def soft_or_majority(settings: Sequence[Setting]) -> Picture | None:
    both = [setting for setting in settings if all(setting.get(method) for method in COMPARED)]
    if not both:
        return None
    names = [dataset_name(setting) for setting in both]
    # Settings of one data set are told apart by their whole names.
    labels = [setting.name if names.count(name) > 1 else name for setting, name in zip(both, names, strict=True)]
    panels = {
        TITLES[key]: {
            label: {method: setting.values(metric(key), method) for method in COMPARED}
            for label, setting in zip(labels, both, strict=True)
        }
        for key in SCORES
    }
    paper = ""
    if any(setting.dataset in THEIR_DATA for setting in both):
        paper = (
            f" The paper, on average over its data sets and models: {published.KL_REDUCTION:.0%} less KL and "
            f"{published.CORRELATION_GAIN:.0%} more correlation with soft labels."
        )
    n = count(len(setting.get(method)) for setting in both for method in COMPARED)
    return Picture(
        "soft-or-majority",
        "Soft labels against the majority vote",
        f"KL from the annotators to the model (lower is better), and Spearman's correlation of both entropies (higher "
        f"is better), on the eval split. Bars: means over {n}; points: seeds, each seed's joined by a line.{paper}",
        paired_bars(panels),
        EPISTEMIC,
    )
