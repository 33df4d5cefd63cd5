"""`hf-softlabel calibrate`: what it writes is what the library fits, and what `score --scaling` reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from hf_softlabel.calibrate import fit_calibration, measure_calibration
from hf_softlabel.cli import main
from hf_softlabel.conformal import VoteCoverage, fit_vote_coverage
from hf_softlabel.metrics import score_votes
from hf_softlabel.scaling import Scaling, fit_vector_scaling

N = 80
RNG = np.random.default_rng(5)
P = RNG.dirichlet([0.6] * 3, N)
VOTES = np.stack([RNG.multinomial(8, p) for p in P])
LOGITS = 2.5 * np.log(P + 0.05) + RNG.normal(scale=0.5, size=(N, 3))  # too sure of itself
NAMES = ["a", "b", "c"]
WIDE = ["--votes", "votes.csv", "--label_columns", *NAMES]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ids = np.arange(N)
    pd.DataFrame({"id": ids, **dict(zip(NAMES, VOTES.T, strict=True))}).to_csv("votes.csv", index=False)
    # In another order, as the files of other programs are.
    rows = RNG.permutation(N)
    pd.DataFrame({"id": ids[rows], "logits": list(LOGITS[rows])}).to_parquet("p.parquet")
    pd.DataFrame({"id": ids[rows], "probs": list(softmax(LOGITS[rows], axis=1))}).to_parquet("q.parquet")
    return tmp_path


def calibrate(*words) -> int:
    return main(["calibrate", *WIDE, *map(str, words)])


def test_the_temperature_has_the_least_soft_nll(folder, capsys):
    assert calibrate("--predictions", "p.parquet", "--output", "new/model") == 0
    out = capsys.readouterr().out
    scaling, sets = Scaling.load("new/model"), VoteCoverage.load("new/model")

    def nll(z):
        return -(VOTES / 8 * log_softmax(z, axis=1)).sum(1).mean()

    best = minimize_scalar(lambda t: nll(LOGITS / t), bounds=(0.1, 10), method="bounded", options={"xatol": 1e-10})
    assert scaling.temperature == pytest.approx(best.x, rel=1e-6) and scaling.temperature > 1.5
    assert scaling.examples == sets.examples == N and scaling.from_logits
    # The sets are of the predictions as they are.
    assert sets == fit_vote_coverage(LOGITS, VOTES, 0.9, from_logits=True)
    size = sets.sets(LOGITS, from_logits=True).sum(1).mean()
    assert out.splitlines() == [
        f"temperature {best.x:.4f} from 80 examples: soft NLL {nll(LOGITS):.4f} -> {best.fun:.4f} on these themselves",
        f"sets that cover 90% of annotators: {size:.2f} of 3 classes",
        "written to new/model/scaling.json and new/model/vote_coverage.json; use other examples to see what they are "
        "worth:",
        "  hf-softlabel score --predictions ... --scaling new/model/scaling.json",
    ]


@pytest.mark.parametrize(("name", "from_logits"), [("p.parquet", True), ("q.parquet", False)])
@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_what_is_written_is_what_score_reads(folder, capsys, name, from_logits, method):
    words = ["--method", method, "--coverage", 0.955, "--output", "out"]
    assert calibrate("--predictions", name, *words) == 0
    assert "sets that cover 95.5% of annotators" in capsys.readouterr().out
    values = LOGITS if from_logits else softmax(LOGITS, axis=1)
    scaling, sets = fit_calibration(values, VOTES, from_logits, method, 0.955)
    assert VoteCoverage.load("out").threshold == pytest.approx(sets.threshold)
    assert main(["score", "--predictions", name, *WIDE, "--scaling", "out", "--resamples", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"][0]["scores"]
    expected = score_votes(scaling(values), VOTES, from_logits=True)
    assert {key: entry["value"] for key, entry in found.items()} == pytest.approx(expected, abs=1e-6)
    assert expected["soft_nll"] < score_votes(LOGITS, VOTES, from_logits=True)["soft_nll"]


def test_a_temperature_of_logits_serves_probabilities_but_a_vector_scaling_does_not(folder, capsys):
    assert calibrate("--predictions", "p.parquet", "--output", "t") == 0
    assert calibrate("--predictions", "p.parquet", "--output", "v", "--method", "vector") == 0
    capsys.readouterr()
    nll = []
    for name in ("p.parquet", "q.parquet"):
        assert main(["score", "--predictions", name, *WIDE, "--scaling", "t", "--resamples", "0", "--json"]) == 0
        nll.append(json.loads(capsys.readouterr().out)["predictions"][0]["scores"]["soft_nll"]["value"])
    assert nll[0] == pytest.approx(nll[1], abs=1e-9)
    assert main(["score", "--predictions", "q.parquet", *WIDE, "--scaling", "v", "--resamples", "0"]) == 2
    assert "The scaling was fitted on logits, but q.parquet holds probabilities." in capsys.readouterr().err
    assert Scaling.load("v").bias == pytest.approx(fit_vector_scaling(LOGITS, VOTES).bias, abs=1e-5)


def test_one_scaling_for_each_of_two_files(folder, capsys):
    assert calibrate("--predictions", "p.parquet", "--output", "v", "--method", "vector") == 0
    Path("one").mkdir()
    Scaling(1.0, None, 1).save("one")
    words = ["--predictions", "p.parquet", "q.parquet", *WIDE, "--scaling", "v", "one", "--resamples", "0", "--json"]
    capsys.readouterr()
    assert main(["score", *words]) == 0
    both = [entry["scores"]["soft_nll"]["value"] for entry in json.loads(capsys.readouterr().out)["predictions"]]
    as_is = score_votes(LOGITS, VOTES, from_logits=True)["soft_nll"]
    assert both[1] == pytest.approx(as_is, abs=1e-9) and both[0] < as_is - 0.01


def test_other_examples_are_measured_as_they_are_and_scaled():
    scaling, sets = fit_calibration(LOGITS[:40], VOTES[:40], True, "temperature", 0.9)
    gold = VOTES.argmax(1)
    found = measure_calibration(LOGITS[40:], VOTES[40:], gold[40:], scaling, sets, ordinal=False)
    rest = LOGITS[40:] / scaling.temperature
    assert found["scaled"] == pytest.approx(score_votes(rest, VOTES[40:], gold[40:], from_logits=True), abs=1e-9)
    inside = sets.sets(LOGITS[40:], from_logits=True)
    assert found["vote_coverage"]["covered"] == pytest.approx((VOTES[40:] / 8 * inside).sum(1).mean())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["p.parquet", "--coverage", "1"], "coverage must lie between 0 and 1, not 1.0"),
        (["p.parquet", "--coverage", "0.999"], "80 example(s) cannot promise a coverage of 0.999: at least 999"),
        (["none.parquet"], "There is no file none.parquet"),
        (["p.parquet", "--output", "votes.csv"], "votes.csv"),
        (["zero.csv"], "Probabilities are zero, and their logarithm infinite, in 1 row(s): 0."),
        (["p.parquet", "--classes", "a", "b"], "--classes must be the votes' classes"),
    ],
)
def test_nothing_is_written_for_what_is_refused(folder, capsys, words, message):
    Path("zero.csv").write_text("id,a,b,c\n0,1,0,0\n")
    before = sorted(folder.rglob("*"))
    assert calibrate("--predictions", words[0], "--output", "out", *words[1:]) == 2
    out, err = capsys.readouterr()
    assert message in err and "Traceback" not in err and out == ""
    assert sorted(folder.rglob("*")) == before
