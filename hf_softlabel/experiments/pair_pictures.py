"""The figures of what `hf-softlabel diagnose` measured between two runs: Grad-CAM, CKA and the loss between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np

from ..figures.bands import barrier_lines
from ..figures.seeds import seed_bars
from . import published
from .captions import count, hollow, means
from .content import Picture
from .published import BASINS
from .runs import Pair
from .setting import Setting, in_order
from .tables import Published


def pair_pictures(setting: Setting) -> list[Picture]:
    """Every figure for which pairs of the setting's runs were compared."""
    return [picture for picture in (gradcam(setting), cka(setting), barrier(setting)) if picture is not None]


def _pair_name(pair: Pair) -> str | None:
    """What a pair compares: seeds of one method, or two methods with one seed; None for anything else."""
    runs = (pair.first, pair.second)
    if any(run.votes_per_example is not None or run.resample_every != 1 for run in runs):
        return None
    methods = in_order(run.method for run in runs)
    if len(methods) == 1:
        return methods[0] if pair.first.seed != pair.second.seed else None
    return " / ".join(methods) if pair.first.seed == pair.second.seed else None


def _pair_bars(
    setting: Setting,
    key: str,
    title: str,
    what: str,
    scores: Mapping[str, Callable[[Pair], float | None]],
    source: str,
    paper: Mapping[str, Mapping[str, Published]],
) -> Picture | None:
    methods = setting.methods()
    names = [*methods, *(" / ".join(some) for some in combinations(methods, 2))]
    panels: dict[str, dict[str, list[float]]] = {panel: {} for panel in scores}
    for name in names:
        pairs = [pair for pair in setting.pairs if _pair_name(pair) == name]
        for panel, score in scores.items():
            values = [value for value in map(score, pairs) if value is not None]
            if values:
                label = f"{name}, same seed" if "/" in name else name
                panels[panel][label] = values
    if not any(panels.values()):
        return None
    theirs = {panel: means(paper[panel], values) for panel, values in panels.items()} if setting.has_paper else {}
    n = count((len(values) for some in panels.values() for values in some.values()), "pair")
    caption = (
        f"{what} Of a delivery: between its runs of two seeds, on the examples that both held out; a / b: between "
        f"the two deliveries' runs of one seed. Large marks: means over {n}, with ± SD over pairs (which share runs, "
        f"and so are not independent); points: pairs.{hollow(theirs)}"
    )
    return Picture(key, title, caption, seed_bars(panels, theirs, "pair", from_zero=False), source)


def gradcam(setting: Setting) -> Picture | None:
    keys = {"all images": "correlation", "high-disagreement slice": "high_disagreement"}
    scores = {f"correlation, {where}": _pair_value("gradcam", key) for where, key in keys.items()}
    paper = {
        panel: {method: figures[i] for method, figures in published.GRADCAM.items()} for i, panel in enumerate(scores)
    }
    what = "Correlation of two models' Grad-CAM maps of an image, the mean over images."
    return _pair_bars(setting, "gradcam", "Grad-CAM stability", what, scores, f"{BASINS}, Figure 9", paper)


def cka(setting: Setting) -> Picture | None:
    panel = "linear CKA"
    what = "Similarity of two models' penultimate features."
    scores, paper = {panel: _pair_value("cka")}, {panel: published.CKA}
    return _pair_bars(setting, "cka", "Representation similarity", what, scores, f"{BASINS}, Figure 12", paper)


def _pair_value(*path: str) -> Callable[[Pair], float | None]:
    """A number that `diagnose` measured between two runs; None where it was not, or is undefined."""

    def score(pair: Pair) -> float | None:
        value = pair.results
        for key in path:
            value = (value or {}).get(key)
        return value

    return score


def barrier(setting: Setting) -> Picture | None:
    """The line from SLS to soft labels of the same seed."""
    found = []
    for pair in setting.pairs:
        line = pair.results.get("barrier")
        if line is not None and _pair_name(pair) == "soft / sls":
            # From sls to soft, however the two were given.
            found.append((line, slice(None) if pair.first.method == "sls" else slice(None, None, -1)))
    # Lines that were measured at other places have no mean with the others.
    lines = [(line, order) for line, order in found if line["alphas"] == found[0][0]["alphas"]]
    if not lines:
        return None
    curves, texts = {}, []
    for key, name in (("losses", "batch norm interpolated"), ("reestimated_losses", "batch norm re-estimated")):
        losses = [line[key][order] for line, order in lines if line.get(key) is not None]
        if losses:
            barriers = [line[key.replace("losses", "barrier")] for line, _ in lines if line.get(key) is not None]
            curves[name] = np.array(losses, float)
            texts.append(f"{np.mean(np.array(barriers, float)):.2f} ({name})")
    paper = f" (the paper: {published.BARRIER.mean})" if setting.has_paper else ""
    return Picture(
        "loss-barrier",
        "Loss barrier",
        f"Soft cross-entropy on the eval split along the straight line between the weights of SLS and of soft labels "
        f"of the same seed, {count([len(lines)], 'pair')}. Mean barrier above the chord: {', '.join(texts)}{paper}.",
        barrier_lines(np.array(lines[0][0]["alphas"], float), curves, ("sls", "soft")),
        f"{BASINS}, Figure 11",
    )
