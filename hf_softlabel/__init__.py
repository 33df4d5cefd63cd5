"""Train Hugging Face models on annotator votes. The public names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_PUBLIC = {
    "config": ["DataConfig", "ModelConfig", "SoftLabelConfig", "parse_recipe"],
    "collators": ["VotesCollator"],
    "conformal": ["VoteCoverage", "fit_vote_coverage"],
    "data.annotations": ["votes_from_annotations"],
    "data.errors": ["VotesError"],
    "data.images": ["ImageTransform", "VotesImages"],
    "data.load": ["load_votes"],
    "data.text": ["tokenize_votes"],
    "data.votes": ["class_names", "split_votes", "subsample_votes", "validate_votes", "votes_features"],
    "delivery": ["Delivery"],
    "doctor": ["examine_trainer"],
    "models": ["build_resnet", "load_model"],
    "run": ["run_recipe"],
    "scaling": ["Scaling", "fit_temperature", "fit_vector_scaling"],
    "score": ["VotesSource", "score_predictions"],
    "sparse_votes": ["SparseVotes"],
    "trainer": ["VotesTrainer"],
    "trainers": [
        "DeterministicControlTrainer",
        "LabelSmoothingTrainer",
        "MajorityTrainer",
        "MixupTrainer",
        "MultipassTrainer",
        "PosteriorSLSTrainer",
        "SLSTrainer",
        "ShuffledSLSTrainer",
        "SoftLabelTrainer",
    ],
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULE_OF)

if TYPE_CHECKING:
    from .collators import VotesCollator
    from .config import DataConfig, ModelConfig, SoftLabelConfig, parse_recipe
    from .conformal import VoteCoverage, fit_vote_coverage
    from .data.annotations import votes_from_annotations
    from .data.errors import VotesError
    from .data.images import ImageTransform, VotesImages
    from .data.load import load_votes
    from .data.text import tokenize_votes
    from .data.votes import class_names, split_votes, subsample_votes, validate_votes, votes_features
    from .delivery import Delivery
    from .doctor import examine_trainer
    from .models import build_resnet, load_model
    from .run import run_recipe
    from .scaling import Scaling, fit_temperature, fit_vector_scaling
    from .score import VotesSource, score_predictions
    from .sparse_votes import SparseVotes
    from .trainer import VotesTrainer
    from .trainers import (
        DeterministicControlTrainer,
        LabelSmoothingTrainer,
        MajorityTrainer,
        MixupTrainer,
        MultipassTrainer,
        PosteriorSLSTrainer,
        ShuffledSLSTrainer,
        SLSTrainer,
        SoftLabelTrainer,
    )


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
