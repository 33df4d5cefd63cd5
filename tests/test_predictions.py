"""Predictions of any program: every form that a file may have, and what is refused instead of being guessed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax

from hf_softlabel.data.errors import VotesError
from hf_softlabel.predictions import read_predictions

NAMES = ["against", "unsure", "for"]
OTHER = ["for", "against", "unsure"]
IDS = [30, 10, 20, 40]
LOGITS = np.random.default_rng(0).normal(scale=2, size=(4, 3)).astype(np.float32).astype(float)
PROBABILITIES = softmax(LOGITS, axis=1)


@pytest.fixture
def write(tmp_path):
    """Write a text, or rows in the format of the suffix."""

    def write(name: str, content: str | list[dict]) -> Path:
        path, frame = tmp_path / name, content if isinstance(content, str) else pd.DataFrame(content)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(content), path)  # pandas would make nulls of NaN
        elif path.suffix in (".csv", ".tsv"):
            frame.to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
        elif path.suffix == ".json":
            path.write_text(json.dumps(content))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        return path

    return write


def rows(
    values: np.ndarray, form: str, names: list[str] = NAMES, ids=IDS, id_column: str = "example_id"
) -> list[dict]:
    """The predictions in one of the forms, with classes in the order of `names`."""
    values = values[:, [NAMES.index(name) for name in names]].tolist()
    made = []
    for key, row in zip(ids, values, strict=True):
        named = dict(zip(names, row, strict=True))
        made.append({id_column: key})
        if form == "pipeline":
            ordered = sorted(named.items(), key=lambda item: -item[1])
            made[-1]["predictions"] = [{"label": name, "score": x} for name, x in ordered]
        elif form == "mapping":
            made[-1]["probabilities"] = named
        elif form == "index":
            made[-1] |= {f"logit_{k}": x for k, x in enumerate(row)}
        elif form.endswith("*"):
            made[-1] |= {f"{form[:-1]}{name}": x for name, x in named.items()}
        else:
            made[-1][form] = row
    return made


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "json", "parquet"])
@pytest.mark.parametrize("form", ["logits", "probabilities", "pipeline", "mapping", "logit_*", "prob_*", "index", "*"])
def test_every_form_gives_the_same_numbers(write, suffix, form):
    from_logits = "logit" in form or form == "index"
    values = LOGITS if from_logits else PROBABILITIES
    found = read_predictions(write(f"p.{suffix}", rows(values, form)), NAMES)
    assert found.ids.tolist() == IDS and found.id_column == "example_id" and len(found) == 4
    assert found.values.tolist() == values.tolist() and found.values.dtype == np.float64
    assert found.from_logits == from_logits and found.names == NAMES


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("form", ["logit_*", "logits_*", "prob_*", "probability_*", "index", "*"])
def test_every_form_of_a_text_table(write, suffix, form):
    from_logits = "logit" in form or form == "index"
    values = LOGITS if from_logits else PROBABILITIES
    found = read_predictions(write(f"p.{suffix}", rows(values, form)), NAMES)
    np.testing.assert_allclose(found.values, values, rtol=1e-14)
    assert found.ids.tolist() == IDS and found.from_logits == from_logits


@pytest.mark.parametrize("form", ["logits", "probabilities", "pipeline", "mapping", "logit_*", "prob_*", "*"])
def test_classes_in_another_order_are_put_right_by_their_names(write, form):
    values = LOGITS if "logit" in form else PROBABILITIES
    path = write("p.jsonl", rows(values, form, OTHER))
    found = read_predictions(path, NAMES, order=OTHER)
    assert found.values.tolist() == values.tolist() and found.names == NAMES
    if form not in ("logits", "probabilities"):
        assert read_predictions(path, NAMES).values.tolist() == values.tolist()


def test_lists_keep_the_order_of_the_file_unless_it_is_said(write):
    path = write("p.jsonl", rows(LOGITS, "logits", OTHER))
    assert read_predictions(path, NAMES).values.tolist() == LOGITS[:, [2, 0, 1]].tolist()
    found = read_predictions(path, order=OTHER)
    assert found.values.tolist() == LOGITS[:, [2, 0, 1]].tolist() and found.names == OTHER
    for order in (["for", "against"], ["for", "against", "abstain"], ["for", "for", "against"]):
        with pytest.raises(VotesError, match=r"--classes must be the votes' classes .* They are against, unsure, for"):
            read_predictions(path, NAMES, order=order)
    with pytest.raises(VotesError, match="--classes must be"):
        read_predictions(write("p.csv", rows(LOGITS, "logit_*")), NAMES, order=["a", "b", "c"])


def test_logits_are_what_a_name_says_or_the_option_where_none_does(write):
    plain, named = write("a.csv", rows(LOGITS, "*")), write("b.jsonl", rows(PROBABILITIES, "probabilities"))
    assert read_predictions(plain, NAMES, logits=True).from_logits
    # Of two files the option is for the one that needs it: probabilities must not be taken for logits without a word.
    assert not read_predictions(named, NAMES, logits=True).from_logits
    mine = write("c.jsonl", rows(LOGITS, "mine"))
    with pytest.raises(VotesError, match=r"no predictions that can be found.*example_id, mine.*--column"):
        read_predictions(mine, NAMES)
    assert read_predictions(mine, NAMES, column="mine", logits=True).values.tolist() == LOGITS.tolist()
    with pytest.raises(VotesError, match=r"no probabilities: 30, 10.*say --logits; if they are rounded"):
        read_predictions(mine, NAMES, column="mine")
    with pytest.raises(VotesError, match="has no column yours; it has example_id, mine"):
        read_predictions(mine, NAMES, column="yours")


@pytest.mark.parametrize(
    ("form", "remedy"),
    [
        ("probabilities", "say --logits --column probabilities"),
        ("prob_*", "name their columns logit_<class>"),
        ("*", "say --logits"),
        ("pipeline", "say --logits --column predictions"),
    ],
)
def test_logits_given_as_probabilities_are_refused(write, form, remedy):
    values = PROBABILITIES.copy()
    values[[1, 3]] = LOGITS[[1, 3]]
    path = write("p.jsonl", rows(values, form))
    with pytest.raises(
        VotesError, match=rf"2 example\(s\) are no probabilities: 10, 40. If they are logits, {remedy};"
    ):
        read_predictions(path, NAMES)


def test_rounded_probabilities_are_divided_by_their_sum_only_when_asked(write):
    rounded = [[0.33, 0.33, 0.33], [0.1, 0.2, 0.7], [0.67, 0.17, 0.17], [1, 0, 0]]
    path = write("p.jsonl", rows(np.array(rounded), "probabilities"))
    with pytest.raises(VotesError, match=r"2 example\(s\) are no probabilities: 30, 20.*--normalize"):
        read_predictions(path, NAMES)
    found = read_predictions(path, NAMES, normalize=True).values
    np.testing.assert_allclose(found[[0, 2]], [[1 / 3] * 3, [67 / 101, 17 / 101, 17 / 101]])
    # Four decimals and float32 are within the tolerance, and are left as they are.
    almost = [[0.3333, 0.3333, 0.3333]] * 4
    assert read_predictions(write("a.jsonl", rows(np.array(almost), "probabilities")), NAMES).values.tolist() == almost
    for wrong in ([-0.1, 0.5, 0.6], [0, 0, 0]):
        path = write("p.jsonl", rows(np.array([wrong, *rounded[1:]]), "probabilities"))
        with pytest.raises(VotesError, match=r"example\(s\) 30 are negative or all 0"):
            read_predictions(path, NAMES, normalize=True)
    logits = write("l.jsonl", rows(LOGITS, "logits"))
    assert read_predictions(logits, NAMES, normalize=True).values.tolist() == LOGITS.tolist()


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "csv"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_predictions_that_are_not_finite_are_refused_by_their_ids(write, suffix, value):
    values = LOGITS.copy()
    values[2, 1] = value
    path = write(f"p.{suffix}", rows(values, "logit_*" if suffix == "csv" else "logits"))
    wanted = r"`logit_unsure` is missing in row\(s\) 2" if suffix == "csv" and np.isnan(value) else "20 are not finite"
    with pytest.raises(VotesError, match=wanted):
        read_predictions(path, NAMES)


def test_a_class_may_be_excluded_by_a_logit_of_minus_infinity(write):
    values = LOGITS.copy()
    values[0, 0] = -np.inf
    assert read_predictions(write("p.parquet", rows(values, "logits")), NAMES).values[0, 0] == -np.inf
    values[0] = -np.inf
    with pytest.raises(VotesError, match="30 are not finite"):
        read_predictions(write("p.parquet", rows(values, "logits")), NAMES)


@pytest.mark.parametrize(
    ("suffix", "keys", "expected"),
    [
        ("csv", ["46359n", "007a", "NA", "x"], ["46359n", "007a", "NA", "x"]),
        ("csv", [2**63 - 1, 2**63 - 2, 0, -5], [2**63 - 1, 2**63 - 2, 0, -5]),
        ("csv", [2**64 - 1, 2**63, 2, 1], [str(2**64 - 1), str(2**63), "2", "1"]),
        ("csv", ["1.0", "2.0", "3.0", "4.0"], ["1.0", "2.0", "3.0", "4.0"]),
        ("csv", ["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"], [f"2020-01-0{i}" for i in (1, 2, 3, 4)]),
        ("jsonl", ["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"], [f"2020-01-0{i}" for i in (1, 2, 3, 4)]),
        ("jsonl", [2**63 - 1, 2**63 - 2, 0, -5], [2**63 - 1, 2**63 - 2, 0, -5]),
        ("jsonl", ["1", "01", "1.0", "é"], ["1", "01", "1.0", "é"]),
        ("parquet", pd.Categorical(["d", "c", "b", "a"]), ["d", "c", "b", "a"]),
        ("parquet", np.array([2**64 - 1, 2**63, 2, 1], np.uint64), [2**64 - 1, 2**63, 2, 1]),
    ],
)
def test_ids_are_read_as_they_are_written(write, tmp_path, suffix, keys, expected):
    if suffix == "parquet":
        pd.DataFrame({"id": keys, "logits": LOGITS.tolist()}).to_parquet(tmp_path / "p.parquet")
        path = tmp_path / "p.parquet"
    else:
        path = write(f"p.{suffix}", rows(LOGITS, "logit_*", ids=keys, id_column="id"))
    assert read_predictions(path, NAMES).ids.tolist() == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", '{"id": 1, "logits": [1, 2, 3]}\n{"id": 2, "logits": [1,', "cannot be read as jsonl: .*row 1"),
        ("p.jsonl", "", "cannot be read as jsonl: Empty"),
        ("p.csv", "", "cannot be read as csv: Empty"),
        ("p.csv", "id,against,unsure,for\n", "is empty: there are no predictions"),
        ("p.json", "[]", "is empty: there are no predictions"),
        ("p.json", '{"id": {"0": 1}, "logits": {"0": [1, 2, 3]}}', "must be an array of objects"),
        ("p.json", "[1, 2]", "must be an array of objects"),
        ("p.json", '[{"id": 99999999999999999999, "logits": [1, 2, 3]}]', "cannot be read as json: .*too large"),
        ("p.parquet", "not a parquet file", "cannot be read as parquet"),
        ("p.txt", "1 2 3", "predictions are .jsonl, .json, .parquet, .csv or .tsv, or a run directory"),
        ("p.csv", "id,against,unsure,for\n1,1,0\n", "cannot be read as csv: .*Expected 4 columns, got 3"),
        ("p.csv", "id,against,unsure,for,for\n1,1,0,0,0\n", "more than one column for: rename"),
        (
            "p.csv",
            "id,against,unsure,for\n1,1,0,0\n2,,0,1\n3,,0,1\n",
            r"`against` is missing in row\(s\) 1, 2: remove",
        ),
        ("p.csv", "id,against,unsure,for\n1,,0,1\n", r"`against` is missing in row\(s\) 0"),
        ("p.csv", "id,against,unsure,for\n1,yes,0,0\n", "column against must be numbers, not string"),
        ("p.csv", "against,unsure,for\n1,0,0\n", r"column with the examples' ids \(example_id, id or uid\)"),
        ("p.csv", "id,against,unsure,for\n1,1,0,0\n,1,0,0\n", r"`id` is missing in row\(s\) 1"),
        ("p.csv", "id,against,unsure,for\n7,1,0,0\n8,1,0,0\n7,0,1,0\n", "more than once in `id`: 7"),
        ("p.csv", "id,prob_0,prob_1,prob_2,prob_3\n1,1,0,0,0\n", "also predicts prob_3, beside"),
        ("p.csv", "id,logit_against,logit_unsure,logit_for,logit_other\n1,1,0,0,0\n", "also predicts logit_other"),
        ("p.csv", "id,against,unsure\n1,1,0\n", "a column for each of the classes against, unsure, for"),
        (
            "p.jsonl",
            '{"id": 18446744073709551615, "logits": [1, 2, 3]}',
            r"integers \(below 2\*\*63\) or strings, not do",
        ),
        ("p.jsonl", '{"id": [1], "logits": [1, 2, 3]}', "must be integers .* or strings, not list"),
        ("p.jsonl", '{"id": 1, "logits": [1, 2]}', "`logits` has 2 entries, but there are 3 classes"),
        ("p.jsonl", '{"id": 1, "logits": [1, 2, 3]}\n{"id": 2, "logits": [1]}', r"not have 3 entries in row\(s\) 1"),
        ("p.jsonl", '{"id": 1, "logits": [1, 2, 3]}\n{"id": 2, "logits": null}', r"not have 3 entries in row\(s\) 1"),
        (
            "p.jsonl",
            '{"id": 1, "logits": [1, 2, 3]}\n{"id": 2, "logits": [1, null, 3]}',
            r"missing numbers in row\(s\) 1",
        ),
        ("p.jsonl", '{"id": 1, "logits": ["a", "b", "c"]}', "`logits` must be a list of numbers"),
        (
            "p.jsonl",
            '{"id": 1, "probabilities": {"for": 0.5, "against": 0.5}}',
            r"row\(s\) 0 .* the first has for, again",
        ),
        ("p.jsonl", '{"id": 1, "probabilities": {"for": 1, "against": 0, "unsure": 0, "so": 0}}', "also predicts so,"),
        (
            "p.jsonl",
            '{"id": 1, "probabilities": {"for": "1", "against": "0", "unsure": "0"}}',
            r"row\(s\) 0 have something else",
        ),
        ("p.jsonl", '{"id": 1, "scores": [{"label": "for", "score": 0.9}]}', "top_k=None"),
        ("p.jsonl", '{"id": 1, "scores": [{"name": "for", "p": 0.9}]}', "row 0 is not a list of {label, score}"),
        (
            "p.jsonl",
            '{"id": 1, "scores": [{"label": "for", "score": 0.9}, {"label": "for", "score": 0.1}]}',
            "row 0 has a label more than once",
        ),
    ],
)
def test_what_is_refused(write, name, text, message):
    with pytest.raises(VotesError, match=message):
        read_predictions(write(name, text), NAMES)


def test_missing_files_and_columns(write, tmp_path):
    with pytest.raises(VotesError, match=r"There is no file .*none.csv"):
        read_predictions(tmp_path / "none.csv")
    with pytest.raises(VotesError, match=r"is not a finished run: it has no predictions.parquet"):
        read_predictions(tmp_path)
    path = write("p.jsonl", rows(LOGITS, "logits", id_column="key"))
    with pytest.raises(VotesError, match="does not have the column code; it has key, logits"):
        read_predictions(path, id_column="code")
    assert read_predictions(path, id_column="key").ids.tolist() == IDS


def test_ids_of_the_first_known_column(write):
    made = [row | {"uid": f"u{i}", "id": i} for i, row in enumerate(rows(LOGITS, "logits", id_column="x"))]
    path = write("p.jsonl", made)
    assert read_predictions(path).id_column == "id"
    assert read_predictions(path, id_column="uid").ids.tolist() == ["u0", "u1", "u2", "u3"]


def test_a_file_of_its_own_votes(write):
    made = [row | {"votes": [i, 1, 2]} for i, row in enumerate(rows(LOGITS, "logits"))]
    found = read_predictions(write("p.parquet", made))
    assert found.votes.tolist() == [[i, 1, 2] for i in range(4)] and found.votes.dtype.kind == "i"
    assert found.take(np.array([2, 0])).votes.tolist() == [[2, 1, 2], [0, 1, 2]]
    # With votes from elsewhere its own do not matter, whatever they are.
    made = [row | {"votes": "3 against"} for row in rows(LOGITS, "logits")]
    assert read_predictions(write("p.parquet", made), NAMES).votes is None
    named = [row | {"votes": [3, 1, 0]} for row in rows(PROBABILITIES, "mapping")]
    with pytest.raises(VotesError, match="predictions by name: say the order of its votes' classes with --classes"):
        read_predictions(write("n.jsonl", named))
    assert read_predictions(write("n.jsonl", named), order=NAMES).values.tolist() == PROBABILITIES.tolist()
