"""What a grid says before and after: cells that could be timed or not, and cells that were tracked offline."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hf_softlabel.cli import main
from hf_softlabel.experiments.grid import log_file, read_grid
from hf_softlabel.experiments.launch import offline_hint

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.slow
def test_cells_that_cannot_be_timed_are_listed_beside_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    Path("g.yaml").write_text(
        f"recipe: {RECIPES / 'synthetic/text.yaml'}\n"
        "options: {num_train_epochs: 1, train_size: 64, diagnostics: [uncertainty]}\n"
        "axes: {model: [synthetic-bert, nobody/nothing], seed: [0, 1]}\n"
    )
    assert main(["grid", "g.yaml", "--dry_run", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "seed" in line and "to do" in line]
    assert len(lines) == 4 and sum("not timed" in line for line in lines) == 2
    assert all(("nobody" in line) == ("not timed" in line) for line in lines)
    assert "without the 2 cells that were not timed" in out and "could not be timed: it took no step" in out
    assert "checkpoints and diagnostics are not counted" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.yaml"]


def test_a_recipe_given_to_grid_is_called_one(capsys):
    assert main(["grid", str(RECIPES / "synthetic/soft.yaml")]) == 2
    assert "is a recipe, for `hf-softlabel train`" in capsys.readouterr().err


def test_a_grid_says_how_to_send_what_its_cells_tracked_offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("g.yaml").write_text(f"recipe: {RECIPES / 'synthetic/soft.yaml'}\naxes: {{seed: [0, 1, 2]}}\n")
    grid = read_grid("g.yaml")
    logs = [log_file(grid, cell) for cell in grid.cells]
    logs[0].parent.mkdir(parents=True)
    assert offline_hint(grid) is None
    for log, line in zip(
        logs, ("To send it: wandb sync a/b\n", "nothing\n", "wandb sync c\nwandb sync c\n"), strict=True
    ):
        log.write_text(line)
    hint = offline_hint(grid)
    assert hint.startswith("2 cells were tracked offline")
    command = hint.partition("To send to W&B: ")[2].removesuffix(" | sh")
    assert subprocess.check_output(command, shell=True, text=True) == "wandb sync a/b\nwandb sync c\n"


def test_a_grid_takes_no_token(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES / "synthetic/soft.yaml"
    Path("g.yaml").write_text(f"recipe: {recipe}\naxes: {{seed: [0]}}\n")
    Path("inside.yaml").write_text(f"recipe: {recipe}\noptions: {{hub_token: hf_secret}}\naxes: {{seed: [0]}}\n")
    for words in (["g.yaml", "--hub_token", "hf_secret"], ["inside.yaml"]):
        assert main(["grid", *words]) == 2
        said = capsys.readouterr()
        assert "HF_TOKEN" in said.err and "hf_secret" not in said.out + said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.yaml", "inside.yaml"]
