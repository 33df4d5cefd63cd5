"""`hf-softlabel diagnose`: geometry, OOD and representations of finished runs, and between them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from .build import open_run
from .callbacks.diagnostics import HessianCallback, OODCallback, UncertaintyCallback
from .callbacks.recipe import load_ood_sets, plain, write_diagnostics
from .checkpoint import write_text_atomically
from .data.errors import VotesError
from .diagnostics.barrier import LossBarrier, loss_barrier
from .diagnostics.batches import TrainerBatches, high_disagreement
from .diagnostics.cka import linear_cka
from .diagnostics.gradcam import GradCamStability, gradcam_stability
from .diagnostics.gradient_variance import GradientVariance, gradient_variance
from .diagnostics.ood import DETECTORS
from .diagnostics.outputs import collect_outputs, last_linear
from .preparation import holds_pixels, votes_and_ids
from .trainer import VotesTrainer


@dataclass(frozen=True)
class DiagnoseOptions:
    """What to measure.

    Args:
        hessian: lambda_max and trace.
        rtol: the relative error that they are to reach.
        hessian_examples: the Hessian of the first so many eval examples; by default all.
        ood_sets: `NAME=SOURCE[:SUBSET][#SPLIT]` for each OOD set.
        ood_examples: so many examples of each.
        slice_share: the high-disagreement slice, by the entropy of the votes.
        points: of the line between two models.
        train_examples: for batch norm's statistics on that line, and KNN's neighbours.
        sources: where the votes lie now.
        ood_sources: the folder with the authors' files, for OOD sets that are data sets of votes.
    """

    hessian: bool = True
    rtol: float = 0.05
    hessian_examples: int | None = None
    ood_sets: tuple[str, ...] = ()
    ood_examples: int | None = None
    slice_share: float = 0.1
    points: int = 11
    train_examples: int = 2000
    sources: str | None = None
    ood_sources: str | None = None


@dataclass(frozen=True)
class RunDiagnosis:
    """A run, its trainer, what was measured (as in diagnostics.json), and arrays for the pictures.

    `variance` is None for models without a linear layer of the classes at their end, as multiple choice has none.
    """

    run: Path
    trainer: VotesTrainer
    results: dict[str, Any]
    ood_scores: dict[str, dict[str, np.ndarray]]
    variance: GradientVariance | None


@dataclass(frozen=True)
class PairDiagnosis:
    """Two runs on the examples that both held out.

    What does not apply is None: `cka` without features, `barrier` for different networks, `gradcam` for texts, and
    these two where the runs' tokenizers or image processors give their models different inputs.
    """

    first: Path
    second: Path
    examples: int
    same_inputs: bool
    cka: float | None
    barrier: LossBarrier | None
    gradcam: GradCamStability | None
    gradcam_high_disagreement: float | None


def diagnose_run(run: str | Path, options: DiagnoseOptions) -> RunDiagnosis:
    """Measure one finished run and add the results to its diagnostics.json."""
    run = Path(run)
    trainer, _ = open_run(run, options.sources)
    results: dict[str, Any] = {"uncertainty": UncertaintyCallback(trainer, 0, options.slice_share).measure()}
    variance = None
    if has_features(trainer):
        outputs = collect_outputs(trainer.model, TrainerBatches(trainer, trainer.eval_dataset), True, "features")
        variance = gradient_variance(outputs.features, outputs.p)
        results["gradient_variance"] = {
            "mean": float(variance.variance.mean()),
            "entropy_correlation": variance.correlation,
            "label_entropy_correlation": variance.label_correlation,
        }
    scores: dict[str, dict[str, np.ndarray]] = {}
    if options.ood_sets:
        outside = load_ood_sets(trainer, options.ood_sets, options.ood_examples, options.ood_sources)
        ood = OODCallback(trainer, outside, train_examples=options.train_examples)
        results["ood"], scores = ood.measure(), ood.scores
    if options.hessian:
        hessian = HessianCallback(trainer, 0, options.rtol, options.hessian_examples, options.slice_share)
        results["hessian"] = hessian.measure()
    if trainer.args.process_index == 0:
        write_diagnostics(run, results)
    return RunDiagnosis(run, trainer, results, scores, variance)


def diagnose_pair(first: RunDiagnosis, second: RunDiagnosis, options: DiagnoseOptions) -> PairDiagnosis:
    """Compare two runs on the examples that neither was trained on, each with its own tokenizer or image processor."""
    one, two = first.trainer, second.trainer
    rows, there = _common_rows(one, two)
    batches = TrainerBatches(one, one.eval_dataset, rows, batch_size=one.args.eval_batch_size)
    others = TrainerBatches(two, two.eval_dataset, there, batch_size=one.args.eval_batch_size)
    cka = barrier = gradcam = gradcam_high = None
    if has_features(one) and has_features(two):
        pairs = ((one.model, batches), (two.model, others))
        cka = linear_cka(*(collect_outputs(model, some, True, "features").features for model, some in pairs))
    # Weights and maps can only be compared on the same inputs.
    same_inputs = _same_inputs(batches, others)
    if same_inputs and _same_network(one.model, two.model):
        train_rows = range(min(options.train_examples, len(one.train_dataset)))
        train = TrainerBatches(one, one.train_dataset, list(train_rows))
        barrier = loss_barrier(one.model, two.model, batches, train, options.points, progress=True)
    if same_inputs and holds_pixels(one.eval_dataset):
        pictures = TrainerBatches(one, one.eval_dataset, rows, gradients=True)
        gradcam = gradcam_stability(one.model, two.model, pictures, progress=True)
        votes, _ = votes_and_ids(one.eval_dataset)
        slice_correlations = gradcam.correlations[high_disagreement(votes[rows], options.slice_share).rows]
        defined = np.isfinite(slice_correlations)
        gradcam_high = float(slice_correlations[defined].mean()) if defined.any() else float("nan")
    return PairDiagnosis(first.run, second.run, len(rows), same_inputs, cka, barrier, gradcam, gradcam_high)


def has_features(trainer: VotesTrainer) -> bool:
    """Whether the model ends in a linear layer of the classes, whose inputs are its features."""
    inputs, _ = next(iter(TrainerBatches(trainer, trainer.eval_dataset, [0])))
    try:
        last_linear(trainer.model, inputs)
    except VotesError:
        return False
    return True


def _same_inputs(batches: TrainerBatches, others: TrainerBatches) -> bool:
    for (one, _), (two, _) in zip(batches, others, strict=True):
        if one.keys() != two.keys() or not all(torch.equal(one[key], two[key]) for key in one):
            return False
    return True


def _common_rows(first: VotesTrainer, second: VotesTrainer) -> tuple[list[int], list[int]]:
    """The rows of the two eval splits that hold the same examples, with the same votes."""
    (votes, ids), (other_votes, other_ids) = (votes_and_ids(t.eval_dataset) for t in (first, second))
    place = {int(example): row for row, example in enumerate(other_ids)}
    rows = [row for row, example in enumerate(ids) if int(example) in place]
    if not rows:
        raise VotesError("The two runs held out no example in common: there is nothing to compare them on.")
    there = [place[int(ids[row])] for row in rows]
    if votes.shape[1] != other_votes.shape[1] or (votes[rows] != other_votes[there]).any():
        raise VotesError("The two runs have different votes on the same examples: they are of different data sets.")
    return rows, there


def _same_network(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    shapes = [{key: value.shape for key, value in model.state_dict().items()} for model in (first, second)]
    return shapes[0] == shapes[1]


@dataclass(frozen=True)
class Diagnosis:
    """Runs, and all pairs of them."""

    runs: list[RunDiagnosis]
    pairs: list[PairDiagnosis]
    options: DiagnoseOptions


def diagnose(runs: Sequence[str | Path], options: DiagnoseOptions, output: str | Path) -> Diagnosis:
    """Measure each run and each pair of them; `diagnostics.json` and the pictures go into the folder `output`."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    hide = None if len(runs) > 1 else True
    found = [diagnose_run(run, options) for run in tqdm(runs, desc="runs", unit="run", disable=hide)]
    couples = list(combinations(found, 2))
    hide = None if len(couples) > 1 else True
    pairs = [diagnose_pair(*pair, options) for pair in tqdm(couples, desc="pairs", unit="pair", disable=hide)]
    results = {
        "runs": {str(diagnosis.run): diagnosis.results for diagnosis in found},
        "pairs": [_pair_results(pair) for pair in pairs],
        "options": asdict(options),
    }
    if found[0].trainer.args.process_index == 0:
        write_text_atomically(folder / "diagnostics.json", json.dumps(plain(results), indent=1, allow_nan=False))
    return Diagnosis(found, pairs, options)


def format_diagnosis(diagnosis: Diagnosis) -> str:
    """The numbers as tables."""
    lines = []
    for found in diagnosis.runs:
        lines.append(str(found.run))
        unsure = found.results["uncertainty"]
        for title, values in (("whole split", unsure), ("high disagreement", unsure["high_disagreement"])):
            entropies = f"of the model {values['model_entropy']:.4f}, of the annotators {values['human_entropy']:.4f}"
            lines.append(f"  entropy, {title:17} {entropies}; KL {values['kl']:.4f}")
        hessian = found.results.get("hessian")
        if hessian is not None:
            for title, values in (("whole split", hessian), ("high disagreement", hessian["high_disagreement"])):
                lines.append(f"  Hessian, {title:17} {_measured('lambda_max', values)}   {_measured('trace', values)}")
        variance = found.results.get("gradient_variance")
        if variance is not None:
            lines.append(f"  gradient variance and annotator entropy: Spearman {variance['entropy_correlation']:.4f}")
        else:
            lines.append("  no gradient variance and no CKA: the model does not end in a linear layer of the classes")
        for name, detectors in found.results.get("ood", {}).items():
            lines.append(f"  OOD, {name}: {'':14}" + "".join(f"{metric:>9}" for metric in ("AUROC", "AUPR", "FPR95")))
            for detector in DETECTORS:
                cells = "".join(f"{detectors[detector][metric]:9.4f}" for metric in ("auroc", "aupr", "fpr95"))
                lines.append(f"    {detector:20}{'':{len(name)}}{cells}")
    for pair in diagnosis.pairs:
        lines.append(f"{pair.first} and {pair.second}, on {pair.examples} examples that both held out")
        if pair.cka is not None:
            lines.append(f"  linear CKA {pair.cka:.4f}")
        if not pair.same_inputs:
            lines.append("  no barrier and no Grad-CAM: the runs' tokenizers or image processors differ")
        if pair.barrier is not None:
            again = pair.barrier.reestimated_barrier
            batch_norm = "" if again is None else f", with re-estimated batch norm {again:.4f}"
            lines.append(f"  loss barrier {pair.barrier.barrier:.4f}{batch_norm}")
        if pair.gradcam is not None:
            lines.append(
                f"  Grad-CAM correlation {pair.gradcam.mean:.4f}, where people disagree most "
                f"{pair.gradcam_high_disagreement:.4f} (of {pair.gradcam.defined} images with maps in both)"
            )
    return "\n".join(lines)


def _measured(name: str, values: dict[str, Any]) -> str:
    flag = "" if values[f"{name}_converged"] else " (not converged)"
    return f"{name} {values[name]:.4g} +- {values[f'{name}_error']:.2g}{flag}"


def _pair_results(pair: PairDiagnosis) -> dict[str, Any]:
    results: dict[str, Any] = {
        "first": str(pair.first),
        "second": str(pair.second),
        "examples": pair.examples,
        "same_inputs": pair.same_inputs,
        "cka": pair.cka,
    }
    if pair.barrier is not None:
        results["barrier"] = {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in asdict(pair.barrier).items()
        }
    if pair.gradcam is not None:
        results["gradcam"] = {
            "correlation": pair.gradcam.mean,
            "high_disagreement": pair.gradcam_high_disagreement,
            "defined": pair.gradcam.defined,
            "resolution": pair.gradcam.resolution,
            "target": pair.gradcam.target,
        }
    return results
