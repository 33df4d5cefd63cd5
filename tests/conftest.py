"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hf_softlabel import split_votes
from hf_softlabel.data.synthetic import load_synthetic

torch.set_num_threads(1)


@pytest.fixture
def sources() -> Path:
    """The folder with the authors' data files; without it the test is skipped."""
    folder = os.environ.get("HF_SOFTLABEL_SOURCES")
    if not folder:
        pytest.skip("HF_SOFTLABEL_SOURCES is not set: the authors' data files are needed")
    return Path(folder)


@pytest.fixture(scope="session")
def texts():
    return split_votes(load_synthetic("text", size=60), seed=0)


@pytest.fixture(scope="session")
def images():
    return split_votes(load_synthetic("vision", size=40), seed=0)
