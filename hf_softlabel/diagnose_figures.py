"""The pictures of a [`Diagnosis`]."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from .data.images import VotesImages
from .diagnose import Diagnosis, RunDiagnosis
from .diagnostics.batches import TrainerBatches
from .diagnostics.gradcam import grad_cam
from .figures import (
    cka_heatmap,
    gradcam_overlays,
    gradient_variance_scatter,
    hessian_bars,
    interpolation_curves,
    ood_histograms,
    ood_roc,
    save,
)
from .figures.sources import run_name
from .metrics import entropy
from .metrics.arrays import human
from .preparation import votes_and_ids

EXAMPLES = 4
# Pairs in one picture: of many runs there are several pictures.
PAIRS = 12
# Classes that are named beside an image.
CLASSES = 3


def plot_diagnosis(diagnosis: Diagnosis, folder: str | Path) -> list[Path]:
    """Draw everything that was measured, as PNG and PDF in the folder; returns their paths.

    `hessian`, `cka`, `interpolation` and `gradcam` are of all runs; `gradient_variance`, `ood_roc` and
    `ood_<detector>` of each, whose name follows. What was not measured is not drawn.
    """
    written = []
    for name, figure in tqdm(_figures(diagnosis), desc="pictures", unit="picture", disable=None, leave=False):
        written += save(figure, Path(folder) / name)
    return written


def run_names(runs: list[Path]) -> list[str]:
    """'sls, seed 3' for each run; runs of one delivery and seed are told apart by their folders, or by a number."""
    names = [run_name(run) for run in runs]
    for ends in ([run.resolve().name for run in runs], range(1, len(runs) + 1)):
        # As file names they must differ too.
        slugs = [_slug(name) for name in names]
        names = [
            name if slugs.count(slug) == 1 else f"{name}, {end}"
            for name, slug, end in zip(names, slugs, ends, strict=True)
        ]
    return names


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def _figures(diagnosis: Diagnosis) -> Iterator[tuple[str, Figure]]:
    names = run_names([found.run for found in diagnosis.runs])
    runs = dict(zip(names, diagnosis.runs, strict=True))
    hessians = {name: found.results["hessian"] for name, found in runs.items() if "hessian" in found.results}
    if hessians:
        yield "hessian", hessian_bars(hessians)
    if diagnosis.pairs:
        yield from _pair_figures(diagnosis, names)
    overlays = _overlays(runs)
    if overlays is not None:
        yield "gradcam", overlays
    for name, found in runs.items():
        variance = found.variance
        if variance is not None:
            scatter = gradient_variance_scatter(variance.variance, variance.entropy, variance.correlation, name)
            yield f"gradient_variance_{_slug(name)}", scatter
        if found.ood_scores:
            yield f"ood_roc_{_slug(name)}", ood_roc(found.ood_scores, name)
            for detector in found.ood_scores["in"]:
                scores = {title: some[detector] for title, some in found.ood_scores.items()}
                yield f"ood_{detector}_{_slug(name)}", ood_histograms(scores, detector, name)


def _pair_figures(diagnosis: Diagnosis, names: list[str]) -> Iterator[tuple[str, Figure]]:
    matrix = np.eye(len(names))
    barriers = {}
    # In the order in which `diagnose` compares them.
    for (i, j), pair in zip(combinations(range(len(names)), 2), diagnosis.pairs, strict=True):
        matrix[i, j] = matrix[j, i] = np.nan if pair.cka is None else pair.cka
        if pair.barrier is not None:
            barriers[f"{names[i]} – {names[j]}"] = pair.barrier
    yield "cka", cka_heatmap(names, matrix)
    titles = list(barriers)
    for start in range(0, len(titles), PAIRS):
        end = f"_{start // PAIRS + 1}" if len(titles) > PAIRS else ""
        yield f"interpolation{end}", interpolation_curves({t: barriers[t] for t in titles[start : start + PAIRS]})


def _overlays(runs: dict[str, RunDiagnosis]) -> Figure | None:
    """Grad-CAM of all runs on images, on the examples of all their eval splits that people disagree on most."""
    runs = {name: found for name, found in runs.items() if isinstance(found.trainer.eval_dataset, VotesImages)}
    if not runs:
        return None
    places = []
    for found in runs.values():
        _, ids = votes_and_ids(found.trainer.eval_dataset)
        places.append({int(example): row for row, example in enumerate(ids)})
    common = [example for example in places[0] if all(example in place for place in places)]
    if not common:
        return None
    dataset = next(iter(runs.values())).trainer.eval_dataset
    rows = np.array([places[0][example] for example in common])
    p = human(dataset.column("votes")[rows])
    # Rounding, so that examples that are as much disagreed on come in their own order.
    chosen = np.argsort(-entropy(p).round(12), kind="stable")[:EXAMPLES]
    images = dataset.column("pixel_values")[rows[chosen]].permute(0, 2, 3, 1).numpy()
    maps = {}
    for (name, found), place in zip(runs.items(), places, strict=True):
        # Each model gets the images as its own trainer prepares them.
        own = [place[common[i]] for i in chosen]
        parts = [
            grad_cam(found.trainer.model, inputs, votes.argmax(-1)).float().cpu().numpy()
            for inputs, votes in TrainerBatches(found.trainer, found.trainer.eval_dataset, own, gradients=True)
        ]
        maps[name] = np.concatenate(parts)
    titles = [_title(common[i], p[i], dataset.names) for i in chosen]
    return gradcam_overlays(images, maps, titles)


def _title(example: int, p: np.ndarray, class_names: list[str]) -> str:
    """Whose map it is, that of the class with the most votes, and what people voted."""
    most = [k for k in np.argsort(-p, kind="stable")[:CLASSES] if p[k] > 0]
    votes = "\n".join(f"{class_names[k]} {p[k]:.0%}" for k in most)
    return f"example {example}\n{votes}\nmaps of {class_names[most[0]]}"
