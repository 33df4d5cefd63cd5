"""Diagnostics that a recipe switches on: `diagnostics: [uncertainty, hessian, ood]`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import write_text_atomically
from ..data.errors import VotesError
from ..diagnostics.ood_data import load_ood_set, parse_ood_set, prepare_ood_set
from .diagnostics import DiagnosticsCallback, HessianCallback, OODCallback, UncertaintyCallback

if TYPE_CHECKING:
    from ..trainer import VotesTrainer


def add_diagnostics(trainer: VotesTrainer, sources: str | None = None) -> list[DiagnosticsCallback]:
    """Add the callbacks that the trainer's arguments name, and return them."""
    args = trainer.args
    callbacks: list[DiagnosticsCallback] = []
    for name in dict.fromkeys(args.diagnostics or ()):
        if name == "uncertainty":
            callbacks.append(UncertaintyCallback(trainer, args.diagnostics_every, args.diagnostics_slice))
        elif name == "hessian":
            callbacks.append(
                HessianCallback(
                    trainer, args.diagnostics_every, args.hessian_rtol, args.hessian_examples, args.diagnostics_slice
                )
            )
        else:
            outside = load_ood_sets(trainer, args.ood_sets or (), args.ood_examples, sources)
            callbacks.append(OODCallback(trainer, outside, args.diagnostics_every))
    for callback in callbacks:
        trainer.add_callback(callback)
        # First of all: at the end of training others close their trackers and the progress bar.
        trainer.callback_handler.callbacks.remove(callback)
        trainer.callback_handler.callbacks.insert(0, callback)
    return callbacks


def load_ood_sets(
    trainer: VotesTrainer, specifications: Any, examples: int | None, sources: str | None = None
) -> dict[str, Any]:
    """OOD sets by name, from `NAME=SOURCE[:SUBSET][#SPLIT]`, ready for the trainer's model."""
    if not specifications:
        raise VotesError("OOD detection needs ood_sets, for instance: [svhn=ufldl-stanford/svhn:cropped_digits].")
    outside = {}
    for text in specifications:
        name, source, subset, split = parse_ood_set(text)
        if name in outside:
            raise VotesError(f"Two OOD sets are named {name!r}: give them different names.")
        with trainer.args.main_process_first(local=False, desc=f"loading {name}"):
            dataset = load_ood_set(source, subset, split, examples, trainer.args.seed, sources)
            outside[name] = prepare_ood_set(trainer, dataset, name)
    return outside


def write_diagnostics(run: Path, results: Mapping[str, Any]) -> Path:
    """Add results to a run's `diagnostics.json`; what is not finite becomes null."""
    path = run / "diagnostics.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    # OOD sets that were measured before stay.
    sets = {"ood": {**before.get("ood", {}), **results["ood"]}} if "ood" in results else {}
    write_text_atomically(path, json.dumps(plain({**before, **results, **sets}), indent=1, allow_nan=False))
    return path


def plain(value: Any) -> Any:
    """Values for JSON: what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
