"""Grids: reading them, their cells' commands, locks, the live view and the estimate of their cost."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_softlabel.cli import main
from hf_softlabel.config import parse_recipe, resolved
from hf_softlabel.data.errors import VotesError
from hf_softlabel.experiments import cell_lock
from hf_softlabel.experiments.cost import dry_run, makespan
from hf_softlabel.experiments.grid import (
    cell_command,
    cell_configs,
    cell_environment,
    is_done,
    read_grid,
    refuse_changed_runs,
    write_grid,
)
from hf_softlabel.experiments.launch import job_environment, launcher_words
from hf_softlabel.experiments.progress_view import GridView, clock, failure_report, last_lines, seconds_left

RECIPES = Path(__file__).parents[1] / "recipes"
SHIPPED = sorted(path for path in RECIPES.rglob("*.yaml") if "\naxes:" in path.read_text())
BASE = {"dataset": "synthetic", "subset": "text", "model": "synthetic-bert", "report_to": "none"}


@pytest.fixture
def grid_of(tmp_path, monkeypatch):
    """Write a base recipe and a grid in the working folder, and read the grid."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))

    def read(text: str, *arguments: str):
        (tmp_path / "sweep.yaml").write_text(text)
        return read_grid("sweep.yaml", arguments)

    return read


def names(grid) -> list[str]:
    return [cell.name for cell in grid.cells]


# Reading.


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_shipped_grid_reads(path):
    values = yaml.safe_load(path.read_text())
    products = values["axes"] if isinstance(values["axes"], list) else [values["axes"]]
    sizes = []
    for product in products:
        size = 1
        for axis in product.values():
            size *= len(axis)
        sizes.append(size)
    assert len(read_grid(path).cells) == sum(sizes)


def test_the_cells_are_the_product_of_the_axes(grid_of):
    grid = grid_of("recipe: base.yaml\naxes: {delivery: [soft, sls], votes_per_example: [5, 10], seed: [0, 1]}")
    assert names(grid) == [
        *["soft-votes_per_example5-seed0", "soft-votes_per_example5-seed1"],
        *["soft-votes_per_example10-seed0", "soft-votes_per_example10-seed1"],
        *["sls-votes_per_example5-seed0", "sls-votes_per_example5-seed1"],
        *["sls-votes_per_example10-seed0", "sls-votes_per_example10-seed1"],
    ]
    assert grid.name == "sweep" and grid.output_dir == Path("runs/sweep")
    assert grid.cells[3].options == {"delivery": "soft", "votes_per_example": 10, "seed": 1}
    assert grid.cells[3].output_dir == Path("runs/sweep/soft-votes_per_example10-seed1")


def test_a_list_of_mappings_is_the_union_of_their_products(grid_of):
    grid = grid_of("recipe: base.yaml\naxes: [{delivery: [soft, sls]}, {delivery: [sls], resample_every: [2, 5]}]")
    assert names(grid) == ["soft", "sls", "sls-resample_every2", "sls-resample_every5"]


def test_recipes_may_be_an_axis(grid_of, tmp_path):
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "soft.yaml").write_text(yaml.safe_dump({**BASE, "num_train_epochs": 7}))
    grid = grid_of("axes: {seed: [0], recipe: [base.yaml, wide/soft.yaml]}")
    assert names(grid) == ["base-seed0", "wide-soft-seed0"]
    assert [cell_configs(cell)[2].num_train_epochs for cell in grid.cells] == [3, 7]
    assert "recipe" not in grid.cells[0].options


def test_axes_win_over_the_command_line_over_options_over_the_recipe(grid_of):
    text = "recipe: base.yaml\noutput_dir: here\noptions: {num_train_epochs: 5, max_length: 8}\naxes: {seed: [3]}"
    model, data, training = cell_configs(grid_of(text, "--num_train_epochs", "2").cells[0])
    assert (training.num_train_epochs, data.max_length, training.seed) == (2, 8, 3)
    assert model.model == "synthetic-bert" and training.output_dir == "here/seed3"
    assert grid_of(text, "--output_dir=there").cells[0].output_dir == Path("there/seed3")


def test_a_recipe_is_found_from_the_grid_and_not_from_the_working_folder(grid_of, tmp_path, monkeypatch):
    grid_of("recipe: base.yaml\naxes: {seed: [0]}")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    grid = read_grid("../sweep.yaml")
    assert grid.cells[0].recipe.samefile(tmp_path / "base.yaml")
    assert grid.output_dir == Path(f"runs/{tmp_path.name}-sweep")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recipe: base.yaml\naxis: {seed: [0]}", "unknown key 'axis'.*Did you mean 'axes'"),
        ("recipe: base.yaml\nseed: 3\naxes: {delivery: [soft]}", "unknown key 'seed'.*under `options` or `axes`"),
        ("recipe: base.yaml\naxes: {sed: [0]}", "unknown key 'sed' in axes.*'seed'"),
        ("recipe: base.yaml\noptions: {sed: 0}\naxes: {seed: [0]}", "unknown key 'sed' in options"),
        ("recipe: base.yaml\naxes: {seed: []}", "axis seed must be a list of at least one value"),
        ("recipe: base.yaml\naxes: {seed: 3}", "axis seed must be a list of at least one value, not 3"),
        ("recipe: base.yaml\naxes: {}", "axes must be lines of"),
        ("recipe: base.yaml\naxes: []", "axes must be lines of"),
        ("recipe: base.yaml", "axes must be lines of"),
        ("recipe: base.yaml\naxes: {seed: [0, 1, 0]}", "the cell seed0 is the same run as seed0"),
        # Written otherwise, but the same number.
        ("recipe: base.yaml\naxes: {learning_rate: [1.0e-3, 0.0010, '1e-3']}", "is the same run as"),
        ("recipe: base.yaml\naxes: {run_name: [a/b, a_b]}", "cell run_namea_b is named like run_namea_b"),
        ("axes: {seed: [0]}", "needs one `recipe`"),
        ("recipe: base.yaml\naxes: {recipe: [base.yaml]}", "needs one `recipe`"),
        ("recipe: no.yaml\naxes: {seed: [0]}", "cell seed0: .*no.yaml cannot be read"),
        ("recipe: base.yaml\naxes: {seed: [0, x]}", "cell seedx: .*invalid int value: 'x'"),
        ("recipe: base.yaml\naxes: {delivery: [soft, sofft]}", "cell sofft: .*invalid choice"),
        ("recipe: base.yaml\naxes: {resample_every: [1, 0]}", "cell resample_every0: .*resample_every"),
        ("recipe: base.yaml\noptions: {seed: 0}\naxes: {seed: [0]}", "seed is an axis and stands in options too"),
        ("recipe: base.yaml\naxes: {output_dir: [a]}", "output_dir stands beside axes"),
        ("recipe: base.yaml\naxes: {width: [null]}", "width is 1.0 in base.yaml or by default"),
        ("recipe: base.yaml\naxes: {seed: [0]\n", "not valid YAML"),
        ("recipe: base.yaml\naxes: {seed: [0], seed: [1]}", "The key 'seed' occurs twice"),
        ("- recipe", "must have the keys recipe, output_dir, options, axes"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(grid_of, tmp_path, text, said):
    with pytest.raises(VotesError, match=f"(?s)sweep.yaml.*{said}"):
        grid_of(text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.yaml", "sweep.yaml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "3"], "seed is an axis and stands in the command line too"),
        (["--sed", "3"], "Unknown argument '--sed'. Did you mean 'seed'"),
        (["3"], "Unknown argument '3': options are written --KEY VALUE"),
        (["--num_train_epochs", "many"], "cell seed0: .*invalid float value: 'many'"),
    ],
)
def test_wrong_options_are_refused(grid_of, words, said):
    with pytest.raises(VotesError, match=said):
        grid_of("recipe: base.yaml\naxes: {seed: [0]}", *words)


def test_the_command_ends_with_2_and_says_what_was_wrong(grid_of, capsys):
    grid_of("recipe: base.yaml\naxes: {seed: [0]}")
    wrong = {
        ("--seed", "1"): "is an axis",
        ("--jobs", "0"): "--jobs must be at least 1",
        ("--retries", "-1"): "--retries must be at least 0",
        ("--launcher", "no-such-program --x"): "no program 'no-such-program'",
    }
    for words, said in wrong.items():
        assert main(["grid", "sweep.yaml", *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["grid", "--seed", "1", "sweep.yaml"]) == 2
    assert not Path("runs").exists()


# Commands.


def test_a_cells_command_says_what_the_cell_is(grid_of):
    text = """
recipe: base.yaml
options: {bf16: false, text_columns: [text], lr_scheduler_kwargs: {a: 1}, learning_rate: 5e-4}
axes: {votes_per_example: [null, 3], diagnostics: [[], [uncertainty, hessian]], width: [0.5]}
"""
    grid = grid_of(text, "--max_length", "9", "--augment", "--class_names", "a", "b", "--hub_revision", "1e3")
    assert len(grid.cells) == 4
    found = []
    for cell in grid.cells:
        command = cell_command(cell)
        assert command[:5] == [sys.executable, "-m", "hf_softlabel", "train", "base.yaml"]
        model, data, training = parse_recipe(command[4], command[5:])
        assert training.output_dir == str(cell.output_dir) and model.width == 0.5
        assert data.text_columns == ["text"] and data.max_length == 9 and data.class_names == ["a", "b"]
        assert training.lr_scheduler_kwargs == {"a": 1} and training.learning_rate == 5e-4
        assert training.bf16 is False and training.augment is True and training.hub_revision == "1e3"
        found.append((data.votes_per_example, training.diagnostics))
    assert found == [(None, None), (None, ["uncertainty", "hessian"]), (3, None), (3, ["uncertainty", "hessian"])]


def test_a_launcher_starts_the_same_module(grid_of):
    cell = grid_of("recipe: base.yaml\naxes: {seed: [0]}").cells[0]
    command = cell_command(cell, ["accelerate", "launch", "--num_processes", "4"])
    assert command[:7] == ["accelerate", "launch", "--num_processes", "4", "-m", "hf_softlabel", "train"]
    assert command[7:] == cell_command(cell)[4:]
    # Two of them at once cannot have one port.
    words = ["accelerate", "launch", "--num_processes", "4"]
    assert launcher_words(words, 1) == words
    assert launcher_words(words, 2) == ["accelerate", "launch", "--main_process_port", "0", *words[2:]]
    own = ["accelerate", "launch", "--main_process_port=99"]
    assert launcher_words(own, 2) == own and launcher_words(["torchrun"], 2) == ["torchrun"]


def test_names_fit_a_file_system(grid_of):
    long = [f"Organisation/{'x' * 300}{i}" for i in range(2)]
    found = names(grid_of(yaml.safe_dump({"recipe": "base.yaml", "axes": {"run_name": ["a b/c:d", *long]}})))
    assert found[0] == "run_namea_b_c_d"
    assert len(set(found)) == 3 and max(map(len, found)) < 200
    assert not any(re.search(r"[^\w.,+=-]", name) for name in found)


def test_threads_and_gpus_are_divided(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert job_environment(3)["OMP_NUM_THREADS"] == "2"
    assert job_environment(20)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in job_environment(2, ["torchrun"])
    assert job_environment(2, devices=["2", "3"])["CUDA_VISIBLE_DEVICES"] == "2,3"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert job_environment(3)["OMP_NUM_THREADS"] == "5"


# Files.


def test_grid_json_lists_the_cells(grid_of):
    grid = grid_of("recipe: base.yaml\naxes: {delivery: [soft, sls], seed: [0]}")
    write_grid(grid)
    written = json.loads(Path("runs/sweep/grid.json").read_text())
    assert written == {
        "name": "sweep",
        "grid": "sweep.yaml",
        "axes": [{"delivery": ["soft", "sls"], "seed": [0]}],
        "cells": [
            {
                "name": f"{delivery}-seed0",
                "output_dir": f"{delivery}-seed0",
                "recipe": "base.yaml",
                "options": {"delivery": delivery, "seed": 0},
            }
            for delivery in ("soft", "sls")
        ],
    }
    variables = cell_environment(grid, grid.cells[0])
    assert variables["HF_SOFTLABEL_GRID"] == "sweep"
    assert variables["HF_SOFTLABEL_PROGRESS"] == "runs/sweep/logs/soft-seed0.progress.json"


def finish(cell, steps: int = 100, epochs: float = 2.0, seconds: float | None = 50.0) -> None:
    """What a finished run of the cell leaves behind, as far as grids look at it."""
    cell.output_dir.mkdir(parents=True)
    (cell.output_dir / "config.yaml").write_text(yaml.safe_dump(resolved(*cell_configs(cell))))
    metrics = {"steps": steps, "epochs": epochs, "train_seconds": seconds}
    (cell.output_dir / "metrics.json").write_text(json.dumps(metrics))
    (cell.output_dir / "DONE").write_text("")


def test_a_finished_cell_with_other_settings_is_refused(grid_of, capsys):
    text = "recipe: base.yaml\noptions: {num_train_epochs: 2}\naxes: {seed: [0, 1]}"
    grid = grid_of(text)
    finish(grid.cells[1])
    assert [is_done(cell) for cell in grid.cells] == [False, True]
    refuse_changed_runs(grid)
    # More seeds, another logging: the finished cell is still what the grid asks for.
    refuse_changed_runs(grid_of(text.replace("[0, 1]", "[0, 1, 2]"), "--logging_steps", "7"))
    with pytest.raises(VotesError, match=r"cell seed1: .*seed1 holds .*\(different: learning_rate\)"):
        refuse_changed_runs(grid_of(text, "--learning_rate", "0.5"))
    assert main(["grid", "sweep.yaml", "--learning_rate", "0.5"]) == 2
    assert not Path("runs/sweep/grid.json").exists()


# Locks.

HOLD = "import sys; from hf_softlabel.experiments.cell_lock import join; join(); print('joined', flush=True); input()"


def test_a_lock_is_held_as_long_as_one_process_lives_and_no_longer(tmp_path):
    path = tmp_path / "logs" / "cell.lock"
    assert not cell_lock.is_held(path) and not path.exists()
    file = cell_lock.take(path)
    assert cell_lock.take(path) is None and cell_lock.is_held(path)
    inherits = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(file,))
    # As the processes of `accelerate launch`, which do not inherit it.
    joins = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, cell_lock.VARIABLE: str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert joins.stdout.readline() == b"joined\n"
    os.close(file)
    for process in (inherits, joins):
        assert cell_lock.take(path) is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    file = cell_lock.take(path)
    assert file is not None
    os.close(file)


def test_a_note_replaces_a_longer_one(tmp_path):
    path = tmp_path / "cell.lock"
    assert cell_lock.read_note(path) == {}
    file = cell_lock.take(path)
    assert cell_lock.read_note(path) == {}
    for note in ({"grid": 123456, "host": "here", "devices": ["0", "1"]}, {"failed": 1}):
        cell_lock.write_note(file, note)
        assert cell_lock.read_note(path) == note
    os.close(file)


# The view.


class Terminal(io.StringIO):
    """Understands what the view writes: lines, and `go up n lines and clear from there`."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for up, line in re.findall(r"\x1b\[(\d+)A\x1b\[J|([^\n\x1b]*)\n", text):
            if up:
                del self.lines[-int(up) :]
            else:
                self.lines.append(line)
        return len(text)


def progress(grid, index: int, **values) -> None:
    path = Path(cell_environment(grid, grid.cells[index])["HF_SOFTLABEL_PROGRESS"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"epochs": 4, "steps": 40, "start_step": 0, "start_time": 1000.0, **values}))


def test_a_terminal_shows_one_block_below_what_has_happened(grid_of, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr("hf_softlabel.experiments.progress_view.DRAW_SECONDS", 0)
    grid = grid_of("recipe: base.yaml\naxes: {seed: [0, 1, 2, 3]}")
    screen = Terminal()
    view = GridView(grid, 2, screen)
    running = dict(zip(names(grid), ("finished", "running", "running", "waiting"), strict=True))
    view.update(running)
    head = "sweep: 4 cells, 1 finished already, in runs/sweep"
    assert screen.lines == [
        head,
        "[######..................]  25%  1 finished, 2 running, 1 waiting",
        "  seed1  starting",
        "  seed2  starting",
    ]
    # 10 of 40 steps in 50 s: 150 s are left.
    progress(grid, 1, epoch=1.0, step=10, time=1050.0)
    progress(grid, 2, epoch=4.0, step=40, time=1050.0)
    view.update(running)
    assert screen.lines[0] == head and len(screen.lines) == 4
    assert screen.lines[1].startswith("[#############...........]  56%  1 finished, 2 running, 1 waiting, ")
    assert screen.lines[2:] == ["  seed1  epoch 1.0 of 4, 2:30 left", "  seed2  trained; measuring"]
    view.update({**running, "seed1": "failed", "seed2": "waiting"}, {"seed1": "failed with exit code 2"})
    assert screen.lines[1:3] == [
        "  failed    seed1: failed with exit code 2",
        "  cut off   seed2: it will be started again",
    ]
    view.update({**running, "seed1": "failed", "seed2": "found"})
    assert screen.lines[3] == "  found     seed2: another call started it, and it still runs"
    assert len(screen.lines) == 6 and screen.lines[5].startswith("  seed2  ")
    view.close()
    assert screen.lines[4:] == ["sweep: 1 finished, 1 running, 1 waiting, 1 failed after 0:00"]


def test_elsewhere_there_is_a_line_for_each_event(grid_of):
    grid = grid_of("recipe: base.yaml\naxes: {seed: [0, 1]}")
    file = io.StringIO()
    view = GridView(grid, 2, file)
    for states in (("running", "waiting"), ("running", "waiting"), ("finished", "running"), ("finished", "finished")):
        view.update(dict(zip(names(grid), states, strict=True)))
    view.close()
    assert file.getvalue().splitlines() == [
        "sweep: 2 cells, in runs/sweep",
        "  started   seed0",
        "  finished  seed0 in 0:00 (1 of 2)",
        "  started   seed1",
        "  finished  seed1 in 0:00 (2 of 2)",
        "sweep: 2 finished after 0:00",
    ]


def test_the_remaining_time_is_reckoned_from_this_processs_own_steps():
    resumed = {"step": 30, "steps": 100, "start_step": 20, "start_time": 1000.0, "time": 1005.0}
    assert seconds_left(resumed) == 35.0  # 10 steps in 5 s, 70 to go
    assert seconds_left({**resumed, "step": 20}) is None and seconds_left(None) is None
    assert [clock(seconds) for seconds in (0, 59.6, 725, 11250)] == ["0:00", "1:00", "12:05", "3:07:30"]


def test_failures_are_told_with_the_end_of_their_logs(grid_of):
    grid = grid_of("recipe: base.yaml\naxes: {seed: [0, 1]}")
    log = Path("runs/sweep/logs/seed1.log")
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {i}\n\n" for i in range(30)) + " 10%|#\r 50%|##\r\nValueError: wrong")
    assert last_lines(log, 3) == ["line 29", " 50%|##", "ValueError: wrong"]
    told = failure_report(grid, {"seed1": "failed with exit code 1", "seed0": "was killed 3 times"}).splitlines()
    assert told[0] == "2 cells of 2 failed:"
    assert told[2] == "seed0 was killed 3 times; the end of runs/sweep/logs/seed0.log:"
    assert told[4] == "seed1 failed with exit code 1; the end of runs/sweep/logs/seed1.log:"
    assert told[5] == "  | line 22" and told[-1] == "  | ValueError: wrong" and len(told) == 15


# The cost.


def test_the_cost_of_what_is_left_comes_from_finished_cells(grid_of):
    text = "recipe: base.yaml\noptions: {num_train_epochs: 2}\naxes: {delivery: [soft, sls], seed: [0, 1, 2]}"
    grid = grid_of(text)
    finish(grid.cells[0], steps=100, seconds=50.0)
    finish(grid.cells[4], steps=100, seconds=70.0)
    finish(grid.cells[5], seconds=None)  # resumed
    (grid.cells[1].output_dir / "checkpoint-60").mkdir(parents=True)
    manifest = {"settings": {}, "progress": {}, "resumable": True, "files": {}}
    (grid.cells[1].output_dir / "checkpoint-60" / "manifest.json").write_text(json.dumps(manifest))
    before = sorted(Path("runs").rglob("*"))
    # 0.6 s a step: 40 steps are left of one cell, and 100 of each of two.
    assert dry_run(grid, 2).splitlines() == [
        "sweep: 6 cells, 3 to run, in runs/sweep",
        "  soft-seed0  done",
        "  soft-seed1  cut off at step 60        40 steps      0:24",
        "  soft-seed2  to do                    100 steps      1:00",
        "  sls-seed0   to do                    100 steps      1:00",
        "  sls-seed1   done",
        "  sls-seed2   done",
        "2:24 if run one after another, 1:24 with --jobs 2",
        "estimated from 2 finished cells of the same kind: "
        "training with its evaluations, without the seconds to start",
    ]
    assert sorted(Path("runs").rglob("*")) == before


def test_the_wall_time_is_that_of_the_job_that_ends_last():
    assert makespan([3, 2, 2, 4], 1) == 11
    assert makespan([3, 2, 2, 4], 2) == 7  # 3 and 4 beside 2 and 2
    assert makespan([3, 2, 2, 4], 9) == 4
