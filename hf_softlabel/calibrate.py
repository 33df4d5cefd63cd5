"""Scaling and vote-coverage sets, fitted on a calibration split: of anybody's predictions, or at the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .conformal import VoteCoverage, fit_vote_coverage
from .metrics import VoteScores, soft_nll
from .scaling import Scaling, fit_temperature, fit_vector_scaling
from .score import VotesSource, read_with_votes, scaled

FIT = {"temperature": fit_temperature, "vector": fit_vector_scaling}


def fit_calibration(
    predictions: Any, votes: Any, from_logits: bool, method: str, coverage: float
) -> tuple[Scaling, VoteCoverage]:
    """Scaling and sets from the predictions (N, C) and votes (N, C) of a calibration split.

    The sets are of the predictions as they are: fitted on scaled ones, on the same examples, they would have lost
    their guarantee.
    """
    return (
        FIT[method](predictions, votes, from_logits=from_logits),
        fit_vote_coverage(predictions, votes, coverage, from_logits),
    )


def calibrate_predictions(
    path: str | Path, votes: VotesSource | None, method: str, coverage: float, output: str | Path, **reading: Any
) -> str:
    """Fit both on the predictions of a file, write `scaling.json` and `vote_coverage.json`, and say what came out."""
    (file,), examples = read_with_votes([path], votes, **reading)
    scaling, sets = fit_calibration(file.values, examples.votes, file.from_logits, method, coverage)
    after = scaled(file, scaling)
    before_nll = soft_nll(file.values, examples.votes, file.from_logits)
    after_nll = soft_nll(after.values, examples.votes, from_logits=True)
    Path(output).mkdir(parents=True, exist_ok=True)
    files = [scaling.save(output), sets.save(output)]
    sizes = sets.sets(file.values, file.from_logits).sum(-1)
    fitted = f"temperature {scaling.temperature:.4f}" if scaling.bias is None else "vector scaling"
    return "\n".join(
        [
            f"{fitted} from {len(file):,} examples: soft NLL {before_nll:.4f} -> {after_nll:.4f} on these themselves",
            f"sets that cover {100 * coverage:g}% of annotators: {sizes.mean():.2f} of {file.values.shape[1]} classes",
            f"written to {' and '.join(map(str, files))}; use other examples to see what they are worth:",
            f"  hf-softlabel score --predictions ... --scaling {files[0]}",
        ]
    )


def measure_calibration(
    logits: np.ndarray, votes: np.ndarray, gold_label: np.ndarray, scaling: Scaling, sets: VoteCoverage, ordinal: bool
) -> dict[str, Any]:
    """What both do on other examples: all scores of the scaled logits, and the coverage of the sets."""
    table = VoteScores(scaling(np.asarray(logits, np.float64)), votes, gold_label, from_logits=True, ordinal=ordinal)
    return {"scaled": table.scores(), "vote_coverage": sets.measure(logits, votes, from_logits=True)}
