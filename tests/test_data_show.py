"""What `hf-softlabel data show` prints, against numbers worked out by hand and the authors' own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Value

from hf_softlabel import load_votes
from hf_softlabel.cli import main
from hf_softlabel.data.show import describe_votes, entropy_histogram, format_description, shortened
from hf_softlabel.data.votes import votes_features

VOTES = [[4, 0], [2, 2], [1, 3], [0, 8]]
GOLD = [0, 1, 0, 1]


def small(rows=slice(None), names=("no", "yes")) -> Dataset:
    columns = {
        "text": [f"question {i}" for i in range(4)][rows],
        "votes": VOTES[rows],
        "example_id": [10, 11, 12, 13][rows],
        "label": GOLD[rows],
    }
    return Dataset.from_dict(columns, features=Features({"text": Value("string"), **votes_features(names)}))


def test_counts_ties_and_entropies_are_those_worked_out_by_hand():
    found = describe_votes(DatasetDict(train=small(slice(0, 3)), test=small(slice(3, 4))), examples=2)
    assert found.splits == {"train": 3, "test": 1}
    assert found.totals.tolist() == [4, 4, 4, 8]
    # Of all 20 votes, not the mean of the examples' shares.
    assert found.shares == pytest.approx([7 / 20, 13 / 20])
    # The tie is nobody's majority.
    assert (found.majorities.tolist(), found.ties) == ([1, 2], 1)
    quarter = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert found.entropies == pytest.approx([0, 1, quarter, 0])
    # Gold 0, 1, 0, 1 against the majorities 0, none, 1, 1.
    assert (found.gold, found.agreeing) == (4, 2)
    assert found.annotators is None
    first, second = found.disagreed
    assert (first.example_id, second.example_id, second.split) == (11, 12, "train")
    assert second.votes.tolist() == [1, 3] and second.inputs == {"text": "question 2"}


def test_the_whole_text():
    found = describe_votes({"train": small(slice(0, 3)), "test": small(slice(3, 4))}, examples=4)
    assert format_description("mine", found, blocks=False).splitlines() == [
        "mine",
        "  examples    4 (train 3, test 1)",
        "  classes     2: no, yes",
        "  votes       20; 4 to 8 (median 4) per example",
        "  annotators  not named",
        "  unanimous   2 of the examples (50.0%)",
        "  ties        1 of the examples (25.0%), which have no single majority",
        "  gold label  of 4 examples; the majority agrees with it in 50.0%",
        "",
        "entropy of the votes / log(classes), mean 0.453",
        "  0.0 to 0.1 2 ########################################",
        "  0.1 to 0.2 0",
        "  0.2 to 0.3 0",
        "  0.3 to 0.4 0",
        "  0.4 to 0.5 0",
        "  0.5 to 0.6 0",
        "  0.6 to 0.7 0",
        "  0.7 to 0.8 0",
        "  0.8 to 0.9 1 ####################",
        "  0.9 to 1.0 1 ####################",
        "",
        "  class   votes  majority of",
        "  no      35.0%  1",
        "  yes     65.0%  2",
        "",
        "most disagreed on",
        "  train 11  entropy 1.000  no: 2, yes: 2",
        "      text: question 1",
        "  train 12  entropy 0.811  yes: 3, no: 1",
        "      text: question 2",
    ]


def test_bars_are_as_long_as_their_numbers():
    values = np.concatenate([np.full(80, 0.05), np.full(41, 0.55), np.full(1, 0.95)])
    lines = entropy_histogram(values).splitlines()
    # 40 * 41 / 80 = 20.5 characters; one example of eighty still shows.
    assert [lines[i].split()[-1] for i in (0, 5, 9)] == ["█" * 40, "█" * 20 + "▌", "▌"]
    many = entropy_histogram(np.concatenate([np.full(100_000, 0.05), [0.95]])).splitlines()
    assert many[9].split()[-1] == "▏"
    plain = entropy_histogram(np.concatenate([np.full(100_000, 0.05), [0.95]]), blocks=False)
    assert plain.isascii() and plain.splitlines()[9].endswith("1 #")


def test_texts_are_one_short_line_that_cannot_act_on_a_terminal():
    assert shortened("a\x1b[31mred\n\n text") == "a [31mred text"
    assert shortened("seven words in a row are here", width=20) == "seven words in a..."


def test_annotators_and_probabilities(tmp_path, capsys):
    rows = ["tweet,answer,who", "a,yes,ann", "a,no,bob", "b,yes,ann", "b,yes,cem", "c,no,ann"]
    (tmp_path / "long.csv").write_text("\n".join(rows) + "\n")
    words = ["--item_column", "tweet", "--label_column", "answer", "--annotator_column", "who"]
    assert main(["data", "show", str(tmp_path / "long.csv"), *words]) == 0
    out = capsys.readouterr().out
    assert "annotators  3; 1 to 3 (median 1) votes each" in out and "gold label  none" in out
    assert "      tweet: a" in out
    (tmp_path / "wide.csv").write_text("question,no,yes\na,0.25,0.75\nb,0.5,0.5\n")
    assert main(["data", "show", str(tmp_path / "wide.csv"), "--label_columns", "no", "yes", "--examples", "1"]) == 0
    out = capsys.readouterr().out
    assert "votes       probabilities; how many people voted is not known" in out
    assert "  1  entropy 1.000  no: 0.5, yes: 0.5" in out and "entropy 0.811" not in out


def test_only_one_split_and_wrong_input(tmp_path, capsys):
    DatasetDict(train=small(slice(0, 3)), test=small(slice(3, 4))).save_to_disk(tmp_path / "votes")
    assert main(["data", "show", str(tmp_path / "votes"), "--split", "test"]) == 0
    assert "examples    1 (test 1)" in capsys.readouterr().out
    for words, message in [
        (["--split", "dev"], "has no split 'dev', only train, test"),
        (["--examples", "-1"], "--examples must not be negative"),
    ]:
        assert main(["data", "show", str(tmp_path / "votes"), *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["data", "show", "chaosnil"]) == 2
    assert "Did you mean 'chaosnli'?" in capsys.readouterr().err


@pytest.mark.parametrize(("encoding", "bar"), [("ascii", "####"), ("utf-8", "████")])
def test_a_terminal_that_has_no_blocks_gets_plain_bars(tmp_path, encoding, bar):
    small(names=("nein", "für")).save_to_disk(tmp_path / "votes")
    done = subprocess.run(
        [sys.executable, "-m", "hf_softlabel", "data", "show", str(tmp_path / "votes")],
        env={**os.environ, "PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout.decode(encoding)
    assert bar in out and ("f\\xfcr" if encoding == "ascii" else "für") in out


@pytest.mark.sources
def test_chaosnli_has_the_entropy_that_its_authors_computed(sources):
    lines = next(sources.rglob("chaosNLI_mnli_m.jsonl")).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    found = describe_votes(load_votes("chaosnli", "mnli", sources=sources), examples=1)
    # Theirs is in bits.
    assert found.entropies == pytest.approx([row["entropy"] / math.log2(3) for row in rows], abs=1e-6)
    assert rows[found.disagreed[0].example_id]["entropy"] == max(row["entropy"] for row in rows)
    assert found.disagreed[0].inputs.keys() == {"premise", "hypothesis"}
    assert found.totals.tolist() == [100] * 1599
