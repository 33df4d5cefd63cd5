"""The loaders of the published data sets, against what their authors report."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Image, IterableDatasetDict

from hf_softlabel.data import cifar10h, popquorn
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.load import load_votes
from hf_softlabel.data.sources import Source, find_in_folder, find_source
from hf_softlabel.data.votes import class_names, dense_votes, hard_labels, validate_votes


def mean_entropy(votes: np.ndarray) -> float:
    p = votes / votes.sum(1, keepdims=True)
    return float(-np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(1).mean())


@pytest.mark.sources
def test_cifar10h_is_what_its_authors_report(sources):
    loaded = load_votes("cifar10h", sources=sources)
    assert isinstance(loaded, DatasetDict) and list(loaded) == ["train"]
    dataset = loaded["train"]
    votes = validate_votes(dataset, need_counts=True)
    assert votes.shape == (10_000, 10)
    each = votes.sum(1)
    assert (votes.sum(), each.min(), each.max()) == (511_000, 47, 63)
    assert mean_entropy(votes) == pytest.approx(0.15446, abs=5e-6)
    labels = np.array(dataset["label"][:])
    assert (votes.argmax(1) == labels).mean() == 0.9921
    assert (hard_labels(dataset) == labels).all()
    assert dataset["example_id"][:] == list(range(10_000))
    assert isinstance(dataset.features["image"], Image)
    assert dataset[0]["image"].size == (32, 32) and class_names(dataset)[labels[0]] == "cat"


@pytest.mark.sources
def test_cifar10h_streams_the_same_rows(sources):
    stream = load_votes("cifar10h", sources=sources, streaming=True)
    assert isinstance(stream, IterableDatasetDict)
    whole = load_votes("cifar10h", sources=sources)["train"]
    assert class_names(stream["train"]) == class_names(whole)
    # Past the first batch, where a join by the position within the batch would go wrong.
    for row, expected in zip(stream["train"].skip(250).take(3), whole.select(range(250, 253)), strict=True):
        assert row["image"].tobytes() == expected["image"].tobytes()
        assert {**row, "image": None} == {**expected, "image": None}


@pytest.mark.sources
def test_cifar10h_refuses_images_in_another_order(sources, monkeypatch):
    real = cifar10h._images
    monkeypatch.setattr(cifar10h, "_images", lambda *a: real(*a).select(range(9_999, -1, -1)))
    with pytest.raises(VotesError, match=r"only \d+\.\d% of the images 0 to 999 .*not in its original order"):
        load_votes("cifar10h", sources=sources)
    monkeypatch.setattr(cifar10h, "_images", lambda *a: real(*a).select(range(9_000)))
    with pytest.raises(VotesError, match="expected 10000 images; found 9000 images"):
        load_votes("cifar10h", sources=sources)


@pytest.mark.sources
@pytest.mark.parametrize(
    ("subset", "file", "items", "gold"),
    [
        ("snli", "chaosNLI_snli.jsonl", 1514, (486, 677, 351)),
        ("mnli", "chaosNLI_mnli_m.jsonl", 1599, (513, 721, 365)),
    ],
)
def test_chaosnli(sources, subset, file, items, gold):
    dataset = load_votes("chaosnli", subset, sources=sources)["train"]
    votes = validate_votes(dataset, need_counts=True)
    assert votes.shape == (items, 3) and (votes.sum(1) == 100).all()
    assert class_names(dataset) == ["entailment", "neutral", "contradiction"]
    assert tuple(np.bincount(dataset["label"][:])) == gold
    # The file says the votes twice; the loader reads the lists, and here are the counters by letter.
    counters = [json.loads(line)["label_counter"] for line in next(sources.rglob(file)).open(encoding="utf-8")]
    assert votes.tolist() == [[counter.get(letter, 0) for letter in "enc"] for counter in counters]
    assert {"premise", "hypothesis", "uid", "source"} < set(dataset.column_names)
    assert dataset["example_id"][:] == list(range(items)) and len(set(dataset["uid"])) == items
    stream = load_votes("chaosnli", subset, sources=sources, streaming=True)["train"]
    assert class_names(stream) == class_names(dataset) and next(iter(stream)) == dataset[0]


@pytest.mark.sources
def test_chaosnli_joined_is_both_files_with_unique_ids(sources):
    parts = [load_votes("chaosnli", name, sources=sources)["train"] for name in ("snli", "mnli")]
    joined = load_votes("chaosnli", "snli+mnli", sources=sources)["train"]
    assert joined["uid"][:] == [uid for part in parts for uid in part["uid"]]
    assert joined["votes"][:] == [votes for part in parts for votes in part["votes"]]
    assert joined["example_id"][:] == list(range(1514 + 1599))
    assert joined.features.keys() == parts[0].features.keys()


def test_chaosnli_first_row_and_alphanli(sources):
    row = load_votes("chaosnli", "snli", sources=sources)["train"][0]
    assert row["uid"] == "2407214681.jpg#0r1n" and row["votes"] == [30, 70, 0] and row["label"] == 1
    dataset = load_votes("chaosnli", "alphanli", sources=sources)["train"]
    votes = validate_votes(dataset, need_counts=True)
    assert votes.shape == (1532, 2) and (votes.sum(1) == 100).all()
    assert class_names(dataset) == ["hyp1", "hyp2"]
    assert dataset[0]["votes"] == [97, 3] and dataset[0]["label"] == 0
    assert tuple(np.bincount(dataset["label"][:])) == (781, 751)
    assert {"obs1", "obs2", "hyp1", "hyp2"} < set(dataset.column_names)


@pytest.mark.sources
@pytest.mark.parametrize(
    ("subset", "items", "votes", "ratings"),
    [
        ("offensiveness", 1500, 13_036, (7516, 2190, 1590, 1039, 701)),
        ("politeness", 3718, 25_042, (2797, 3477, 7269, 6235, 5264)),
    ],
)
def test_popquorn(sources, subset, items, votes, ratings):
    dataset = load_votes("popquorn", subset, sources=sources)["train"]
    counts = validate_votes(dataset, need_counts=True)
    assert counts.shape == (items, 5) and counts.sum() == votes
    assert tuple(counts.sum(0)) == ratings
    assert class_names(dataset) == ["1", "2", "3", "4", "5"]
    assert dataset["example_id"][:] == list(range(items))
    assert dataset["label"][:] == [None] * items
    for row in dataset.select(range(50)):
        assert len(row["annotator_ids"]) == len(set(row["annotator_ids"])) == sum(row["votes"])
        assert np.bincount(row["annotations"], minlength=5).tolist() == row["votes"]


@pytest.mark.sources
def test_popquorn_keeps_who_said_what(sources):
    """By hand from the file: the first e-mail was rated 3, 4, 5, 3, 4, 3, 3 by the annotators 0 to 6."""
    row = load_votes("popquorn", "politeness", sources=sources)["train"][0]
    assert row["text"].startswith("Hey E, I have a question about my juices.")
    assert row["annotator_ids"] == [0, 1, 2, 3, 4, 5, 6]
    assert row["annotations"] == [2, 3, 4, 2, 3, 2, 2]
    assert row["votes"] == [0, 0, 4, 2, 1]


@pytest.mark.sources
def test_popquorn_reads_a_clone_of_the_authors_repository(sources, tmp_path):
    for subset, folder in [("offensiveness", "offensiveness"), ("politeness", "politeness_rating")]:
        (tmp_path / "dataset" / folder).mkdir(parents=True)
        file = next(sources.rglob(f"{subset}_raw_data.csv"))
        shutil.copy(file, tmp_path / "dataset" / folder / "raw_data.csv")
        found = load_votes("popquorn", subset, sources=tmp_path)["train"]
        assert found[7] == load_votes("popquorn", subset, sources=sources)["train"][7]


@pytest.mark.sources
def test_the_environment_names_the_sources(sources, monkeypatch):
    monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(sources))
    assert len(load_votes("chaosnli", "snli")["train"]) == 1514


@pytest.mark.sources
def test_changed_files_are_refused(sources, tmp_path):
    text = next(sources.rglob("chaosNLI_snli.jsonl")).read_text(encoding="utf-8")
    (tmp_path / "chaosNLI_snli.jsonl").write_text(text.replace("[30, 70, 0]", "[31, 69, 0]", 1), encoding="utf-8")
    with pytest.raises(VotesError, match=r"chaosNLI_snli\.jsonl is not the .* expected the sha256 99f9015d.*found"):
        load_votes("chaosnli", "snli", sources=tmp_path)

    lines = next(sources.rglob("politeness_raw_data.csv")).read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "politeness_raw_data.csv").write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(VotesError, match=r"politeness_raw_data\.csv does not hold .* expected 3718 items.*found 3718"):
        load_votes("popquorn", "politeness", sources=tmp_path)


def test_wrong_counts_file_is_refused(tmp_path, monkeypatch):
    np.save(tmp_path / "cifar10h-counts.npy", np.full((10_000, 10), 5))
    with pytest.raises(VotesError, match="expected the sha256 9b36b455"):
        load_votes("cifar10h", sources=tmp_path)
    monkeypatch.setattr(cifar10h, "COUNTS", Source("cifar10h-counts.npy", "http://127.0.0.1", None))
    with pytest.raises(VotesError, match=r"expected 10000 images, 10 classes, 511000 votes.*found .* 500000 votes"):
        load_votes("cifar10h", sources=tmp_path)


def test_the_same_name_at_two_depths(tmp_path):
    source = Source("a.csv", "http://127.0.0.1/a.csv", None)
    for folder in ("one", "two/three"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.csv").write_text("same")
    assert find_source(source, tmp_path).read_text() == "same"
    (tmp_path / "two/three/a.csv").write_text("other")
    with pytest.raises(VotesError, match=r"more than once .* different content: .*one/a\.csv, .*two/three/a\.csv"):
        find_source(source, tmp_path)


def test_linked_folders_and_odd_names_are_searched(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.csv").write_text("x")
    folder = tmp_path / "data [v1]"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert find_in_folder(folder, ["a.csv"]) == folder / "link" / "a.csv"
    assert find_in_folder(folder, ["sv"]) is None


def test_sources_must_be_a_folder(tmp_path, monkeypatch):
    with pytest.raises(VotesError, match="`sources` must be a folder"):
        load_votes("chaosnli", "snli", sources=tmp_path / "absent")
    monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(tmp_path / "absent"))
    with pytest.raises(VotesError, match="HF_SOFTLABEL_SOURCES must be a folder"):
        load_votes("popquorn", "politeness")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("chaosnli",), "subsets snli, mnli, alphanli, snli.mnli"),
        (("chaosnli", "anli"), "snli, mnli, alphanli.*'anli'"),
        (("popquorn",), "subsets offensiveness, politeness"),
        (("cifar10h", "test"), "cifar10h takes no `subset`"),
        (("chaosnli", "snli", None, "main"), "chaosnli takes no `revision`"),
        (("synthetic", "text", "folder"), "synthetic takes no `sources`"),
        (("cifar10",), "no data set 'cifar10'.*Did you mean 'cifar10h'"),
        (("popcorn",), "Did you mean 'popquorn'"),
        (("votes.csv",), "nor a file"),
        (("table",), "`sources` is its path"),
    ],
)
def test_wrong_names_are_refused(arguments, message):
    with pytest.raises(VotesError, match=message):
        load_votes(*arguments)


@pytest.mark.parametrize("subset", ["text", "vision"])
def test_synthetic_is_loaded_by_name(subset):
    dataset = load_votes("synthetic", subset)["train"]
    assert isinstance(dataset, Dataset) and isinstance(dataset.features["label"], ClassLabel)
    validate_votes(dataset)
    stream = load_votes("synthetic", subset, streaming=True)["train"]
    assert next(iter(stream))["votes"] == dense_votes(dataset)[0].tolist()


def test_importing_the_entry_point_is_light():
    """`load_votes` itself imports neither datasets nor torch."""
    import subprocess
    import sys

    code = "import sys, hf_softlabel.data.load; print(sorted({'torch', 'datasets', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_politeness_totals_add_up():
    assert sum(popquorn.TOTALS["politeness"][2:]) == 25_042
    assert sum(popquorn.TOTALS["offensiveness"][2:]) == 13_036
