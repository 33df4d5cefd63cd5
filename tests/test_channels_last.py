"""`channels_last: true` changes how a model lies in memory, and nothing else that a user sees."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForImageClassification

from hf_softlabel import VotesError
from hf_softlabel.build import build_trainer, open_run
from hf_softlabel.cli import main
from hf_softlabel.config import parse_recipe
from hf_softlabel.splits import load_splits

SYNTHETIC = Path(__file__).parents[1] / "recipes" / "synthetic"
OPTIONS = ["--num_train_epochs", "2", "--train_size", "64", "--disable_tqdm", "true"]
OPTIONS += ["--save_total_limit", "2", "--load_best_model_at_end", "false"]


def train(out: Path, *options: str) -> np.ndarray:
    """The logits on the eval split."""
    assert main(["train", str(SYNTHETIC / "sls.yaml"), "--output_dir", str(out), *OPTIONS, *options]) == 0
    return np.array(pq.read_table(out / "predictions.parquet")["logits"].to_pylist())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A run with the option, its logits, and those of a run without."""
    folder = tmp_path_factory.mktemp("runs")
    return folder / "last", train(folder / "last", "--channels_last"), train(folder / "first")


def layouts(model: torch.nn.Module) -> set[bool]:
    """Whether weights of k x k convolutions lie channels last (those of 1 x 1 lie both ways at once)."""
    weights = [weight for weight in model.parameters() if weight.dim() == 4 and weight.shape[-1] > 1]
    return {weight.is_contiguous(memory_format=torch.channels_last) for weight in weights}


def test_a_run_is_the_same_but_for_rounding(runs):
    _, last, first = runs
    np.testing.assert_allclose(last, first, rtol=0, atol=1e-4)
    assert np.ptp(first) > 0.01, "the logits would agree whatever the model"


def test_the_model_and_its_optimiser_lie_channels_last_in_training_and_in_diagnoses(runs, tmp_path):
    model, data, training = parse_recipe(
        SYNTHETIC / "sls.yaml", ["--channels_last", "--max_steps", "1", "--output_dir", str(tmp_path), *OPTIONS]
    )
    trainer, _ = build_trainer(model, data, training, load_splits(data, training.seed))
    trainer.train()
    assert layouts(trainer.model) == {True}
    momenta = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
    assert any(m.dim() == 4 for m in momenta)
    assert layouts(torch.nn.ParameterList(momenta)) == {True}
    assert layouts(open_run(runs[0])[0].model) == {True}


def test_the_saved_model_is_an_ordinary_one(runs):
    out, last, _ = runs
    model = AutoModelForImageClassification.from_pretrained(out / "model")
    assert layouts(model) == {False}
    trainer, splits = open_run(out)
    trainer.model = trainer.model_wrapped = model.eval()
    np.testing.assert_allclose(trainer.predict(splits.eval).predictions, last, rtol=0, atol=1e-5)


def test_a_resumed_run_is_that_without_interruption(runs, tmp_path):
    out, last, _ = runs
    cut = tmp_path / "cut"
    shutil.copytree(out, cut)
    newest = max(cut.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(newest)
    for name in ("DONE", "predictions.parquet"):
        (cut / name).unlink()
    np.testing.assert_array_equal(train(cut, "--channels_last"), last)
    assert newest.exists(), "nothing was trained again"


def test_texts_have_no_channels(tmp_path):
    arguments = ["--channels_last", "--output_dir", str(tmp_path), *OPTIONS]
    model, data, training = parse_recipe(SYNTHETIC / "text.yaml", arguments)
    with pytest.raises(VotesError, match="channels_last is for image models"):
        build_trainer(model, data, training, load_splits(data, training.seed))
