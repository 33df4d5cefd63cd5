"""The scores through the real `evaluate`: by path, combined, in batches, in two processes, and from a Space."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
import yaml
from loopback.hub import serve
from preloaded import python
from scipy.special import softmax
from test_data_hub import run_client

from hf_softlabel import metrics
from hf_softlabel.data.errors import VotesError
from hf_softlabel.evaluate_module import load_metric
from hf_softlabel.evaluate_module.votes_metric.votes_metric import SCORES
from hf_softlabel.metrics import score_votes

FOLDER = Path(__file__).parents[1] / "hf_softlabel" / "evaluate_module" / "votes_metric"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Predictions and references wait in a folder of the test's own."""
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "evaluate"))


def case(n: int = 40, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Logits and counts (N, C)."""
    rng = np.random.default_rng(0)
    z = rng.normal(scale=2, size=(n, classes))
    return z, rng.multinomial(7, softmax(z / 2, -1))


def test_scores_have_the_names_and_values_of_the_library():
    z, votes = case()
    q = softmax(z, -1)
    expected = score_votes(q, votes, ordinal=True)
    for name in SCORES:
        metric = evaluate.load(str(FOLDER), name)
        assert metric.compute(predictions=q.tolist(), references=votes.tolist()) == {
            name: pytest.approx(expected[name], abs=1e-14)
        }
        assert metric.compute(predictions=z, references=votes, from_logits=True)[name] == pytest.approx(
            expected[name], rel=1e-9
        )


def test_the_functions_themselves():
    z, votes = case()
    q = softmax(z, -1)
    for name, function in (
        ("soft_nll", metrics.soft_nll),
        ("kl", metrics.kl_to_annotators),
        ("ece_equal_mass_soft", metrics.equal_mass_ece),
        ("smooth_ece_soft", metrics.smooth_ece),
        ("entropy_correlation", metrics.entropy_correlation),
        ("accuracy_majority", metrics.accuracy_majority),
    ):
        result = load_metric(name).compute(predictions=q, references=votes)
        assert result == {name: function(q, votes)}  # to the last bit: nothing is rounded to float32 on the way
        assert type(result[name]) is float


def test_all_scores_in_one_call():
    z, votes = case()
    by_names = evaluate.combine([load_metric(name) for name in SCORES])
    combined = by_names.compute(predictions=z, references=votes, from_logits=True)
    assert list(combined) == list(SCORES)
    # A name is not needed: all that do not depend on an order of classes.
    everything = evaluate.combine([str(FOLDER)]).compute(predictions=z, references=votes, from_logits=True)
    assert everything == {name: value for name, value in combined.items() if name != "wasserstein"}


def test_batches():
    z, votes = case()
    expected = load_metric("entropy_correlation").compute(predictions=z, references=votes, from_logits=True)
    metric = evaluate.load(str(FOLDER / "votes_metric.py"), "entropy_correlation", keep_in_memory=True)
    for _ in range(2):  # a metric starts afresh after each compute
        for rows in (slice(0, 25), slice(25, 39)):
            metric.add_batch(predictions=torch.tensor(z[rows]), references=torch.tensor(votes[rows]))
        metric.add(prediction=z[39].tolist(), reference=votes[39].tolist())
        assert metric.compute(from_logits=True) == expected


def test_what_is_refused():
    with pytest.raises(VotesError, match=r"no score 'nll'. There are: soft_nll, kl"):
        evaluate.load(str(FOLDER), "nll")
    metric = load_metric("kl")
    with pytest.raises(VotesError, match=r"references have 2 classes in row 0, but not in row\(s\) 1, 3"):
        metric.compute(predictions=[[0.5, 0.5]] * 4, references=[[1, 1], [1, 0, 1], [2, 3], [1]])
    with pytest.raises(VotesError, match="from_logits=True"):
        metric.compute(predictions=[[2.0, -1.0]], references=[[1, 1]])
    with pytest.raises(VotesError, match="one shape"):
        metric.compute(predictions=[[0.5, 0.5]], references=[[1, 1, 1]])
    # What was refused is forgotten.
    assert metric.compute(predictions=[[0.5, 0.5]], references=[[1, 1]]) == {"kl": 0}


ONE_OF_TWO = """
import json, sys
import numpy as np
from hf_softlabel.evaluate_module import load_metric
rank = int(sys.argv[1])
z, votes = (np.array(x)[rank::2] for x in json.load(open(sys.argv[2])))
metric = load_metric("smooth_ece_soft", num_process=2, process_id=rank, experiment_id="two", cache_dir=sys.argv[3])
metric.add_batch(predictions=z, references=votes)
print(json.dumps(metric.compute(from_logits=True)))
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
    z, votes = case(n=41)
    (tmp_path / "rows.json").write_text(json.dumps([z.tolist(), votes.tolist()]))
    processes = [
        subprocess.Popen(
            [python(), "-c", ONE_OF_TWO, str(rank), str(tmp_path / "rows.json"), str(tmp_path / "cache")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    first, second = (json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in processes)
    assert first == {"smooth_ece_soft": pytest.approx(metrics.smooth_ece(z, votes, from_logits=True), abs=1e-12)}
    assert second is None


CLIENT = """
import json
import evaluate
metric = evaluate.load("team/votes_metric", "kl")
both = evaluate.combine([metric, evaluate.load("team/votes_metric", "js_distance", revision="main")])
print(json.dumps([type(metric).__module__, both.compute(predictions=[[0.7, 0.3]], references=[[1, 4]])]))
"""


def test_from_a_space(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "spaces" / "team" / "votes_metric")
    with serve(tmp_path) as url:
        module, result = run_client(CLIENT, url, tmp_path / "home")
    assert module.startswith("evaluate_modules.metrics.team--votes_metric.")
    q, votes = [[0.7, 0.3]], [[1, 4]]
    assert result == {"kl": metrics.kl_to_annotators(q, votes), "js_distance": metrics.js_distance(q, votes)}


def test_the_space_is_complete():
    head, text = (FOLDER / "README.md").read_text().split("---\n")[1:3]
    settings = yaml.safe_load(head)
    assert settings["sdk"] == "gradio" and {"evaluate", "metric"} <= set(settings["tags"])
    assert (FOLDER / settings["app_file"]).is_file()
    for name in SCORES:
        assert f"| `{name}` |" in text
    # What the Space's files import is what it installs, itself, or gradio, which its sdk brings.
    imported = {
        name.split(".")[0]
        for file in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    installed = {line.split(">=")[0] for line in (FOLDER / "requirements.txt").read_text().split()}
    assert imported - {"pathlib", "gradio", "votes_metric"} <= installed | {"datasets", "numpy"}
