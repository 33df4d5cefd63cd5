"""The card of a run, whole and in its variants."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from loopback.hub_writer import metadata_flaws
from run_directories import held_out, write_run

from hf_softlabel.conformal import VoteCoverage
from hf_softlabel.hub.card import ModelFacts, model_card, run_facts, task_of, write_card
from hf_softlabel.hub.data_facts import data_facts, hub_id, origin
from hf_softlabel.metrics import score_votes
from hf_softlabel.predictions import read_predictions
from hf_softlabel.scaling import Scaling

GOLDEN = Path(__file__).parent / "golden" / "model_card.md"


def finished(
    folder: Path, architecture: str = "BertForSequenceClassification", calibrated: bool = False, **options
) -> Path:
    """A run directory with what a card needs besides what reports do."""
    run = write_run(folder / "run", **options)
    model = run / "model"
    described = json.loads((model / "config.json").read_text()) | {"architectures": [architecture]}
    if architecture == "CifarResNetForImageClassification":
        described["auto_map"] = {"AutoConfig": "resnet.CifarResNetConfig"}
    (model / "config.json").write_text(json.dumps(described))
    metrics = json.loads((run / "metrics.json").read_text()) | {"epochs": 20.0}
    metrics |= {"model_hub_id": None, "dataset_hub_id": None, "text_columns": None}
    if calibrated:
        Scaling(0.5, None, 400).save(model)
        VoteCoverage(0.9, 0.75, 400).save(model)
        metrics["scaled"] = {"soft_nll": 0.7654321, "ece_equal_mass_soft": 0.0123456}
        metrics["vote_coverage"] = {"covered": 0.912, "covered_interval": [0.88, 0.944], "set_size": 1.625}
    (run / "metrics.json").write_text(json.dumps(metrics))
    return run


def test_the_whole_card(tmp_path):
    run = finished(tmp_path, "CifarResNetForImageClassification", calibrated=True, delivery="sls", seed=3)
    card = model_card(run, "someone/cifar10h-sls")
    assert card == GOLDEN.read_text(encoding="utf-8")
    assert metadata_flaws(card) == []
    # The numbers in it are those of the predictions, worked out from the votes by themselves.
    _, votes = held_out(3)
    expected = score_votes(read_predictions(run).values, votes, votes.argmax(1), from_logits=True)
    results = {result.metric_type: result.metric_value for result in ModelCard(card).data.eval_results}
    assert results == pytest.approx(expected, abs=1e-6)
    assert str(tmp_path) not in card
    for name in ("soft_nll", "accuracy", "entropy_correlation"):
        assert f" | {expected[name]:.4f} | " in card


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> ModelFacts:
    """Read once: its intervals take seconds."""
    return run_facts(finished(tmp_path_factory.mktemp("plain")), "someone/model")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delivery": "majority"}, "- It has seen the majority only"),
        ({"delivery": "mixup"}, "- It has seen the majority only"),
        ({"delivery": "label_smoothing"}, "**label_smoothing**, `label_smoothing_epsilon: 0.1`: only the most"),
        (
            {"delivery": "sls", "resample_every": 5},
            "`resample_every: 5`: one label per example is drawn from its votes, anew every 5 epochs |",
        ),
        ({"delivery": "posterior_sls"}, "`resample_every: 1`, `prior_strength: 1.0`: one label per example is drawn"),
        ({"delivery": "shuffled_sls"}, "- It is a control, trained on the votes of other examples"),
        ({"votes_per_example": 5}, "| Trained on | 4,000 examples, with 5 votes each, drawn from all |"),
        ({"votes_per_example": 1}, "| Trained on | 4,000 examples, with 1 vote each, drawn from all |"),
        ({"epochs": 1.0}, "| Training | 1 epoch, seed 0, 1 process |"),
        ({"epochs": 1.5}, "| Training | 1.5 epochs, seed 0, 1 process |"),
        (
            {"eval_annotators": 0.5},
            "| Held out | the votes of other people on the same 40 examples, with 50 votes each |",
        ),
        ({"eval_annotators": 0.5}, "on examples that were trained on, with other people's votes, of the same source."),
        ({"dataset": "chaosnli", "subset": "snli+mnli"}, "SNLI's, under CC BY-SA 4.0. The texts are MultiNLI's"),
        ({"delivery": "soft"}, "- Its probabilities were not calibrated after the training."),
        ({"load_best_model_at_end": True}, "The checkpoint was chosen by soft_nll on the same held-out examples"),
        ({"dataset": "chaosnli", "subset": "mnli"}, "The votes are under CC BY-NC 4.0. The texts are MultiNLI's"),
        ({"dataset": "chaosnli", "subset": "snli"}, "The texts are SNLI's, under CC BY-SA 4.0."),
        ({"dataset": "chaosnli", "subset": "mnli"}, "      type: chaosnli\n      config: mnli\n"),
        ({"text_columns": ["question", "answer"]}, 'classify({"text": "A premise.", "text_pair": "A hypothesis."})'),
        ({"text_columns": ["question"]}, 'classify("Any text.")'),
        ({"dataset": "popquorn", "subset": "politeness"}, "on the votes of POPQUORN (politeness)"),
        ({"dataset": "table", "sources": "team/votes"}, "datasets:\n- team/votes\n"),
        ({"dataset": "team/votes"}, "      type: team/votes\n"),
        ({"dataset": "team/votes"}, "on the votes of team/votes."),
        ({"dataset": "table", "sources": "/data/votes.csv"}, "Say here under which licence the votes are."),
        ({"dataset": "/data/votes.csv"}, "      type: table\n"),
        ({"dataset": "/data/votes.csv"}, "with hf_softlabel 0.1.0, on votes of our own."),
        (
            {"dataset": "synthetic", "subset": "text"},
            "how simulated votes are spread over 3 classes (cat, dog, frog), not",
        ),
        ({"dataset": "synthetic", "subset": "text"}, "- The votes are drawn from known distributions, and the data"),
        ({"model": "FacebookAI/roberta-base"}, "base_model: FacebookAI/roberta-base\n"),
        ({"model": "bert-base-uncased"}, "base_model: bert-base-uncased\n"),
        ({"model": "FacebookAI/roberta-base", "from_scratch": True}, "roberta-base, trained from random weights"),
        ({"model": "/data/mine"}, "fine-tuned from a checkpoint that is not on the Hub"),
        ({"architecture": "BertForMultipleChoice"}, "AutoModelForMultipleChoice.from_pretrained"),
        ({"architecture": "BertForMultipleChoice"}, "pipeline_tag: multiple-choice\n"),
    ],
)
def test_what_a_card_says_of_other_runs(plain, options, said):
    options = dict(options)
    architecture = options.pop("architecture", "BertForSequenceClassification")
    trained = {"epochs": options.pop("epochs", 20.0)}
    columns = options.pop("text_columns", None)
    config = plain.config | options
    metrics = plain.metrics | trained | origin(config, columns)
    data = data_facts(config["dataset"], config["subset"], metrics["dataset_hub_id"])
    card = write_card(replace(plain, config=config, metrics=metrics, data=data, task=task_of(architecture, columns)))
    assert said in card
    assert metadata_flaws(card) == [] and "/data/" not in card
    # Nobody is said to have voted where nobody did.
    assert ("people" in card) == (config["dataset"] != "synthetic")


def test_what_is_undefined_is_said_and_is_no_result(tmp_path):
    _, votes = held_out(0)
    run = finished(tmp_path, logits=0.0 * votes)
    card = model_card(run, "someone/model")
    assert "| entropy correlation ↑ | - | - |" in card and "Undefined here (-): entropy correlation: " in card
    assert "entropy_correlation" not in {result.metric_type for result in ModelCard(card).data.eval_results}


def test_a_path_of_this_machine_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "votes.csv").write_text("a,b\n")
    names = ("owner/name", "bert-base-uncased")
    assert [hub_id(name) for name in names] == list(names)
    assert [hub_id(name) for name in ("votes.csv", "runs/mine", "/home/me/x", "a/b/c", None)] == [None] * 5
