"""Runs on W&B and trackio: the real clients in real processes, a W&B server on loopback, trackio's own files."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import wandb
from loopback.wandb_server import KEY, StoredRun, WandbServer, serve
from preloaded import python

from hf_softlabel import VotesError
from hf_softlabel.callbacks.tracking import final_results, method_name, prediction_columns, run_arguments, run_id
from hf_softlabel.cli import main
from hf_softlabel.metrics.summary import NAMES
from hf_softlabel.predictions import Predictions, read_predictions

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes" / "synthetic"
SHORT = ["--num_train_epochs", "2", "--train_size", "40", "--output_dir", "run"]


def environment(folder: Path, server: WandbServer | None = None, **more: str) -> dict[str, str]:
    """Of a user who has never logged in, or has to the server."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TRACKIO_", "HF_SOFT"))}
    (folder / "home").mkdir(exist_ok=True)
    own = {"OMP_NUM_THREADS": "1", "HOME": str(folder / "home"), "TRACKIO_DIR": str(folder / "trackio")}
    login = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY} if server else {}
    return {**kept, **own, **login, **more}


def command(recipe: str, *options: str) -> list[str]:
    train = [python(), "-m", "hf_softlabel", "train", str(RECIPES / recipe)]
    return [*train, *SHORT, "--disable_tqdm", "true", *options]


def finish(words: list[str], folder: Path, env: dict[str, str]) -> str:
    """Run a command to its end; returns what it said."""
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=400)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    return said


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def read(run: Path, name: str) -> dict:
    return json.loads((run / name).read_text())


def only_run(server: WandbServer) -> StoredRun:
    assert not server.refused
    (run,) = server.runs.values()
    return run


def assert_same_curves(tracked: StoredRun, run: Path) -> None:
    """Each evaluation of history.jsonl is on the server with all its scores, and no other is."""
    rows = {row["train/global_step"]: row for row in tracked.history if "eval/soft_nll" in row}
    evaluations = lines(run)
    assert sorted(rows) == [line["step"] for line in evaluations]
    for line in evaluations:
        row = rows[line["step"]]
        assert row["train/epoch"] == line["epoch"]
        assert {name: row[f"eval/{name}"] for name in NAMES if name in line} == {
            name: line[name] for name in NAMES if name in line
        }


class Tracked:
    """A run by both trackers at once, a cell of a grid, with all kinds of results."""

    def __init__(self, folder: Path, server: WandbServer):
        self.folder, self.server, self.run = folder, server, folder / "run"
        options = ["--report_to", "all", "--calibration_fraction", "0.3", "--diagnostics", "uncertainty"]
        options += ["--delivery", "sls", "--votes_per_example", "3", "--hub_token", "hf_not_for_others"]
        env = environment(folder, server, HF_SOFTLABEL_GRID="k_sweep", WANDB_PROJECT="votes")
        self.said = finish(command("soft.yaml", *options), folder, env)
        self.on_server = only_run(server)
        self.metrics = read(self.run, "metrics.json")


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked")
    with serve(folder / "server") as server:
        yield Tracked(folder, server)


def test_wandb_has_the_whole_configuration_and_where_the_run_stands(tracked):
    run, values = tracked.on_server, tracked.on_server.values()
    assert run.project == "votes"
    assert run.attributes == {
        "displayName": "run",
        "groupName": "k_sweep",
        "jobType": "sls",
        "tags": ["synthetic/vision", "sls"],
    }
    assert values["method"] == "sls, K = 3" and values["grid"] == "k_sweep"
    ours = {"delivery": "sls", "dataset": "synthetic", "votes_per_example": 3, "train_size": 40, "width": 0.125}
    assert ours.items() <= values.items()
    assert values["model/num_parameters"] > 1000


def test_wandb_has_the_curves_and_the_results_of_the_run_directory(tracked):
    assert_same_curves(tracked.on_server, tracked.run)
    assert tracked.on_server.state == "finished"
    summary, metrics = tracked.on_server.summary, tracked.metrics
    for name in NAMES:
        if name in metrics:
            assert summary[f"final/{name}"] == metrics[name]
    assert summary["final/ledger_digest"] == metrics["ledger_digest"]
    assert summary["final/references/human/kl"] == metrics["references"]["human"]["kl"]
    assert summary["final/scaled/soft_nll"] == metrics["scaled"]["soft_nll"]
    measured = read(tracked.run, "diagnostics.json")["uncertainty"]["high_disagreement"]["model_entropy"]
    assert summary["diagnostics/uncertainty/high_disagreement/model_entropy"] == measured


def test_wandb_has_a_table_of_predictions_with_images_and_figures(tracked):
    (artifact,) = tracked.server.artifacts.values()
    assert artifact["artifactTypeName"] == "run_table" and artifact["committed"]
    (path,) = (tracked.server.folder / "artifacts").rglob("predictions.table.json")
    table = json.loads(path.read_text())
    found = read_predictions(tracked.run)
    p = found.votes / found.votes.sum(-1, keepdims=True)
    q = np.exp(found.values) / np.exp(found.values).sum(-1, keepdims=True)
    assert len(table["data"]) == 100
    previous = math.inf
    for cells in table["data"]:
        row = dict(zip(table["columns"], cells, strict=True))
        (i,) = np.flatnonzero(found.ids == row["example_id"])
        assert [row[f"annotators/{name}"] for name in found.names] == pytest.approx(p[i])
        assert [row[f"model/{name}"] for name in found.names] == pytest.approx(q[i])
        assert row["soft_nll"] == pytest.approx(-(p[i] * np.log(q[i])).sum())
        assert (path.parent / row["input"]["path"]).read_bytes()[1:4] == b"PNG"
        assert row["annotator_entropy"] <= previous + 1e-9
        previous = row["annotator_entropy"]
    files = tracked.server.files(tracked.on_server.name)
    for name in ("reliability", "entropy"):
        shown = tracked.on_server.summary[f"figures/{name}"]
        assert files[shown["path"]].stat().st_size == shown["size"] > 5000


def test_no_key_or_token_is_written_or_sent(tracked):
    assert tracked.server.keys_seen == {KEY}
    written = [path for path in tracked.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 20
    for path in written:
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in tracked.said
    for path in (tracked.run / "config.yaml", *tracked.server.files(tracked.on_server.name).values()):
        assert b"hf_not_for_others" not in path.read_bytes(), path
    assert "hf_not_for_others" not in json.dumps(tracked.on_server.config)


def test_trackio_has_the_same_in_its_own_database(tracked):
    with sqlite3.connect(tracked.folder / "trackio" / "huggingface.db") as database:
        rows = database.execute("select run_name, metrics from metrics order by step").fetchall()
        ((config,),) = database.execute("select config from configs").fetchall()
    (name,) = {name for name, _ in rows}
    assert name == f"run-{read(tracked.run, 'tracking.json')['run_id']}"
    logged = [json.loads(values) for _, values in rows]
    curve = [row for row in logged if "eval/soft_nll" in row]
    assert [row["train/global_step"] for row in curve] == [line["step"] for line in lines(tracked.run)]
    assert [row["eval/soft_nll"] for row in curve] == [line["soft_nll"] for line in lines(tracked.run)]
    (final,) = [row for row in logged if "final/soft_nll" in row]
    assert final["final/soft_nll"] == tracked.metrics["soft_nll"]
    assert final["final/ledger_digest"] == tracked.metrics["ledger_digest"]
    assert len(final["predictions"]["_value"]) == 100
    assert final["figures/reliability"]["_type"] == "trackio.image"
    values = json.loads(config)
    assert values["method"] == "sls, K = 3" and values["_Group"] == "k_sweep" and values["votes_per_example"] == 3


def test_without_a_login_it_goes_offline_and_says_how_to_sync(tmp_path):
    said = finish(command("text.yaml", "--report_to", "wandb"), tmp_path, environment(tmp_path))
    assert "no W&B login" in said
    (place,) = re.findall(r"To send the offline run to W&B: wandb sync (\S+)", said)
    with serve(tmp_path / "server") as server:
        finish([python(), "-m", "wandb", "sync", place], tmp_path, environment(tmp_path, server))
        run = only_run(server)
        assert run.name == read(tmp_path / "run", "tracking.json")["run_id"]
        assert run.attributes["groupName"] == "synthetic-text" and run.values()["delivery"] == "multipass"
        assert_same_curves(run, tmp_path / "run")
        assert run.summary["final/soft_nll"] == read(tmp_path / "run", "metrics.json")["soft_nll"]
        (path,) = (server.folder / "artifacts").rglob("predictions.table.json")
        table = json.loads(path.read_text())
        assert isinstance(table["data"][0][table["columns"].index("input")], str)


def kill_and_resume(folder: Path, env: dict[str, str]) -> str:
    """A run of 12 epochs that is killed after the second; returns what it said when it went on."""
    words = command("soft.yaml", "--report_to", "wandb", "--num_train_epochs", "12", "--train_size", "400")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, cwd=folder, env=env, **silent, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while not (folder / "run" / "checkpoint-26").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (folder / "run" / "DONE").exists()
    said = finish(words, folder, env)
    assert "Resuming from" in said
    assert len(lines(folder / "run")) == 12
    return said


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_in_the_same_wandb_run(tmp_path):
    with serve(tmp_path / "server") as server:
        kill_and_resume(tmp_path, environment(tmp_path, server))
        run = only_run(server)
        assert server.operations.count("RunResumeStatus") == 2 and run.state == "finished"
        assert_same_curves(run, tmp_path / "run")
        steps = [row["_step"] for row in run.history]
        assert steps == sorted(set(steps))
        assert run.summary["final/soft_nll"] == read(tmp_path / "run", "metrics.json")["soft_nll"]


@pytest.mark.slow
def test_a_run_that_was_killed_offline_is_whole_in_what_is_to_be_synced(tmp_path):
    said = kill_and_resume(tmp_path, environment(tmp_path))
    (places,) = re.findall(r"To send the offline run to W&B: wandb sync (.+)", said)
    with serve(tmp_path / "server") as server:
        finish([python(), "-m", "wandb", "sync", *places.split()], tmp_path, environment(tmp_path, server))
        assert_same_curves(only_run(server), tmp_path / "run")


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Becomes, in this process and an empty folder, a user with this environment."""

    def become(**variables: str) -> None:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            monkeypatch.delenv(name)
        for name, value in {"HOME": str(tmp_path), "WANDB_SILENT": "true", **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        # The client reads the environment once.
        wandb.teardown()

    yield become
    wandb.teardown()


def train(*options: str) -> int:
    return main([*command("soft.yaml", *options)[3:]])


def test_a_server_that_is_not_there_does_not_stop_the_training(tmp_path, user, caplog):
    # Nothing listens on port 9.
    user(WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY=KEY, WANDB_INIT_TIMEOUT="2")
    assert train("--report_to", "wandb") == 0
    assert "W&B cannot be reached" in caplog.text and (tmp_path / "run" / "DONE").exists()
    (place,) = re.findall(r"To send the offline run to W&B: wandb sync (\S+)", caplog.text)
    assert list(Path(place).glob("*.wandb"))


def test_a_server_that_goes_away_does_not_stop_the_training(tmp_path, user):
    with serve(tmp_path / "server") as server:
        server.down_after_start = True
        user(WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY, WANDB_FINISH_TIMEOUT="2")
        assert train("--report_to", "wandb") == 0
        assert server.down and (tmp_path / "run" / "DONE").exists()


@pytest.mark.slow
def test_two_processes_are_one_run(tmp_path):
    two = [python(), "-m", "accelerate.commands.launch", "--config_file"]
    two += [str(ROOT / "recipes" / "accelerate_configs" / "cpu2.yaml"), "-m"]
    with serve(tmp_path / "server") as server:
        env = environment(tmp_path, server, MASTER_PORT=str(20000 + os.getpid() % 20000))
        words = command("soft.yaml", "--report_to", "all", "--use_cpu")[2:]
        finish([*two, *words], tmp_path, env)
        assert read(tmp_path / "run", "metrics.json")["world_size"] == 2
        assert server.operations.count("RunResumeStatus") == 1
        assert_same_curves(only_run(server), tmp_path / "run")
    with sqlite3.connect(tmp_path / "trackio" / "huggingface.db") as database:
        assert len(database.execute("select distinct run_name from metrics").fetchall()) == 1


def test_a_key_without_form_is_refused_before_anything_is_written(tmp_path, user, capsys):
    user(WANDB_API_KEY="short")
    assert train("--report_to", "wandb") == 2
    assert "hf-softlabel: error: The W&B login cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_somebody_elses_run_is_used_and_left_open(tmp_path, user):
    user(WANDB_MODE="offline")
    run = wandb.init(project="mine")
    assert train("--report_to", "wandb") == 0
    assert wandb.run is run
    assert run.config["delivery"] == "soft" and run.config["dataset"] == "synthetic"
    assert run.summary["final/soft_nll"] == read(tmp_path / "run", "metrics.json")["soft_nll"]
    run.finish()
    assert not (tmp_path / "run" / "tracking.json").exists()


def test_an_overwritten_run_is_a_new_one_to_trackers(tmp_path):
    first = run_id(tmp_path)
    assert run_id(tmp_path) == first
    from hf_softlabel.run import _clear

    _clear(tmp_path)
    assert run_id(tmp_path) != first


def test_results_by_their_path_in_the_files():
    metrics = {
        "soft_nll": 0.5,
        "entropy_correlation": None,
        "hard_label": "gold",
        "references": {"human": {"kl": 0.1}},
        "versions": {"torch": "2"},
        "undefined": {"entropy_correlation": "all the same"},
        "train_mean": [0.5, 0.5],
    }
    assert final_results(metrics, {"hessian": {"lambda_max": 3.0}}) == {
        "final/soft_nll": 0.5,
        "final/hard_label": "gold",
        "final/references/human/kl": 0.1,
        "diagnostics/hessian/lambda_max": 3.0,
    }


def test_the_most_ambiguous_examples_come_first_and_hand_worked_scores_hold():
    votes = np.array([[4, 0], [2, 2], [3, 1]])
    values = np.log([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
    found = Predictions("x", np.array([10, 11, 12]), values, True, "example_id", votes, np.array([0, 1, 0]), None)
    columns = prediction_columns(found, limit=2)
    assert columns["example_id"] == [11, 12]
    assert columns["annotators/0"] == [0.5, 0.75] and columns["model/1"] == pytest.approx([0.75, 0.5])
    assert columns["soft_nll"] == pytest.approx([-(math.log(0.25) + math.log(0.75)) / 2, math.log(2)])
    assert columns["annotator_entropy"][0] == pytest.approx(math.log(2))
    assert columns["kl"][0] == pytest.approx(columns["soft_nll"][0] - math.log(2))
    assert columns["gold"] == ["1", "0"] and columns["model"][0] == "1"
    # With inputs, their examples are the rows.
    assert prediction_columns(found, {10: "ten", 12: "twelve"})["input"] == ["twelve", "ten"]


def test_methods_are_told_apart_by_what_tables_compare():
    config = {"delivery": "sls", "seed": 3, "dataset": "cifar10h", "votes_per_example": 5, "resample_every": 2}
    assert method_name(config) == "sls, K = 5, held 2 epochs"
    assert method_name({"delivery": "soft", "seed": 0, "resample_every": 2}) == "soft"
    assert method_name({"delivery": "mixup", "seed": 0, "mixup_alpha": 0.4}) == "mixup (mixup_alpha 0.4)"
    long = run_arguments({"delivery": "soft", "seed": 0, "dataset": "d" * 100, "run_name": "mine"}, "run", "rec", None)
    assert max(map(len, long["tags"])) == 64  # W&B refuses longer ones
    assert long["name"] == "mine" and long["group"] == "rec"


def test_trackio_that_is_not_installed_is_an_error(tmp_path, monkeypatch):
    from hf_softlabel.callbacks import tracking
    from hf_softlabel.config import SoftLabelConfig

    monkeypatch.setattr(tracking, "is_trackio_available", lambda: False)
    with pytest.raises(VotesError, match="pip install trackio"):
        tracking.check_trackers(SoftLabelConfig(output_dir=str(tmp_path), report_to="trackio"))
