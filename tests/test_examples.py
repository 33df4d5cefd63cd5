"""What a run directory keeps of its data for a report: a few inputs, and training predictions under sparse votes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from PIL import Image

from hf_softlabel.cli import main
from hf_softlabel.config import recipe_name
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.data.votes import dense_votes, subsampled_votes
from hf_softlabel.diagnostics.ood_data import load_ood_set
from hf_softlabel.examples import AMBIGUOUS, OTHERS, choose_examples, example_inputs, read_examples, write_examples
from hf_softlabel.metrics import entropy

RECIPES = Path(__file__).parents[1] / "recipes"


def test_the_most_ambiguous_come_first_and_the_rest_reaches_down_to_agreement():
    rng = np.random.default_rng(0)
    votes = np.array([rng.multinomial(20, p) for p in rng.dirichlet(np.full(3, 0.5), 1000)])
    rows = choose_examples(votes)
    assert len(rows) == len(set(rows)) == AMBIGUOUS + OTHERS
    found, every = entropy(votes)[rows], np.sort(entropy(votes))[::-1]
    assert found[:AMBIGUOUS] == pytest.approx(every[:AMBIGUOUS])
    assert np.all(np.diff(found) <= 1e-12) and found[-1] == pytest.approx(every[-1])
    assert sorted(choose_examples(votes[:50])) == list(range(50))
    assert len(choose_examples(votes, 5, 3)) == 8


def test_small_images_are_kept_as_they_are_and_large_ones_reduced(tmp_path):
    images = load_synthetic("vision", size=12)
    write_examples(tmp_path, example_inputs(images))
    found = read_examples(tmp_path)
    for row in images:
        assert np.array_equal(Image.open(io.BytesIO(found[row["example_id"]])), row["image"])
    large = images.map(lambda row: {"image": row["image"].resize((300, 200))})
    (first, *_) = example_inputs(large)["image"].to_pylist()
    assert Image.open(io.BytesIO(first)).size == (96, 64)


def test_texts_are_lines_of_their_parts(tmp_path):
    rows = {"example_id": [3, 5], "votes": [[3, 1], [2, 2]]}
    pair = Dataset.from_dict({**rows, "premise": ["a", "b"], "hypothesis": ["c", "d"]})
    assert dict(zip(*example_inputs(pair).to_pydict().values(), strict=True)) == {5: "b\nd", 3: "a\nc"}
    names = ("obs1", "obs2", "hyp1", "hyp2")
    choice = Dataset.from_dict({**rows, **{name: [name, name] for name in names}})
    assert example_inputs(choice)["text"].to_pylist()[0] == "obs1\nhyp1\nhyp2\nobs2"
    own = Dataset.from_dict({**rows, "tweet": ["x", "y"]})
    assert example_inputs(own, ["tweet"])["text"].to_pylist() == ["y", "x"]
    assert example_inputs(own.to_iterable_dataset()) is None and read_examples(tmp_path) == {}


def test_a_run_on_sparse_votes_keeps_what_it_was_trained_on_and_all_votes(tmp_path):
    words = ["--votes_per_example", "3", "--num_train_epochs", "1", "--disable_tqdm", "true", "--seed", "4"]
    assert main(["train", str(RECIPES / "synthetic/sls.yaml"), *words, "--output_dir", str(tmp_path / "run")]) == 0
    table = pq.read_table(tmp_path / "run" / "train_predictions.parquet").to_pydict()
    ids, full = np.array(table["example_id"]), np.array(table["full_votes"])
    data = load_synthetic("vision")
    every = dict(zip(data["example_id"][:], dense_votes(data), strict=True))
    assert all(np.array_equal(every[i], votes) for i, votes in zip(ids.tolist(), full, strict=True))
    assert np.array_equal(table["votes"], subsampled_votes(full, ids, 3, 4)) and np.sum(table["votes"], 1).max() == 3
    held_out = pq.read_table(tmp_path / "run" / "predictions.parquet")["example_id"].to_pylist()
    assert not set(held_out) & set(ids.tolist()) and len(held_out) + len(ids) == len(data)
    assert set(read_examples(tmp_path / "run")) <= set(held_out)
    # Without sparse votes there is nothing to compare them with.
    assert main(["train", str(RECIPES / "synthetic/sls.yaml"), *words[2:], "--output_dir", str(tmp_path / "all")]) == 0
    assert not (tmp_path / "all" / "train_predictions.parquet").exists()


def test_recipes_are_named_by_all_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_name("recipes/cifar10h/small/soft.yaml") == "cifar10h-small-soft"
    assert recipe_name("recipes/paper/main.yaml") == "paper-main"
    assert recipe_name("elsewhere/deep/own.yaml") == "deep-own" and recipe_name("own.yaml") == "own"


def test_an_ood_set_of_the_hub_is_read_from_a_copy_below_the_sources_folder(tmp_path):
    folder = tmp_path / "hub" / "datasets" / "owner" / "digits" / "cropped"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), folder / "test-00000-of-00001.parquet")
    for split in (None, "test"):
        found = load_ood_set("owner/digits", "cropped", split, sources=str(tmp_path))
        assert found["text"][:] == ["a", "b", "c"]
