"""The authors' data for benchmarks: from HF_SOFTLABEL_SOURCES, else from `shared/data` beside the checkout."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from datasets import Dataset, disable_progress_bars

from hf_softlabel import load_votes
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.images import VotesImages
from hf_softlabel.data.sources import SOURCES_VARIABLE


def _sources() -> str:
    folder = os.environ.get(SOURCES_VARIABLE) or Path(__file__).parents[2] / "shared" / "data"
    if not Path(folder).is_dir():
        raise VotesError(f"Benchmarks need the authors' data: set {SOURCES_VARIABLE}; {folder} is not a folder.")
    return str(folder)


@lru_cache
def cifar10h(n: int) -> Dataset:
    """The first n of CIFAR-10H's 10,000 images with their votes."""
    disable_progress_bars()
    return load_votes("cifar10h", sources=_sources())["train"].select(range(n))


@lru_cache
def image_store(n: int) -> VotesImages:
    """The same, decoded."""
    return VotesImages.from_dataset(cifar10h(n))


@lru_cache
def chaosnli() -> Dataset:
    """1,599 pairs of sentences with 100 votes each, of MNLI."""
    disable_progress_bars()
    return load_votes("chaosnli", subset="mnli", sources=_sources())["train"]
