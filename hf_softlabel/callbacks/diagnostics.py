"""Uncertainty, Hessian and OOD while a model trains: every n epochs, and at the end, on the best checkpoint.

A run with these callbacks has the losses of one without: they leave the random state, every module's mode and all
gradients as they found them. On several processes each measures its share of the examples, and all get the same
numbers. Trainer's trackers show the names below under `eval/`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..data.errors import VotesError
from ..diagnostics.batches import TrainerBatches, check_in_memory, high_disagreement
from ..diagnostics.hessian import hessian_summary
from ..diagnostics.ood import DETECTORS, OODSettings, detection, ood_scores
from ..diagnostics.outputs import collect_outputs
from ..metrics import VoteScores, entropy
from ..metrics.arrays import model as probabilities
from ..preparation import votes_and_ids

if TYPE_CHECKING:
    from ..trainer import VotesTrainer


@contextmanager
def undisturbed() -> Iterator[None]:
    """The random states of Python, numpy and torch are afterwards as they were before."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])


class DiagnosticsCallback(TrainerCallback):
    """When a diagnostic runs, and where its numbers go.

    Args:
        trainer: the trainer that it is added to.
        every: run it at the end of each `every`-th epoch too; 0 for the end of training only. With
            `load_best_model_at_end` that is the best checkpoint.

    Attributes:
        results: everything about the last measurement, for `diagnostics.json`.
    """

    name = ""
    # Of the results, what is not measured but chosen: it is stored, and not logged.
    protocol: tuple[str, ...] = ()

    def __init__(self, trainer: VotesTrainer, every: int = 0):
        # Now, and not at the end of the training.
        check_in_memory(trainer.eval_dataset, "eval")
        if every < 0:
            raise VotesError(f"every is a number of epochs, or 0 for the end of training only, not {every}.")
        self.trainer = trainer
        self.every = every
        self.results: dict[str, Any] = {}

    @property
    def progress(self) -> bool:
        return not self.trainer.args.disable_tqdm and self.trainer.args.process_index == 0

    def measure(self) -> dict[str, Any]:
        """Measure the model as it is. Called on every process."""
        raise NotImplementedError

    def numbers(self) -> dict[str, float]:
        """What is logged of the results, by its path in them: `hessian/lambda_max`."""
        return {
            name: value
            for name, value in _numbers(self.name, self.results)
            if name.rpartition("/")[2] not in self.protocol
        }

    def run(self) -> None:
        # Batch norm's statistics differ between the processes until they are aligned, as for an evaluation.
        self.trainer.align_buffers()
        with undisturbed():
            self.results = self.measure()
        self.trainer.log({f"eval_{name}": value for name, value in self.numbers().items()})

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.every and round(state.epoch) % self.every == 0:
            self.run()

    def on_train_end(self, args, state, control, **kwargs):
        self.run()

    def _gather(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The rows of all processes, after each other."""
        # A process without examples has arrays of no shape.
        parts = [part for part in gather_object([dict(arrays)]) if all(len(rows) for rows in part.values())]
        return {name: np.concatenate([part[name] for part in parts]) for name in arrays}


def _numbers(prefix: str, results: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}/{name}", float(value)


class UncertaintyCallback(DiagnosticsCallback):
    """`uncertainty/...`: entropies of the model and of the annotators, on all examples and where people disagree most.

    Args:
        slice_share: the high-disagreement slice, by the entropy of the votes.
    """

    name = "uncertainty"
    protocol = ("examples", "share", "threshold")

    def __init__(self, trainer: VotesTrainer, every: int = 0, slice_share: float = 0.1):
        super().__init__(trainer, every)
        high_disagreement(votes_and_ids(trainer.eval_dataset)[0], slice_share)  # refuses a share that cannot be
        self.slice_share = slice_share

    def measure(self) -> dict[str, Any]:
        batches = TrainerBatches(self.trainer, self.trainer.eval_dataset, shard=True)
        own = {"logits": np.empty(0), "votes": np.empty(0)}
        if batches.examples:
            outputs = collect_outputs(self.trainer.model, batches, self.progress, "uncertainty", features=False)
            own = {"logits": outputs.logits.numpy(), "votes": outputs.p.numpy()}
        found = self._gather(own)
        chosen = high_disagreement(found["votes"], self.slice_share)
        return {
            **_uncertainty(found["logits"], found["votes"]),
            "high_disagreement": {
                **_uncertainty(found["logits"][chosen.rows], found["votes"][chosen.rows]),
                "examples": len(chosen.rows),
                "share": chosen.share,
                "threshold": chosen.threshold,
            },
        }


def _uncertainty(logits: np.ndarray, votes: np.ndarray) -> dict[str, float]:
    q = probabilities(logits, from_logits=True)
    scores = VoteScores(logits, votes, from_logits=True).scores()
    kept = ("soft_nll", "kl", "ent_ce", "entropy_correlation", "js_distance")
    return {
        "model_entropy": float(entropy(q).mean()),
        "human_entropy": float(entropy(votes).mean()),
        "confidence": float(q.max(-1).mean()),
        **{name: scores[name] for name in kept},
    }


class HessianCallback(DiagnosticsCallback):
    """`hessian/lambda_max`, `hessian/high_disagreement/trace`, ...: curvature of the soft cross-entropy.

    Args:
        rtol: the relative error to reach, which is reported, reached or not.
        examples: use the first so many of the eval split; by default all.
        slice_share: the high-disagreement slice, by the entropy of the votes.
    """

    name = "hessian"
    protocol = ("examples", "parameters", "rtol", "seed", "max_hvps", "share", "threshold")

    def __init__(
        self,
        trainer: VotesTrainer,
        every: int = 0,
        rtol: float = 0.05,
        examples: int | None = None,
        slice_share: float = 0.1,
        max_hvps: int = 1000,
    ):
        super().__init__(trainer, every)
        if examples is not None and examples < 1:
            raise VotesError(f"The Hessian needs examples: hessian_examples must be at least 1, not {examples}.")
        if not 0 < rtol < 1:
            raise VotesError(f"The Hessian's rtol is a relative error between 0 and 1, not {rtol}.")
        self.rtol, self.examples, self.slice_share, self.max_hvps = rtol, examples, slice_share, max_hvps

    def measure(self) -> dict[str, Any]:
        votes, _ = votes_and_ids(self.trainer.eval_dataset)
        chosen = high_disagreement(votes[: self.examples], self.slice_share)
        everything = list(range(len(votes)))[: self.examples]
        of_slice = {**self._summary(chosen.rows), "share": chosen.share, "threshold": chosen.threshold}
        return {**self._summary(everything), "high_disagreement": of_slice}

    def _summary(self, rows: list[int]) -> dict[str, Any]:
        trainer = self.trainer
        summary = hessian_summary(
            trainer.model,
            TrainerBatches(trainer, trainer.eval_dataset, rows, shard=True, gradients=True),
            rtol=self.rtol,
            seed=trainer.args.seed,
            max_hvps=self.max_hvps,
            reduce=lambda tensor: trainer.accelerator.reduce(tensor, "sum"),
            progress=self.progress,
        )
        return asdict(summary)


class OODCallback(DiagnosticsCallback):
    """`ood/svhn/energy/auroc`, ...: detection of each OOD set by every detector.

    Args:
        outside: OOD data sets by name, prepared as the eval split is; see [`load_ood_set`].
        settings: temperatures, ODIN's step, KNN's k.
        train_examples: the first so many training examples are KNN's neighbours.
    """

    name = "ood"
    protocol = (*(f.name for f in fields(OODSettings)), "train_examples")

    def __init__(
        self,
        trainer: VotesTrainer,
        outside: Mapping[str, Any],
        every: int = 0,
        settings: OODSettings | None = None,
        train_examples: int = 10_000,
    ):
        super().__init__(trainer, every)
        check_in_memory(trainer.train_dataset, "train")
        self.outside, self.settings, self.train_examples = outside, settings or OODSettings(), train_examples
        self.scores: dict[str, dict[str, np.ndarray]] = {}

    def measure(self) -> dict[str, Any]:
        trainer = self.trainer
        rows = list(range(min(self.train_examples, len(trainer.train_dataset))))
        near = TrainerBatches(trainer, trainer.train_dataset, rows, shard=True)
        own = {"features": np.empty(0)}
        if near.examples:
            own = {"features": collect_outputs(trainer.model, near, self.progress, "train features").features.numpy()}
        features = torch.from_numpy(self._gather(own)["features"])
        settings = replace(self.settings, knn_neighbours=min(self.settings.knn_neighbours, len(features)))
        sets = {"in": trainer.eval_dataset, **self.outside}
        self.scores = {}
        for name, dataset in sets.items():
            # ODIN takes gradients.
            batches = TrainerBatches(trainer, dataset, shard=True, gradients=True)
            found = {detector: np.empty(0) for detector in DETECTORS}
            if batches.examples:
                found = ood_scores(trainer.model, batches, features, settings, self.progress, name)
            self.scores[name] = self._gather(found)
        inside = self.scores["in"]
        protocol = {**asdict(settings), "train_examples": len(features)}
        return {
            name: {
                **{detector: detection(inside[detector], self.scores[name][detector]) for detector in DETECTORS},
                "settings": protocol,
            }
            for name in self.outside
        }
