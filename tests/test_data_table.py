"""Tables of votes in their three forms, whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import PIL.Image
import pytest
from datasets import Dataset, DatasetDict, Features, Image, IterableDatasetDict, load_from_disk

from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.load import load_votes
from hf_softlabel.data.table import load_table
from hf_softlabel.data.votes import class_names, dense_votes, validate_votes, votes_features

BOTH = pytest.mark.parametrize("streaming", [False, True])


@pytest.fixture
def write(tmp_path):
    def write(name: str, content: str | list[dict]) -> Path:
        if not isinstance(content, str):
            content = "".join(json.dumps(row) + "\n" for row in content)
        (tmp_path / name).write_text(content)
        return tmp_path / name

    return write


def rows(loaded, split="train") -> list[dict]:
    return list(loaded[split])


@BOTH
def test_wide_counts(write, streaming):
    path = write("a.csv", "text,yes,no\nfirst,1,2\nNone,0,5\n")
    loaded = load_votes(str(path), label_columns=["yes", "no"], streaming=streaming)
    assert isinstance(loaded, IterableDatasetDict if streaming else DatasetDict)
    assert class_names(loaded["train"]) == ["yes", "no"]
    assert rows(loaded) == [
        {"text": "first", "votes": [1, 2], "example_id": 0, "label": None},
        {"text": "None", "votes": [0, 5], "example_id": 1, "label": None},
    ]
    assert loaded["train"].features["votes"] == votes_features(["yes", "no"])["votes"]
    assert rows(load_votes("table", sources=path, label_columns=["yes", "no"], streaming=streaming)) == rows(loaded)


@BOTH
def test_names_reorder_or_rename_the_columns(write, streaming):
    path = write("a.csv", "text,yes,no,label\nx,1,2,yes\ny,0,5,no\n")
    ordered = load_table(path, streaming=streaming, label_columns=["yes", "no"], names=["no", "yes"])
    assert class_names(ordered["train"]) == ["no", "yes"]
    assert [(row["votes"], row["label"]) for row in rows(ordered)] == [([2, 1], 1), ([5, 0], 0)]
    path = write("b.csv", "text,n_yes,n_no\nx,1,2\n")
    renamed = load_table(path, streaming=streaming, label_columns=["n_yes", "n_no"], names=["Y", "N"])
    assert class_names(renamed["train"]) == ["Y", "N"] and rows(renamed)[0]["votes"] == [1, 2]
    with pytest.raises(VotesError, match="3 entries for 2 label_columns"):
        load_table(path, streaming=streaming, label_columns=["n_yes", "n_no"], names=["a", "b", "c"])
    with pytest.raises(VotesError, match="repeated: a"):
        load_table(path, streaming=streaming, label_columns=["n_yes", "n_no"], names=["a", "a"])


@BOTH
def test_wide_probabilities_also_where_a_column_looks_whole(write, streaming):
    path = write("a.tsv", "text\ta\tb\tc\nx\t0.25\t0.75\t0\ny\t1\t0.0\t0\n")
    loaded = load_table(path, streaming=streaming, label_columns=["a", "b", "c"])
    assert loaded["train"].features["votes"].feature.dtype == "float64"
    assert [row["votes"] for row in rows(loaded)] == [[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]]


@BOTH
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,\n,1\n", r"column `a` is missing in 1 row\(s\): 2"),
        ("a,b\n1,2\n3,\n", r"column `b` is missing in 1 row\(s\): 1\. Write 0"),
        ("a,b\n1.0,2.0\n3.0,4.0\n", r"floats that do not sum to 1 in 2 row\(s\): 0, 1.*cast the column to integers"),
        ("a,b\n1,-2\n", r"negative in 1 row\(s\): 0"),
        ("a,b\n1,2\n0,0\n", r"all zero in 1 row\(s\): 1"),
        ("a,b\n1,two\n", "must be numbers"),
    ],
)
def test_wrong_wide_tables(write, streaming, text, message):
    with pytest.raises(VotesError, match=message):
        rows(load_table(write("a.csv", text), streaming=streaming, label_columns=["a", "b"]))


def test_a_late_missing_value_is_found_whole_and_streamed(write):
    """Row 15,000 makes the column's type change in the middle of the file."""
    text = "a,b\n" + "1,2\n" * 15_000 + "1,\n" + "1,2\n"
    path = write("a.csv", text)
    with pytest.raises(VotesError, match=r"`b` is missing in 1 row\(s\): 15000"):
        load_table(path, label_columns=["a", "b"])
    stream = load_table(path, streaming=True, label_columns=["a", "b"])["train"]
    assert len(list(stream.take(10_000))) == 10_000
    with pytest.raises(VotesError, match=r"batch of rows 15000 to 15001.*`b` is missing"):
        list(stream)
    path = write("b.csv", "a,b\n" + "1,0\n" * 15_000 + "0.5,0.5\n")
    whole = load_table(path, label_columns=["a", "b"])["train"]
    assert whole[15_000]["votes"] == [0.5, 0.5] and whole[0]["votes"] == [1.0, 0.0]
    with pytest.raises(VotesError, match="floats here and integers in the rows before"):
        list(load_table(path, streaming=True, label_columns=["a", "b"])["train"])


@BOTH
@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_canonical(write, tmp_path, streaming, suffix):
    data = [{"text": "x", "votes": [1, 2, 0]}, {"text": "y", "votes": [0, 0, 4]}]
    path = write(f"a.{suffix}", data)
    if suffix == "parquet":
        Dataset.from_list(data).to_parquet(path)
    loaded = load_table(path, streaming=streaming)
    assert class_names(loaded["train"]) == ["0", "1", "2"]
    assert [row["votes"] for row in rows(loaded)] == [[1, 2, 0], [0, 0, 4]]
    named = load_table(path, streaming=streaming, names=["a", "b", "c"])
    assert class_names(named["train"]) == ["a", "b", "c"] and rows(named)[1]["text"] == "y"


@BOTH
@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ([[1, 2], [1, 2, 3]], "2 entries in each row.*rows 1"),
        ([[1, 2], None], "2 entries in each row.*rows 1"),
        ([[1, 2], [1, None]], "missing entries in rows 1"),
        ([[0.5, 0.5], [0.5, 0.6]], r"do not sum to 1 in 1 row\(s\): 1"),
        (["[1, 2]", "[2, 1]"], "must be a list of numbers.*label_columns="),
        ([{"labels": [0], "counts": [1]}, {"labels": [1], "counts": [2]}], "give `names`"),
        ([{"labels": [0], "counts": [0.5]}, {"labels": [1], "counts": [0.5]}], r"counts: \[integers\]"),
    ],
)
def test_wrong_canonical_tables(write, streaming, votes, message):
    with pytest.raises(VotesError, match=message):
        rows(load_table(write("a.jsonl", [{"votes": vote} for vote in votes]), streaming=streaming))


@BOTH
def test_another_column_of_votes_and_of_ids(write, streaming):
    path = write("a.jsonl", [{"text": "x", "tally": [1, 2], "uid": 70}, {"text": "y", "tally": [3, 0], "uid": 50}])
    loaded = load_table(path, streaming=streaming, votes="tally", example_id="uid")
    assert rows(loaded) == [
        {"text": "x", "votes": [1, 2], "example_id": 70, "label": None},
        {"text": "y", "votes": [3, 0], "example_id": 50, "label": None},
    ]
    with pytest.raises(VotesError, match="There is no column nope, no_id among: text, tally, uid"):
        load_table(path, streaming=streaming, votes="nope", example_id="no_id")
    with pytest.raises(VotesError, match="`example_id` must be integers"):
        rows(load_table(path, streaming=streaming, votes="tally", example_id="text"))


@BOTH
def test_repeated_ids_are_refused(write, streaming):
    path = write("a.jsonl", [{"votes": [1, 2], "example_id": 4}, {"votes": [3, 0], "example_id": 4}])
    with pytest.raises(VotesError, match="occur more than once: 4"):
        rows(load_table(path, streaming=streaming))


@BOTH
def test_sparse_votes_by_index_and_by_name(write, streaming):
    names = ["a", "b", "c"]
    by_name = [{"votes": {"labels": ["c", "a"], "counts": [2, 1]}}, {"votes": {"labels": ["b"], "counts": [4]}}]
    by_index = [{"votes": {"labels": [2, 0], "counts": [2, 1]}}, {"votes": {"labels": [1], "counts": [4]}}]
    for content in (by_name, by_index):
        loaded = load_table(write("a.jsonl", content), streaming=streaming, names=names)
        assert [row["votes"] for row in rows(loaded)] == [row["votes"] for row in by_index]
        assert class_names(loaded["train"]) == names
    by_name[1]["votes"]["labels"] = ["d"]
    with pytest.raises(VotesError, match="Unknown label in rows 1"):
        rows(load_table(write("b.jsonl", by_name), streaming=streaming, names=names))
    by_index[0]["votes"] = None
    with pytest.raises(VotesError, match=r"missing in row\(s\) 0"):
        rows(load_table(write("c.jsonl", by_index), streaming=streaming, names=names))


@BOTH
@pytest.mark.parametrize(
    ("names", "gold", "expected"),
    [
        (["no", "yes"], ["yes", "", "no"], [1, None, 0]),
        (["no", "yes"], ["1", "-1", "0"], [1, None, 0]),  # an index where no class is named by a number
        (["1", "2"], ["2", "", "1"], [1, None, 0]),  # else the name: not off by one
    ],
)
def test_gold_labels(write, streaming, names, gold, expected):
    text = f"{','.join(names)},label\n" + "".join(f"1,2,{label}\n" for label in gold)
    loaded = load_table(write("a.csv", text), streaming=streaming, label_columns=names)
    assert [row["label"] for row in rows(loaded)] == expected
    for wrong in ["7"] + ["0"] * (names == ["1", "2"]):
        path = write("b.csv", text + f"1,2,{wrong}\n")
        with pytest.raises(VotesError, match=rf"Unknown `label`\(s\) {wrong}: the classes are"):
            rows(load_table(path, streaming=streaming, label_columns=names))


def test_gold_labels_of_a_class_label_feature_follow_the_names(tmp_path):
    data = {"votes": [[1, 2], [2, 1]], "example_id": [0, 1], "label": [0, None]}
    Dataset.from_dict(data, features=votes_features(["no", "yes"])).to_parquet(tmp_path / "a.parquet")
    assert class_names(load_table(tmp_path / "a.parquet")["train"]) == ["no", "yes"]
    swapped = load_table(tmp_path / "a.parquet", names=["yes", "no"])["train"]
    assert class_names(swapped) == ["yes", "no"] and swapped["label"][:] == [1, None]


@BOTH
def test_saved_folders_keep_images_names_and_splits(tmp_path, streaming):
    image = PIL.Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    saved = DatasetDict()
    for split, first in (("train", 10), ("test", 20)):
        data = {"votes": [[1, 2], [2, 1]], "example_id": [first, first + 1], "label": [0, 1]}
        features = Features({**votes_features(["no", "yes"]), "image": Image()})
        saved[split] = Dataset.from_dict({**data, "image": [image, image]}, features=features)
    saved.save_to_disk(tmp_path / "saved")
    loaded = load_votes(str(tmp_path / "saved"), streaming=streaming)
    assert list(loaded) == ["train", "test"] and class_names(loaded["test"]) == ["no", "yes"]
    row = rows(loaded, "test")[1]
    assert np.array_equal(np.asarray(row["image"]), np.asarray(image))
    assert (row["votes"], row["example_id"], row["label"]) == ([2, 1], 21, 1)
    assert list(load_table(tmp_path / "saved", split="test", streaming=streaming)) == ["test"]
    with pytest.raises(VotesError, match="no split 'dev', only train, test"):
        load_table(tmp_path / "saved", split="dev", streaming=streaming)
    saved["train"].save_to_disk(tmp_path / "one")
    assert [row["example_id"] for row in rows(load_table(tmp_path / "one", streaming=streaming))] == [10, 11]


def test_what_is_loaded_can_be_saved_and_loaded(write, tmp_path):
    path = write("a.csv", "text,yes,no\nfirst,1,2\nsecond,0,5\n")
    dataset = load_votes(str(path), label_columns=["yes", "no"])["train"]
    dataset.save_to_disk(tmp_path / "disk")
    dataset.to_parquet(tmp_path / "a.parquet")
    for again in (load_from_disk(tmp_path / "disk"), load_votes(str(tmp_path / "a.parquet"))["train"]):
        assert class_names(again) == ["yes", "no"] and list(again) == list(dataset)
        validate_votes(again, need_counts=True)


def folder_of(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    for split, text in files.items():
        (folder / f"{split}.csv").write_text(text)
    return folder


def test_ids_are_unique_over_the_splits(tmp_path):
    folder = folder_of(tmp_path, train="a,b\n1,2\n3,4\n", test="a,b\n5,6\n")
    whole = load_table(folder, label_columns=["a", "b"])
    stream = load_table(folder, streaming=True, label_columns=["a", "b"])
    ids = {key: [row["example_id"] for row in rows(whole, key)] for key in whole}
    assert ids["train"] == [0, 1] and ids["test"] not in ([0], [1])
    assert ids == {key: [row["example_id"] for row in rows(stream, key)] for key in stream}
    alone = load_table(folder, split="test", label_columns=["a", "b"])
    assert [row["example_id"] for row in rows(alone, "test")] == ids["test"]
    folder = folder_of(tmp_path, train="example_id,a,b\n7,1,2\n", test="example_id,a,b\n7,5,6\n")
    with pytest.raises(VotesError, match=r"Over the splits train, test: .*occur more than once: 7"):
        load_table(folder, label_columns=["a", "b"])
    assert len(load_table(folder, split="test", label_columns=["a", "b"])["test"]) == 1


def test_long_tables(write, caplog):
    path = write("a.csv", "post,text,vote,who,mood\n9,x,no,ann,1\n9,x,yes,bob,2\n4,y,yes,ann,3\n")
    dataset = load_votes(str(path), item="post", label="vote", annotator="who")["train"]
    assert list(dataset) == [
        {
            "text": "y",
            "votes": [0, 1],
            "example_id": 4,
            "label": None,
            "annotator_ids": ["ann"],
            "annotations": [1],
        },
        {
            "text": "x",
            "votes": [1, 1],
            "example_id": 9,
            "label": None,
            "annotator_ids": ["ann", "bob"],
            "annotations": [0, 1],
        },
    ]
    assert "Left out" in caplog.text and "mood" in caplog.text
    kept = load_table(path, item="post", label="vote", keep=[])["train"]
    assert kept.column_names == ["votes", "example_id", "label"]
    with pytest.raises(VotesError, match=r"`mood` is not the same throughout the item\(s\) 9"):
        load_table(path, item="post", label="vote", keep=["mood"])
    with pytest.raises(VotesError, match="There is no column nope"):
        load_table(path, item="nope", label="vote")
    with pytest.raises(VotesError, match="cannot be streamed"):
        load_table(path, streaming=True, item="post", label="vote")


def test_long_splits_need_the_same_classes_and_own_ids(tmp_path):
    folder = folder_of(tmp_path, train="id,l\nu,a\nu,b\nv,a\n", test="id,l\nw,a\n")
    with pytest.raises(VotesError, match=r"different classes .*train: a, b; test: a.*`names`"):
        load_table(folder, item="id", label="l")
    loaded = load_table(folder, item="id", label="l", names=["a", "b"])
    assert [row["votes"] for row in rows(loaded, "test")] == [[1, 0]]
    ids = [row["example_id"] for key in loaded for row in rows(loaded, key)]
    assert ids[:2] == [0, 1] and len(set(ids)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no column votes among: a, b.*votes=.*label_columns=.*item="),
        ({"item": "a"}, "both `item` and `label`"),
        ({"annotator": "a"}, "both `item` and `label`"),
        ({"votes": "a", "label_columns": ["a", "b"]}, "in one way"),
        ({"item": "a", "label": "b", "label_columns": ["a", "b"]}, "in one way"),
        ({"label_columns": ["a", "b"], "subset": "x"}, "no `subset`"),
    ],
)
def test_wrong_options(write, options, message):
    with pytest.raises(VotesError, match=message):
        load_table(write("a.csv", "a,b\n1,2\n"), **options)


@BOTH
def test_files_that_are_not_tables(write, tmp_path, streaming):
    with pytest.raises(VotesError, match=r"suffix must be one of \.csv"):
        load_votes(str(write("a.txt", "a,b\n")), streaming=streaming)
    with pytest.raises(VotesError, match=r"no file or folder .*absent\.csv"):
        load_votes(str(tmp_path / "absent.csv"), streaming=streaming)
    with pytest.raises(VotesError, match="no file or folder"):
        load_votes("data/absent.csv", streaming=streaming)
    with pytest.raises(VotesError, match=r"empty|could not be loaded"):
        load_table(write("a.csv", "a,b\n"), streaming=streaming, label_columns=["a", "b"])
    with pytest.raises(VotesError, match="takes no `sources`"):
        load_votes(str(write("b.csv", "a,b\n1,2\n")), sources=tmp_path, label_columns=["a", "b"])


def test_several_streamed_files_need_ids(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(2):
        pd.DataFrame({"a": [1, 2], "b": [0, 1], "uid": [2 * i, 2 * i + 1]}).to_parquet(folder / f"train-{i}.parquet")
    with pytest.raises(VotesError, match="2 files that are streamed in parallel"):
        load_table(folder, streaming=True, label_columns=["a", "b"])
    stream = load_table(folder, streaming=True, label_columns=["a", "b"], example_id="uid")["train"]
    assert [row["example_id"] for row in stream] == [0, 1, 2, 3]
    assert dense_votes(load_table(folder, label_columns=["a", "b"])["train"]).tolist() == [[1, 0], [2, 1]] * 2


def test_a_misspelt_option_names_the_nearest_one(tmp_path):
    with pytest.raises(VotesError, match="Did you mean 'label_columns'"):
        load_votes(str(tmp_path / "x/y.csv"), label_colums=["a", "b"])
