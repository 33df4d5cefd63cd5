"""`hf-softlabel train` as a user runs it: what is in a run directory, what is refused, that nothing is left half."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from scipy.special import entr
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification, AutoTokenizer

from hf_softlabel import Scaling, VoteCoverage, VotesError, fit_vector_scaling
from hf_softlabel.cli import main
from hf_softlabel.config import parse_recipe
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.metrics import score_votes
from hf_softlabel.metrics.summary import NAMES
from hf_softlabel.splits import load_splits

RECIPES = Path(__file__).parents[1] / "recipes"
TEXT = str(RECIPES / "synthetic" / "text.yaml")
VISION = str(RECIPES / "synthetic" / "multipass.yaml")
QUICK = ["--num_train_epochs", "2", "--train_size", "64", "--disable_tqdm", "true"]


def train(recipe, out, *options) -> int:
    return main(["train", str(recipe), "--output_dir", str(out), *QUICK, *map(str, options)])


def error_of(capsys) -> str:
    """The one line on the error stream that is ours."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hf-softlabel: error: ")]
    assert len(lines) == 1
    return lines[0]


def recipe_of(path: Path | str, *options) -> tuple:
    _, data, training = parse_recipe(path, [*map(str, options)])
    return data, training.seed


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "text"
    assert train(TEXT, out) == 0
    return out


def test_a_run_directory_holds_what_a_report_needs(run):
    names = {path.name for path in run.iterdir() if not path.name.startswith("checkpoint-")}
    files = {
        "config.yaml",
        "metrics.json",
        "history.jsonl",
        "predictions.parquet",
        "examples.parquet",
        "model",
        "DONE",
    }
    assert names == files
    metrics = json.loads((run / "metrics.json").read_text())
    scores = NAMES.keys() - {"wasserstein"}
    assert scores < metrics.keys()
    assert metrics["delivery"] == "multipass" and metrics["seed"] == 0 and metrics["world_size"] == 1
    assert metrics["train_examples"] == 64 and metrics["eval_examples"] == 400
    assert len(metrics["ledger_digest"]) == 16
    assert metrics["versions"]["transformers"] and metrics["references"]["uniform"]["soft_nll"] == pytest.approx(
        np.log(3)
    )
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in history] == [1.0, 2.0]
    assert all(scores < line.keys() for line in history)
    assert metrics["soft_nll"] == pytest.approx(min(line["soft_nll"] for line in history))
    train_votes = np.array(load_splits(*recipe_of(TEXT, "--train_size", 64)).train["votes"][:])
    assert metrics["train_mean"] == pytest.approx((train_votes / train_votes.sum(1, keepdims=True)).mean(0))
    assert metrics["train_entropy"] == pytest.approx(
        entr(train_votes / train_votes.sum(1, keepdims=True)).sum(1).mean()
    )
    # As the checkpoints have it, each of its own epoch.
    states = [json.loads((path / "trainer_state.json").read_text()) for path in run.glob("checkpoint-*")]
    logged = max((state["log_history"] for state in states), key=len)
    losses = [entry["loss"] for entry in logged if "loss" in entry]
    assert len(set(losses)) > 1 and [line["train_loss"] for line in history] == losses
    assert metrics["references"].keys() == {"floor", "uniform", "train_mean", "human"}
    for reference in metrics["references"].values():
        assert reference.keys() == scores
    assert 0 < metrics["references"]["human"]["js_distance"] < metrics["references"]["uniform"]["js_distance"]


def test_scores_can_be_rebuilt_from_the_predictions_and_the_model(run):
    metrics = json.loads((run / "metrics.json").read_text())
    table = pq.read_table(run / "predictions.parquet").to_pydict()
    logits, votes = np.array(table["logits"]), np.array(table["votes"])
    assert metrics["soft_nll"] == pytest.approx(score_votes(logits, votes, from_logits=True)["soft_nll"], rel=1e-6)
    truth = load_synthetic("text")
    assert (np.array(truth["votes"][:])[table["example_id"]] == votes).all()

    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    texts = [truth[i]["text"] for i in table["example_id"][:7]]
    again = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.detach().numpy()
    np.testing.assert_allclose(again, logits[:7], atol=1e-5)
    assert model.config.id2label == {0: "negative", 1: "neutral", 2: "positive"}


def test_the_resolved_config_is_a_recipe_of_the_same_run(run, tmp_path):
    path = tmp_path / "again.yaml"
    values = yaml.safe_load((run / "config.yaml").read_text())
    path.write_text(yaml.safe_dump(values))
    model, data, training = parse_recipe(path)
    assert (model.model, data.train_size, training.delivery) == ("synthetic-bert", 64, "multipass")
    assert training.output_dir == str(run)


def test_a_finished_run_is_not_trained_again_and_another_one_is_refused_its_place(run, capsys):
    before = (run / "metrics.json").stat().st_mtime_ns
    assert train(TEXT, run) == 0
    assert "soft NLL" in capsys.readouterr().out
    assert train(TEXT, run, "--delivery", "soft", "--learning_rate", "1e-3") == 2
    assert "(different: learning_rate, delivery)" in error_of(capsys)
    assert (run / "metrics.json").stat().st_mtime_ns == before


def test_a_run_cut_off_while_its_results_were_written_writes_them_again(run, tmp_path):
    out = Path(shutil.copytree(run, tmp_path / "text"))
    before = json.loads((out / "metrics.json").read_text())
    for name in ("DONE", "metrics.json", "predictions.parquet"):
        (out / name).unlink()
    assert train(TEXT, out) == 0
    after = json.loads((out / "metrics.json").read_text())
    for key in ("soft_nll", "ledger_digest", "steps", "best_step"):
        assert after[key] == before[key]
    assert (out / "DONE").exists() and (out / "predictions.parquet").exists()
    assert (out / "history.jsonl").read_text() == (run / "history.jsonl").read_text()


def test_overwrite_starts_anew_but_never_in_a_folder_that_is_not_a_run(tmp_path, capsys):
    out = tmp_path / "run"
    assert train(TEXT, out, "--num_train_epochs", "1") == 0
    assert train(TEXT, out, "--num_train_epochs", "1", "--delivery", "soft", "--overwrite") == 0
    assert json.loads((out / "metrics.json").read_text())["delivery"] == "soft"
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1.tex").write_text("...")
    assert train(TEXT, precious, "--overwrite") == 2
    assert "is not a run directory" in error_of(capsys)
    assert (precious / "chapter1.tex").exists()


def test_overwrite_spares_other_peoples_files_and_a_run_whose_successor_cannot_start(run, tmp_path, capsys):
    project = tmp_path / "project"
    project.mkdir()
    (project / "config.yaml").write_text("database: postgres\n")
    (project / "main.py").write_text("print()\n")
    assert train(TEXT, project, "--overwrite") == 2
    assert "no config.yaml of ours" in error_of(capsys)
    assert (project / "main.py").exists() and (project / "config.yaml").exists()

    out = Path(shutil.copytree(run, tmp_path / "text"))
    (out / "notes.txt").write_text("mine")
    assert train(TEXT, out, "--overwrite", "--model", str(tmp_path / "nothing")) == 2
    assert (out / "DONE").exists() and (out / "metrics.json").exists()
    assert train(TEXT, out, "--overwrite", "--num_train_epochs", "1") == 0
    assert (out / "notes.txt").read_text() == "mine"
    assert len((out / "history.jsonl").read_text().splitlines()) == 1


def test_a_history_cut_off_in_the_middle_of_a_line_does_not_stop_a_resume(run, tmp_path):
    out = Path(shutil.copytree(run, tmp_path / "text"))
    for name in ("DONE", "metrics.json"):
        (out / name).unlink()
    with (out / "history.jsonl").open("a") as file:
        file.write('{"step": 4, "soft')
    assert train(TEXT, out) == 0
    assert (out / "history.jsonl").read_text() == (run / "history.jsonl").read_text()


def test_a_vision_run_reloads_with_the_auto_class_and_the_pipeline_agrees(tmp_path):
    from transformers import pipeline

    out = tmp_path / "vision"
    assert train(VISION, out) == 0
    table = pq.read_table(out / "predictions.parquet").to_pydict()
    data = load_synthetic("vision")
    model = AutoModelForImageClassification.from_pretrained(out / "model")
    assert model.config.id2label[3] == "rings" and model.config.width == 0.125
    classify = pipeline("image-classification", model=str(out / "model"))
    for row in (0, 5):
        logits = np.array(table["logits"][row])
        q = np.exp(logits - logits.max())
        got = {x["label"]: x["score"] for x in classify(data[table["example_id"][row]]["image"], top_k=4)}
        expected = dict(zip(data.features["label"].names, q / q.sum(), strict=True))
        assert got == pytest.approx(expected, abs=1e-5)


def splits(*options):
    return load_splits(*recipe_of(TEXT, *options))


def test_a_calibration_split_is_kept_from_training_and_what_is_fitted_on_it_is_saved_with_the_model(tmp_path):
    out = tmp_path / "run"
    options = ["--train_size", "200", "--votes_per_example", "5", "--calibration_fraction", "0.25"]
    assert train(TEXT, out, *options, "--scaling", "vector", "--vote_coverage", "0.8") == 0
    parts = splits(*options)
    whole = splits("--train_size", 200, "--votes_per_example", 5)
    assert len(parts.train) == 150 and len(parts.calibration) == 50 and whole.calibration is None
    assert {*parts.train["example_id"][:], *parts.calibration["example_id"][:]} == {*whole.train["example_id"][:]}
    assert {sum(votes) for votes in parts.calibration["votes"][:]} == {5}
    assert parts.eval["votes"][:] == whole.eval["votes"][:]

    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["train_examples"] == 150 and metrics["calibration_examples"] == 50
    scaling, sets = Scaling.load(out / "model"), VoteCoverage.load(out / "model")
    assert scaling.examples == sets.examples == 50 and sets.coverage == 0.8 and len(scaling.bias) == 3
    table = pq.read_table(out / "predictions.parquet").to_pydict()
    logits, votes = np.array(table["logits"]), np.array(table["votes"])
    scores = score_votes(scaling(logits), votes, np.array(table["label"]), from_logits=True)
    assert metrics["scaled"] == pytest.approx(scores, rel=1e-5)
    assert metrics["vote_coverage"]["covered"] == pytest.approx(sets.measure(logits, votes, True)["covered"])
    # The model alone reproduces what the scaling was fitted on.
    model = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    texts = tokenizer(parts.calibration["text"][:], padding=True, return_tensors="pt")
    again = fit_vector_scaling(model(**texts).logits.detach(), np.array(parts.calibration["votes"][:]))
    assert again.scale == pytest.approx(scaling.scale, abs=1e-3) and again.bias == pytest.approx(
        scaling.bias, abs=1e-3
    )


def test_a_stream_has_no_calibration_split():
    with pytest.raises(VotesError, match="calibration_fraction needs the whole data set"):
        splits("--streaming", "true", "--calibration_fraction", "0.1")


def test_subsampling_leaves_the_eval_split_its_full_votes():
    full_train, full_eval, _ = splits()
    train_split, held_out, _ = splits("--votes_per_example", 5)
    assert {sum(votes) for votes in train_split["votes"][:]} == {5}
    assert held_out["votes"][:] == full_eval["votes"][:]
    assert train_split["example_id"][:] == full_train["example_id"][:]
    other = splits("--votes_per_example", 5, "--subsample", "without_replacement")[0]
    pairs = zip(other["votes"][:], full_train["votes"][:], strict=True)
    assert all(k <= m for sample, whole in pairs for k, m in zip(sample, whole, strict=True))


def test_one_seed_decides_the_split_and_the_subsample_unless_they_have_their_own():
    a, b = splits("--seed", 1, "--votes_per_example", 5)[0], splits("--seed", 2, "--votes_per_example", 5)[0]
    c = splits("--seed", 2, "--split_seed", 1, "--subsample_seed", 1, "--votes_per_example", 5)[0]
    assert a["example_id"][:] != b["example_id"][:]
    assert a["example_id"][:] == c["example_id"][:] and a["votes"][:] == c["votes"][:]


def test_a_table_of_ones_own_is_trained_from_a_recipe(tmp_path):
    data = load_synthetic("text", size=80)
    votes = np.array(data["votes"][:])
    frame = pd.DataFrame({"text": data["text"][:], **dict(zip(["bad", "so", "good"], votes.T, strict=True))})
    frame.to_csv(tmp_path / "mine.csv", index=False)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"dataset: table\nsources: {tmp_path / 'mine.csv'}\nlabel_columns: [bad, so, good]\nmodel: synthetic-bert\n"
        "delivery: multipass\nsave_strategy: 'no'\nreport_to: none\n"
    )
    out = tmp_path / "out"
    arguments = ["train", str(recipe), "--output_dir", str(out), "--num_train_epochs", "1", "--disable_tqdm", "true"]
    assert main(arguments) == 0
    model = AutoModelForSequenceClassification.from_pretrained(out / "model")
    assert model.config.id2label == {0: "bad", 1: "so", 2: "good"}


def test_a_table_is_part_of_the_run_that_it_was_used_in(tmp_path, capsys):
    def table(name: str, first: int) -> None:
        rows = [f"the room was great,{first},{i % 3}" for i in range(20)]
        (tmp_path / name).write_text("\n".join(["text,a,b", *rows]) + "\n")

    def again(name: str) -> int:
        words = ["--dataset", "table", "--sources", tmp_path / name, "--label_columns", "a", "b", "--train_size", "16"]
        return train(recipe, tmp_path / "out", *words)

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: synthetic-bert\ndelivery: multipass\nsave_strategy: 'no'\n")
    table("one.csv", 3)
    table("two.csv", 5)
    assert again("one.csv") == 0 and again("one.csv") == 0
    assert again("two.csv") == 2
    assert "(different: sources)" in error_of(capsys)
    table("one.csv", 4)
    assert again("one.csv") == 2
    assert "on other votes" in error_of(capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--subset", "audio"], "'vision' and 'text', not 'audio'"),
        (["--dataset", "chaosnlj"], "Did you mean 'chaosnli'"),
        (["--dataset", "popquorn", "--subset", "offensiveness", "--sources", "{tmp}"], "offensiveness_raw_data.csv"),
        (["--model", "{tmp}/nothing"], "Cannot load"),
        (["--eval_fraction", "0"], "empty split"),
        (["--eval_split", "test"], "no split 'test'"),
        (["--train_size", "5000"], "train_size=5000"),
        (["--delivery", "multipasss"], "invalid choice: 'multipasss'"),
        (["--streaming"], "set max_steps"),
        (["--max_length", "500"], "takes 64 tokens"),
        (["--output_dir", "{tmp}/bad.csv"], "is a file"),
        (["--output_dir", "{tmp}/bad.csv/below"], "Not a directory"),
        (["--learning_rat", "1"], "Did you mean 'learning_rate'"),
        (["--dataset", "table", "--sources", "{tmp}/bad.csv", "--label_columns", "a", "b"], "negative in 1 row"),
        (["--dataset", "table", "--sources", "{tmp}/p.csv", "--label_columns", "a", "b"], "needed, but"),
    ],
)
def test_bad_input_is_one_clear_line_exit_code_2_and_no_directory(tmp_path, capsys, options, message):
    (tmp_path / "bad.csv").write_text("text,a,b\nx,1,2\ny,3,-1\nz,1,1\n")
    (tmp_path / "p.csv").write_text("text,a,b\nx,0.5,0.5\ny,0.25,0.75\nz,1.0,0.0\n")
    recipe = tmp_path / "recipe.yaml"
    values = yaml.safe_load(Path(TEXT).read_text())
    if "--dataset" in options:
        del values["subset"]
    recipe.write_text(yaml.safe_dump(values))
    words = [word.format(tmp=tmp_path) for word in options]
    code = main(["train", str(recipe), "--output_dir", str(tmp_path / "out"), "--disable_tqdm", "true", *words])
    assert code == 2
    assert message in error_of(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("watched", [True, False])
def test_a_diverged_run_is_never_taken_for_a_whole_one(tmp_path, capsys, watched):
    out = tmp_path / "out"
    options = ["--optim", "sgd", "--learning_rate", "1e30", "--max_grad_norm", "0"]
    if not watched:
        options += ["--logging_strategy", "no", "--save_strategy", "no", "--eval_strategy", "no"]
        options += ["--load_best_model_at_end", "false"]
    assert train(TEXT, out, *options) == 2
    assert "training loss is" in error_of(capsys)
    assert not (out / "DONE").exists() and not (out / "metrics.json").exists()
    assert not list(out.glob("checkpoint-*/manifest.json"))


def test_an_interrupt_is_one_line_and_exit_code_130(tmp_path, capsys, monkeypatch):
    import hf_softlabel.run as module

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_recipe", interrupted)
    assert train(TEXT, tmp_path / "out") == 130
    assert "interrupted. The same command goes on" in capsys.readouterr().err


def test_the_command_ends_with_code_2_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "hf_softlabel", "train", str(tmp_path / "no.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2
    assert "no.yaml cannot be read" in done.stderr and "Traceback" not in done.stderr


REAL = {
    "cifar10h/multipass.yaml": ["--eval_fraction", "0.005", "--per_device_train_batch_size", "16"],
    "cifar10h/small/sls.yaml": ["--train_size", "256"],
    "chaosnli/multipass.yaml": ["--model", "synthetic-bert", "--max_length", "64"],
    "popquorn/posterior_sls.yaml": ["--model", "synthetic-bert", "--max_length", "64"],
}


@pytest.mark.sources
@pytest.mark.parametrize("recipe", REAL)
def test_recipes_on_the_real_votes_take_a_step(tmp_path, sources, recipe):
    once = ["--max_steps", "1", "--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"]
    out = tmp_path / "out"
    words = [*once, "--sources", str(sources), "--output_dir", str(out), "--disable_tqdm", "true", *REAL[recipe]]
    assert main(["train", str(RECIPES / recipe), *words]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["steps"] == 1 and np.isfinite(metrics["soft_nll"])
