"""What a dry run says of cells that it could time, could not time, and could time only in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_softlabel.cli import main

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
