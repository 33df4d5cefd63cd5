"""What `hf-softlabel score` refuses, and the command in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from preloaded import python

from hf_softlabel import load_votes
from hf_softlabel.cli import main

COLUMNS = ["--label_columns", "no", "yes"]
WIDE = ["--votes", "votes.csv", *COLUMNS]
OWN = '{"id": 1, "logits": [1, 2], "votes": [0, 3]}\n{"id": 2, "logits": [1, 2], "votes": [1, 0]}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("votes.csv").write_text("id,no,yes\n1,3,1\n2,0,5\n3,2,2\n")
    Path("p.csv").write_text("id,no,yes\n1,0.5,0.5\n2,0.1,0.9\n3,0.25,0.75\n")
    Path("own.jsonl").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({}, ["none.csv", *WIDE], "There is no file none.csv."),
        ({}, [".", *WIDE], ". is not a finished run: it has no predictions.parquet."),
        ({}, ["p.csv", "--votes", "none.csv"], "There is no data set 'none.csv' (nor a file"),
        ({}, ["p.csv", "--votes", "votes.csv"], "There is no column votes among: id, no, yes."),
        ({}, ["p.csv"], "(Columns by class are found when --votes or --classes says the classes.)"),
        (
            {},
            ["p.csv", "--classes", "no", "yes"],
            "p.csv does not hold the votes too: say where they are with --votes.",
        ),
        ({}, ["p.csv", "--votes", "votes.csv", "--label_columns", "no", "maybe"], "There is no column maybe"),
        (
            {"p.csv": "id,no,yes\n1,1,0\n4,1,0\n"},
            ["p.csv", *WIDE],
            "p.csv has predictions on 1 example(s) that votes.csv does not have: 4. Is the id column the right one "
            "(--id_column)? Its first ids are 1, 2, 3.",
        ),
        ({"p.csv": "id,no,yes\n1,1,0\n1,1,0\n"}, ["p.csv", *WIDE], "occur more than once in `id`: 1."),
        ({"votes.csv": "id,no,yes\n1,1,0\n2,1,0\n3,1,0\n1,1,0\n"}, ["p.csv", *WIDE], "ids occur more than once: 1."),
        (
            {"p.csv": "key,no,yes\n1,1,0\n"},
            ["p.csv", *WIDE, "--id_column", "key"],
            "The ids of p.csv are in `key`, which votes.csv does not have; it has id, votes, example_id, label. Say "
            "--id_column for a column that both have, or rename one.",
        ),
        (
            {"q.csv": "id,no,yes\n1,1,0\n2,1,0\n"},
            ["p.csv", "q.csv", *WIDE],
            "p.csv has predictions on 1 example(s) that q.csv does not have: 3.",
        ),
        (
            {"q.csv": "id,no,yes\n1,1,0\n2,1,0\n"},
            ["q.csv", "p.csv", *WIDE],
            "p.csv has 1 example(s) that q.csv does not have: 3. A difference needs the same examples",
        ),
        (
            {"q.csv": "example_id,no,yes\n0,1,0\n1,1,0\n2,1,0\n"},
            ["p.csv", "q.csv", *WIDE],
            "The ids of q.csv are in `example_id`, those of p.csv in `id`.",
        ),
        ({}, ["p.csv", *WIDE, "--temperature", "1", "2"], "2 scalings for 1 predictions: give one, or one for each."),
        ({}, ["p.csv", *WIDE, "--temperature", "0"], "--temperature must be above 0 and finite, not 0.0."),
        ({}, ["p.csv", *WIDE, "--temperature", "-1"], "--temperature must be above 0 and finite, not -1.0."),
        ({}, ["p.csv", *WIDE, "--temperature", "nan"], "--temperature must be above 0 and finite, not nan."),
        ({}, ["p.csv", *WIDE, "--temperature", "inf"], "--temperature must be above 0 and finite, not inf."),
        ({}, ["p.csv", *WIDE, "--resamples", "-1"], "--resamples must not be negative, as -1 is"),
        (
            {"s.json": '{"scale": 0}'},
            ["p.csv", *WIDE, "--scaling", "s.json"],
            "s.json is not what Scaling.save writes",
        ),
        ({}, ["p.csv", *WIDE, "--train_votes", "own.jsonl"], "There is no column no, yes among: id, logits, votes."),
        (
            {"own.jsonl": '{"id": 1, "logits": [1, 2], "votes": [0, 0]}'},
            ["own.jsonl"],
            "`votes` is all zero in 1 row(s): 0.",
        ),
        (
            {"own.jsonl": '{"id": 1, "logits": [1, 2], "votes": [0, 1, 2]}'},
            ["own.jsonl"],
            "`votes` has the shape (1, 3); (examples, 2) was expected.",
        ),
        (
            {"other.jsonl": OWN.replace("[0, 3]", "[0, 6]").replace("[1, 0]", "[1, 1]")},
            ["own.jsonl", "other.jsonl"],
            "other.jsonl and own.jsonl hold different votes on 1 example(s): 2. Say with --votes which",
        ),
    ],
)
def test_what_is_refused_says_what_where_and_how_to_mend_it(folder, capsys, files, words, message):
    for name, text in files.items():
        Path(name).write_text(text)
    before = {path.name for path in folder.iterdir()}
    assert main(["score", "--resamples", "0", "--json", "--plot", "figures", "--predictions", *words]) == 2
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("hf-softlabel: error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert out == "" and {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize("words", [["--predictions"], [], ["--predictions", "p.csv", "--temperature", "warm"]])
def test_words_that_the_parser_refuses(folder, capsys, words):
    with pytest.raises(SystemExit) as stop:
        main(["score", *words])
    assert stop.value.code == 2 and "usage: hf-softlabel score" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["score", "calibrate"])
def test_help_has_examples_of_options_that_exist(folder, capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    text = capsys.readouterr().out
    examples = [line.split() for line in text.splitlines() if line.startswith(f"  hf-softlabel {command} ")]
    assert stop.value.code == 0 and len(examples) >= 2
    options = text.split("examples:")[0]
    for example in examples:
        for word in example:
            assert not word.startswith("--") or f"  {word} " in options, word


def run(*words, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [python(), "-m", "hf_softlabel", "score", "--resamples", "10", *words],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=120,
    )


def test_a_stream_that_cannot_show_arrows(folder):
    Path("naïve.csv").write_bytes(Path("p.csv").read_bytes())
    done = run("--predictions", "naïve.csv", "p.csv", *WIDE, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "soft NLL v " in text and "accuracy ^ " in text and "p.csv - na\\xefve.csv" in text


def test_json_is_all_that_is_on_stdout_and_a_closed_pipe_is_no_error(folder):
    done = run("--predictions", "p.csv", *WIDE, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["examples"] == 3
    read, write = os.pipe()
    os.close(read)
    words = [python(), "-m", "hf_softlabel", "score", "--resamples", "0", "--predictions", "p.csv", *WIDE]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=120)
    os.close(write)
    assert done.returncode == 141 and b"roken pipe" not in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.sources
@pytest.mark.parametrize(
    ("subset", "js", "kl"), [("snli", 0.3829, 0.5455), ("mnli", 0.3022, 0.3557), ("alphanli", 0.3205, 0.4060)]
)
def test_a_uniform_predictor_on_chaosnli_by_uid(folder, sources, capsys, subset, js, kl):
    uids = load_votes("chaosnli", subset=subset, sources=sources)["train"]["uid"][:]
    classes = 2 if subset == "alphanli" else 3
    frame = pd.DataFrame({"uid": uids, "probabilities": [[1 / classes] * classes] * len(uids)})
    frame.sample(frac=1, random_state=0).to_json("u.jsonl", orient="records", lines=True, double_precision=15)
    words = ["--votes", "chaosnli", "--subset", subset, "--sources", str(sources), "--resamples", "0", "--json"]
    assert main(["score", "--predictions", "u.jsonl", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    scores = {name: entry["value"] for name, entry in found["predictions"][0]["scores"].items()}
    assert scores["js_distance"] == pytest.approx(js, abs=5e-5) and scores["kl"] == pytest.approx(kl, abs=5e-5)
    assert found["predictions"][0]["scores"]["entropy_correlation"]["undefined"].startswith("the predictions have the")
    # The uniform reference is the same predictor.
    assert found["references"]["uniform"]["entropy_correlation"] is scores["entropy_correlation"] is None
    same = {name: value for name, value in found["references"]["uniform"].items() if value is not None}
    assert same == pytest.approx({name: scores[name] for name in same}, abs=1e-9)


@pytest.mark.sources
def test_the_votes_themselves_on_chaosnli_reach_the_floor(folder, sources, capsys):
    data = load_votes("chaosnli", subset="snli", sources=sources)["train"]
    counts = np.array(data["votes"][:])
    names = ["entailment", "neutral", "contradiction"]
    rows = [
        {"uid": uid, "predictions": [{"label": names[k], "score": row[k] / 100} for k in np.argsort(-row)]}
        for uid, row in zip(data["uid"][:], counts.tolist(), strict=True)
        for row in [np.array(row)]
    ]
    pd.DataFrame(rows[::-1]).to_parquet("own.parquet")
    words = ["--votes", "chaosnli", "--subset", "snli", "--sources", str(sources), "--resamples", "0", "--json"]
    assert main(["score", "--predictions", "own.parquet", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    scores = {name: entry["value"] for name, entry in found["predictions"][0]["scores"].items()}
    assert scores == pytest.approx(found["references"]["floor"], abs=1e-6)
    assert scores["kl"] == pytest.approx(0, abs=1e-9) and found["hard_label"] == "gold"
