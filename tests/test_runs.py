"""Which run directories a report finds, what it takes for one setting, and what it says is missing."""

from __future__ import annotations

import json

import pytest
from run_directories import CLASSES, write_run

from hf_softlabel.data.errors import VotesError
from hf_softlabel.experiments.runs import by_setting, find_runs
from hf_softlabel.experiments.setting import measured, metric, settings_of, title_of


def test_runs_are_found_at_any_depth_and_cut_off_ones_are_listed(tmp_path):
    write_run(tmp_path / "a", "soft", 0)
    write_run(tmp_path / "deep" / "er" / "b", "sls", 0, scores={"soft_nll": 0.25})
    write_run(tmp_path / "c", "sls", 1, done=False)
    # What lies inside a run is none: a checkpoint, and a model with a config.yaml of its own.
    write_run(tmp_path / "a" / "model" / "inside", "soft", 7)
    write_run(tmp_path / "checkpoint-5" / "d", "soft", 8)
    (tmp_path / "config.yaml").write_text("something: else\n")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.yaml").write_text("a: [")
    found = find_runs(tmp_path)
    assert {(run.path.name, run.delivery, run.seed) for run in found.runs} == {("a", "soft", 0), ("b", "sls", 0)}
    assert [(one.path.name, one.state) for one in found.missing] == [("c", "cut off")]
    sls = next(run for run in found.runs if run.delivery == "sls")
    assert metric("soft_nll")(sls) == 0.25 and metric("none")(sls) is None
    assert sls.class_names == list(CLASSES) and len(sls.history()) == 3 and len(sls.predictions()) == 40


def test_cells_of_a_grid_that_were_not_started_are_missing(tmp_path):
    grid = tmp_path / "far" / "below" / "this" / "grid"
    write_run(grid / "soft-seed0", "soft", 0)
    write_run(grid / "soft-seed1", "soft", 1, done=False)
    cells = [{"name": f"soft-seed{seed}", "output_dir": f"soft-seed{seed}"} for seed in range(3)]
    (grid / "grid.json").write_text(json.dumps({"name": "sweep", "cells": cells}))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "grid.json").write_text('{"map": []}')  # another program's
    for folder in (tmp_path, grid):
        found = find_runs(folder)
        assert found.runs[0].grid == "sweep"
        assert [(one.path.name, one.grid, one.state) for one in found.missing] == [
            ("soft-seed1", "sweep", "cut off"),
            ("soft-seed2", "sweep", "not started"),
        ]
        assert all(one.path.is_relative_to(folder) for one in found.missing)


def test_the_same_run_in_two_grids_counts_once_with_what_was_measured_of_either(tmp_path):
    write_run(tmp_path / "a" / "sls", "sls", 0, diagnostics={"hessian": {"lambda_max": 3.0}})
    write_run(tmp_path / "b" / "sls", "sls", 0, resample_every=1, diagnostics={"ood": {}}, logging_steps=7)
    found = find_runs(tmp_path)
    assert len(found.runs) == 1 and found.runs[0].diagnostics.keys() == {"hessian", "ood"}
    assert [(copy.parent.name, first.parent.name) for copy, first in found.copies] == [("b", "a")]
    assert (
        measured("hessian", "lambda_max")(found.runs[0]) == 3 and measured("hessian", "trace")(found.runs[0]) is None
    )


def test_other_sampled_deliveries_that_hold_labels_are_other_runs(tmp_path):
    for every in (1, 5):
        for delivery in ("shuffled_sls", "posterior_sls", "multipass"):
            write_run(tmp_path / f"{delivery}-{every}", delivery, 0, resample_every=every)
    found = find_runs(tmp_path)
    assert len(found.runs) == 5 and [copy.name for copy, _ in found.copies] == ["multipass-5"]


def test_settings_part_what_tables_do_not_compare(tmp_path):
    for i, options in enumerate(
        (
            {},
            {"delivery": "sls"},
            {"delivery": "sls", "votes_per_example": 5},
            {"delivery": "sls", "resample_every": 5},
            {"delivery": "mixup", "mixup_alpha": 0.4},
            {"num_train_epochs": 40.0},
            {"num_train_epochs": 40.0, "learning_rate": 0.2},
            {"num_train_epochs": 40.0, "learning_rate": 0.2, "seed": 1},
        )
    ):
        write_run(tmp_path / str(i), **options)
    groups = by_setting(find_runs(tmp_path).runs)
    name = "cifar10h, resnet18, width 0.25, 4000 training examples"
    assert {key: sorted(int(run.path.name) for run in runs) for key, runs in groups.items()} == {
        f"{name}, 20 epochs": [0, 1, 2, 3, 4],
        f"{name}, 40 epochs, learning_rate 0.2": [6, 7],
        f"{name}, 40 epochs, learning_rate 0.1": [5],
    }
    setting = settings_of(find_runs(tmp_path).runs, [])[0][0]
    assert setting.methods() == ["soft", "sls", "mixup (mixup_alpha 0.4)"]
    assert title_of("mixup (mixup_alpha 0.4)") == "Mixup (mixup_alpha 0.4)"
    assert setting.votes_per_example == [5] and setting.resampling == [1, 5]
    assert setting.get("sls", None, 5)[0].path.name == "3" and setting.get("soft", 5) == {}


def test_a_run_with_another_eval_split_is_not_paired(tmp_path):
    write_run(tmp_path / "a", "soft", 0)
    write_run(tmp_path / "b", "sls", 0, fingerprint="other")
    write_run(tmp_path / "c", "sls", 1)
    (setting,), notes = settings_of(find_runs(tmp_path).runs, [])
    kept = {run.path.name for run in setting.runs}
    assert "c" in kept and len(kept) == 2
    assert len(notes) == 1 and "another eval split" in notes[0]


def test_pairs_are_matched_with_runs_also_after_the_folder_was_moved(tmp_path):
    for name in ("x", "y"):
        write_run(tmp_path / "runs" / name, "sls", ord(name))
    pair = {"first": "elsewhere/x", "second": str(tmp_path / "runs" / "y"), "cka": 0.5}
    # A run that lies elsewhere is not taken for one here that has its name.
    (tmp_path / "other" / "x").mkdir(parents=True)
    other = {"first": str(tmp_path / "other" / "x"), "second": "elsewhere/y", "cka": 0.3}
    unknown = {"first": "elsewhere/z", "second": "elsewhere/y", "cka": 0.1}
    # Two runs have this name: neither may be taken for the one that was measured.
    for grid in ("one", "two"):
        write_run(tmp_path / "runs" / grid / "twice", "soft", len(grid) + ord(grid[0]))
    ambiguous = {"first": "elsewhere/twice", "second": "elsewhere/y", "cka": 0.2}
    (tmp_path / "runs" / "diagnostics").mkdir()
    (tmp_path / "runs" / "diagnostics" / "diagnostics.json").write_text(
        json.dumps({"pairs": [pair, other, unknown, ambiguous]})
    )
    (found,) = find_runs(tmp_path).pairs
    assert (found.first.path.name, found.second.path.name, found.results["cka"]) == ("x", "y", 0.5)


def test_what_cannot_be_read_is_told(tmp_path):
    with pytest.raises(VotesError, match="no folder"):
        find_runs(tmp_path / "none")
    path = write_run(tmp_path / "a", "soft", 0)
    (path / "metrics.json").write_text("{")
    with pytest.raises(VotesError, match=r"metrics\.json is not valid JSON"):
        find_runs(tmp_path)
    (path / "metrics.json").unlink()
    with pytest.raises(VotesError, match=r"no .*metrics\.json"):
        find_runs(tmp_path)
