"""What every evaluation says during training: to the console, to history.jsonl, to the tracker, to the selection."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import wandb_file
from preloaded import python
from trainers import config, text_trainer
from transformers import TrainerState

from hf_softlabel import VotesError, VotesTrainer, load_model
from hf_softlabel.callbacks.console import COLUMNS, PAGE, EvaluationTable
from hf_softlabel.cli import main
from hf_softlabel.config import SoftLabelConfig
from hf_softlabel.data.synthetic import TONES
from hf_softlabel.metrics.summary import LOWER_IS_BETTER, NAMES

RECIPE = str(Path(__file__).parents[1] / "recipes" / "synthetic" / "text.yaml")
SHORT = ["--num_train_epochs", "2", "--train_size", "64", "--disable_tqdm", "true", "--ordinal", "true"]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory) -> Path:
    """A run with the real wandb client, offline."""
    folder = tmp_path_factory.mktemp("tracked")
    command = [python(), "-m", "hf_softlabel", "train", RECIPE, *SHORT, "--report_to", "wandb"]
    command += ["--diagnostics", "uncertainty"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = subprocess.run(
        [*command, "--output_dir", "run"], cwd=folder, env=env, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "console.txt").write_text(done.stdout)
    return folder


def test_every_evaluation_is_whole_in_the_history_the_tracker_and_the_table(tracked):
    history = [json.loads(line) for line in (tracked / "run" / "history.jsonl").read_text().splitlines()]
    logged = [row for row in wandb_file.history(tracked / "wandb") if "eval/soft_nll" in row]
    assert len(history) == 2 and len(logged) >= 2
    for line, row in zip(history, logged, strict=False):
        assert NAMES.keys() <= line.keys()
        for name in NAMES:
            assert row[f"eval/{name}"] == pytest.approx(line[name], rel=1e-6), name
    (measured,) = [row for row in wandb_file.history(tracked / "wandb") if "eval/uncertainty/kl" in row]
    assert measured["eval/uncertainty/soft_nll"] == pytest.approx(min(line["soft_nll"] for line in history), rel=1e-5)
    lines = (tracked / "console.txt").read_text().splitlines()
    (top,) = [i for i, line in enumerate(lines) if line.split()[:3] == ["epoch", "step", "NLL"]]
    titles = lines[top].split()[2:]
    assert titles == list(COLUMNS.values())
    shown = [line.split() for line in lines if line.split()[:2] in (["1", "2"], ["2", "4"])]
    assert len(shown) == 2
    for cells, line in zip(shown, history, strict=True):
        assert cells[2:] == [f"{line[name]:.4f}" for name in COLUMNS]
    assert not any("eval_soft_nll" in line for line in lines)


def test_a_score_that_is_undefined_is_null_with_its_reason(tmp_path, texts):
    # Votes that all have the same entropy, whatever the model.
    recipe, table = tmp_path / "recipe.yaml", tmp_path / "votes.csv"
    rows = [f"the room was {word},{k % 2 * 3},{(1 - k % 2) * 3}" for k, word in enumerate(["great", "bad"] * 20)]
    table.write_text("\n".join(["text,no,yes", *rows]))
    recipe.write_text(
        f"dataset: table\nsources: {table}\nlabel_columns: ['no', 'yes']\nmodel: synthetic-bert\ndelivery: soft\n"
        "num_train_epochs: 1\neval_strategy: epoch\nsave_strategy: 'no'\nreport_to: none\ndisable_tqdm: true\n"
    )
    out = tmp_path / "run"
    assert main(["train", str(recipe), "--output_dir", str(out)]) == 0
    reason = {"entropy_correlation": "the votes have the same entropy in all examples"}
    (line,) = (json.loads(line) for line in (out / "history.jsonl").read_text().splitlines())
    assert line["entropy_correlation"] is None and line["undefined"] == reason
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["entropy_correlation"] is None and metrics["undefined"] == reason


def test_a_nan_cannot_choose_the_best_checkpoint(tmp_path, texts):
    same = texts["eval"].select(range(6)).map(lambda row: {"votes": [9, 0, 0]})
    trainer = text_trainer(
        tmp_path,
        {"train": texts["train"], "eval": same},
        metric_for_best_model="entropy_correlation",
        eval_strategy="epoch",
        save_strategy="epoch",
    )
    message = r"cannot be chosen by entropy_correlation: it is NaN at step \d+ \(the votes have the same entropy"
    with pytest.raises(VotesError, match=message):
        trainer.train()
    assert not list(Path(trainer.args.output_dir).glob("checkpoint-*"))


def test_a_metric_that_no_evaluation_has_is_refused_before_training(tmp_path, texts):
    with pytest.raises(VotesError, match=r"'soft_nil', which evaluations do not have\. Did you mean 'soft_nll'"):
        text_trainer(tmp_path, texts, metric_for_best_model="soft_nil")
    with pytest.raises(VotesError, match="'wasserstein', which evaluations do not have"):
        text_trainer(tmp_path, texts, metric_for_best_model="wasserstein")
    assert text_trainer(tmp_path, texts, metric_for_best_model="wasserstein", ordinal=True)
    assert text_trainer(tmp_path, texts, metric_for_best_model="eval_kl")
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    assert VotesTrainer(
        model=model,
        args=config(tmp_path, metric_for_best_model="mine"),
        eval_dataset=texts["eval"],
        processing_class=tokenizer,
        compute_metrics=lambda prediction: {"mine": 1.0},
    )


def test_several_eval_sets_have_their_names_before_the_metric(tmp_path, texts):
    both = {"train": texts["train"], "eval": {"a": texts["eval"], "b": texts["train"].select(range(9))}}
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 1}
    # By default nothing is selected.
    trainer = text_trainer(tmp_path / "default", both, **options)
    trainer.train()
    assert {"eval_a_soft_nll", "eval_b_kl"} <= {key for line in trainer.state.log_history for key in line}
    best = {"load_best_model_at_end": True, **options}
    with pytest.raises(VotesError, match=r"'soft_nll', which evaluations do not have.*'[ab]_soft_nll'"):
        text_trainer(tmp_path, both, **best)
    trainer = text_trainer(tmp_path / "b", both, metric_for_best_model="b_kl", **best)
    trainer.train()
    assert trainer.state.best_metric == trainer.state.log_history[-2]["eval_b_kl"]
    both["eval"]["b"] = both["eval"]["b"].map(lambda row: {"votes": [9, 0, 0]})
    trainer = text_trainer(tmp_path / "nan", both, metric_for_best_model="b_entropy_correlation", **best)
    with pytest.raises(VotesError, match=r"b_entropy_correlation: it is NaN at step \d+ \(the votes have the same"):
        trainer.train()


def test_a_gold_label_that_is_missing_somewhere_is_said(tmp_path, texts, caplog):
    partly = texts["eval"].map(lambda row, i: {"label": None if i % 3 == 0 else row["label"]}, with_indices=True)
    trainer = text_trainer(tmp_path, {"train": texts["train"], "eval": partly})
    scores = trainer.evaluate()
    assert "4 of 12 examples have no gold label" in caplog.text and trainer.hard_label == "majority"
    assert scores["eval_accuracy"] == scores["eval_accuracy_majority"]
    assert text_trainer(tmp_path, texts).evaluate() and "4 of 12" in caplog.text


def test_user_metrics_do_not_replace_ours(tmp_path, texts):
    model, tokenizer = load_model("synthetic-bert", TONES, task="text")
    trainer = VotesTrainer(
        model=model,
        args=config(tmp_path),
        eval_dataset=texts["eval"],
        processing_class=tokenizer,
        compute_metrics=lambda prediction: {"accuracy": -5.0, "mine": 1.0},
    )
    with pytest.raises(VotesError, match="must not return accuracy: these are scored already"):
        trainer.evaluate()


@pytest.mark.parametrize("name", [name for name, lower in NAMES.items() if lower is not None])
def test_less_is_better_for_errors_and_more_for_agreement(tmp_path, name):
    for prefix in ("", "eval_", "eval_nli_"):
        args = SoftLabelConfig(output_dir=str(tmp_path), metric_for_best_model=prefix + name, report_to="none")
        assert args.greater_is_better is (name not in LOWER_IS_BETTER)


def logs(value: float, **more) -> dict:
    return {f"eval_{name}": value for name in NAMES} | {"eval_loss": 1.0, "eval_runtime": 2.0, **more}


def test_the_table_repeats_its_header_and_shows_what_the_user_adds():
    table, state = EvaluationTable(), TrainerState(epoch=2.5, global_step=70)
    assert table.rows({"loss": 1.0}, state) is None
    header, line = table.rows(logs(0.25), state)
    assert header.split()[:4] == ["epoch", "step", "NLL", "KL"] and line.split()[:3] == ["2.5", "70", "0.2500"]
    assert len(header) == len(line) <= 133
    for _ in range(PAGE - 1):
        (line,) = table.rows(logs(float("nan"), eval_mine=0.5), state)
    assert line.split()[2] == "-" and line.endswith("mine 0.5000")
    assert len(table.rows(logs(0.25), state)) == 2
    other = {key.replace("eval_", "eval_mnli_"): value for key, value in logs(0.5).items()}
    assert table.rows(other, state)[-1].endswith("0.5000  mnli")


def test_the_progress_bar_prints_the_table_too(tmp_path, texts, capsys):
    trainer = text_trainer(tmp_path, texts, disable_tqdm=False, eval_strategy="epoch")
    trainer.train()
    shown = capsys.readouterr().out
    assert shown.count("epoch   step    NLL") == 1 and "eval_soft_nll" not in shown
    last = trainer.state.log_history[-2]
    assert f"{last['eval_kl']:.4f}" in shown and np.isfinite(last["eval_kl"])
