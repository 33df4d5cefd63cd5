"""Votes from tables of annotations, by hand-worked cases and against a plain loop."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import PIL.Image
import pytest
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_softlabel.data.annotations import votes_from_annotations
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.votes import class_names, dense_votes, validate_votes

LONG = {
    "post": [12, 5, 12, 5, 12],
    "vote": [1.0, 3.0, 3.0, 3.0, 10.0],
    "who": ["ann", "ann", "bob", "cid", "cid"],
    "text": ["x", "y", "x", "y", "x"],
}


def test_annotations_by_hand():
    dataset = votes_from_annotations(LONG, item="post", label="vote", annotator="who", keep=["text"])
    assert class_names(dataset) == ["1", "3", "10"]  # as numbers, not as text
    assert list(dataset) == [
        {
            "text": "y",
            "votes": [0, 2, 0],
            "example_id": 5,
            "label": None,
            "annotator_ids": ["ann", "cid"],
            "annotations": [1, 1],
        },
        {
            "text": "x",
            "votes": [1, 1, 1],
            "example_id": 12,
            "label": None,
            "annotator_ids": ["ann", "bob", "cid"],
            "annotations": [0, 1, 2],
        },
    ]
    assert dataset.features["text"] == Value("string")
    assert dataset.features["annotations"] == List(ClassLabel(names=["1", "3", "10"]))
    validate_votes(dataset, need_counts=True)


def test_items_that_are_not_integers_are_numbered_as_they_appear():
    table = {**LONG, "post": ["z", "a", "z", "a", "z"], "who": [1, 2, 3, 4, 5]}
    dataset = votes_from_annotations(table, item="post", label="vote", annotator="who", names=[10, 3, 2, 1])
    assert dataset["post"][:] == ["z", "a"] and dataset["example_id"][:] == [0, 1]
    assert class_names(dataset) == ["10", "3", "2", "1"]
    assert dataset["votes"][:] == [[1, 1, 0, 1], [0, 2, 0, 0]]
    assert dataset["annotator_ids"][:] == [[1, 3, 5], [2, 4]]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "pandas", "datasets", "dict"])
def test_all_kinds_of_tables_give_the_same(tmp_path, kind):
    frame = pd.DataFrame({**LONG, "vote": ["no", "None", "no", "yes", "yes"]})
    path = tmp_path / f"a.{kind}"
    match kind:
        case "csv" | "tsv":
            frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
        case "jsonl":
            frame.to_json(path, orient="records", lines=True)
        case "parquet":
            frame.to_parquet(path)
    table = {"pandas": frame, "datasets": Dataset.from_pandas(frame), "dict": frame.to_dict("list")}.get(kind, path)
    dataset = votes_from_annotations(table, item="post", label="vote", annotator="who", keep=["text"])
    assert class_names(dataset) == ["None", "no", "yes"]  # "None" is an answer, not a missing one
    assert dataset["votes"][:] == [[1, 0, 1], [0, 2, 1]] and dataset["text"][:] == ["y", "x"]


def test_class_labels_and_images_of_a_data_set_are_kept():
    pixels = [np.full((2, 2, 3), shade, np.uint8) for shade in (10, 200)]
    data = {"id": [4, 3, 4], "l": [1, 0, 1], "image": [PIL.Image.fromarray(pixels[i]) for i in (0, 1, 0)]}
    features = Features({"id": Value("int64"), "l": ClassLabel(names=["no", "yes", "never"]), "image": Image()})
    table = Dataset.from_dict(data, features=features)
    dataset = votes_from_annotations(table, item="id", label="l", keep=["image"])
    assert class_names(dataset) == ["no", "yes", "never"] and dataset["votes"][:] == [[1, 0, 0], [0, 2, 0]]
    assert dataset["example_id"][:] == [3, 4] and np.asarray(dataset[0]["image"])[0, 0, 0] == 200
    data["image"][2] = PIL.Image.fromarray(pixels[1])
    with pytest.raises(VotesError, match=r"`image` is not the same throughout the item\(s\) 4"):
        votes_from_annotations(Dataset.from_dict(data, features=features), item="id", label="l", keep=["image"])


def changed(**columns) -> dict:
    return {**LONG, **columns}


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (LONG, {"names": ["1", "3"]}, r"Unknown label\(s\) 10 in the column `vote` in 1 row\(s\): 4.*add them"),
        (changed(vote=[1, None, 3, 3, 3]), {}, r"label \(column `vote`\) is missing in 1 row\(s\): 1"),
        (changed(post=[1, 1, 2, None, 3]), {}, r"item \(column `post`\) is missing in 1 row\(s\): 3"),
        (changed(who=["a", "b", None, "c", "d"]), {"annotator": "who"}, r"annotator \(column `who`\) is missing"),
        (changed(who=["a", "b", "a", "b", "c"]), {"annotator": "who"}, r"item 12 by annotator a, item 5 by annot.*b"),
        (changed(text=["x", "y", "x", "y", "z"]), {"keep": ["text"]}, r"`text` is not .* item\(s\) 12"),
        (LONG, {"names": ["1", "3", "10", 3]}, "distinct .*repeated: 3"),
        (LONG, {"annotator": "nobody"}, "no column nobody among: post, vote, who, text"),
        (changed(label=[0] * 5), {"keep": ["label"]}, r"column\(s\) label would be overwritten"),
        ({"post": [], "vote": []}, {}, "empty"),
    ],
)
def test_wrong_annotations(table, options, message):
    with pytest.raises(VotesError, match=message):
        votes_from_annotations(table, item="post", label="vote", **options)


def test_wrong_files_of_annotations(tmp_path):
    with pytest.raises(VotesError, match="There is no file"):
        votes_from_annotations(tmp_path / "a.csv", item="a", label="b")
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises(VotesError, match=r"\.xlsx is not one of \.csv"):
        votes_from_annotations(tmp_path / "a.xlsx", item="a", label="b")


def test_repeated_annotators_can_be_allowed():
    table = changed(who=["a", "b", "a", "b", "c"])
    dataset = votes_from_annotations(table, item="post", label="vote", annotator="who", allow_repeated=True)
    assert dataset["votes"][:] == [[0, 2, 0], [1, 1, 1]]
    assert dataset["annotator_ids"][:] == [["b", "b"], ["a", "a", "c"]]


annotation = st.tuples(st.integers(-5, 5), st.sampled_from("abc"))


@settings(max_examples=60, deadline=None)
@given(st.lists(annotation, min_size=1, max_size=40), st.randoms())
def test_counting_equals_a_loop_and_ignores_the_order_of_the_rows(pairs, random):
    def count(rows):
        table = {"item": [item for item, _ in rows], "vote": [vote for _, vote in rows]}
        return votes_from_annotations(table, item="item", label="vote", names=["a", "b", "c"])

    expected: dict[int, list[int]] = {}
    for item, vote in pairs:
        expected.setdefault(item, [0, 0, 0])["abc".index(vote)] += 1
    dataset = count(pairs)
    assert dict(zip(dataset["example_id"][:], dataset["votes"][:], strict=True)) == expected
    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert list(count(shuffled)) == list(dataset)


def test_a_million_annotations_are_counted_at_once():
    """Several seconds would mean that somebody put a loop over the rows in."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    frame = pd.DataFrame({"i": rng.integers(0, 100_000, n), "l": rng.integers(0, 5, n), "a": np.arange(n)})
    start = time.perf_counter()
    dataset = votes_from_annotations(frame, item="i", label="l", annotator="a")
    assert time.perf_counter() - start < 5
    assert dense_votes(dataset).sum() == n
