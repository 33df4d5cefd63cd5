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


@pytest.fixture
def hub():
    """An empty Hub on loopback with one user."""
    from hub_calls import TOKEN
    from loopback.hub_writer import serve

    with serve({TOKEN: "someone"}) as hub:
        yield hub


@pytest.fixture
def here(hub, monkeypatch, tmp_path):
    """The clients of this very process use the Hub; in new processes HF_ENDPOINT says so."""
    hub.point_clients_here(monkeypatch, tmp_path / "cache")
    return hub
