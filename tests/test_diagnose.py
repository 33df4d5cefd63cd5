"""`hf-softlabel diagnose` on finished runs, one and two, as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hf_softlabel.build import open_run
from hf_softlabel.cli import main
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.diagnose import DiagnoseOptions, diagnose_pair, diagnose_run
from hf_softlabel.diagnostics.ood import DETECTORS
from hf_softlabel.preparation import votes_and_ids

RECIPES = Path(__file__).parents[1] / "recipes" / "synthetic"
QUICK = ["--num_train_epochs", "1", "--train_size", "100", "--eval_fraction", "0.1", "--disable_tqdm", "true"]
FAST = ["--rtol", "0.5", "--points", "3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, seed in (("soft", "soft", 0), ("sls", "sls", 0), ("other", "sls", 1), ("text", "text", 0)):
        out = ["--output_dir", str(folder / name), "--seed", str(seed)]
        assert main(["train", str(RECIPES / f"{recipe}.yaml"), *out, *QUICK]) == 0
    load_synthetic("vision", size=30, seed=9).remove_columns(["votes", "example_id", "label"]).save_to_disk(
        folder / "textures"
    )
    return folder


def error_of(capsys) -> str:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("hf-softlabel: error: ")][-1]


def test_an_opened_run_has_its_model_and_its_splits(runs):
    trainer, splits = open_run(runs / "sls")
    table = pq.read_table(runs / "sls" / "predictions.parquet").to_pydict()
    prediction = trainer.predict(trainer.eval_dataset)
    np.testing.assert_allclose(prediction.predictions, np.array(table["logits"]), atol=1e-5)
    assert prediction.label_ids[1].tolist() == table["example_id"]
    assert len(splits.train) == 100


def test_one_run(runs, capsys):
    out = runs / "one"
    ood = f"textures={runs / 'textures'}"
    assert main(["diagnose", str(runs / "sls"), *FAST, "--ood", ood, "--output_dir", str(out)]) == 0
    shown = capsys.readouterr().out
    own = json.loads((runs / "sls" / "diagnostics.json").read_text())
    assert own.keys() == {"uncertainty", "gradient_variance", "ood", "hessian"}
    together = json.loads((out / "diagnostics.json").read_text())
    assert together["runs"] == {str(runs / "sls"): own} and together["pairs"] == []
    assert own["ood"]["textures"].keys() == set(DETECTORS)
    # The same textures, drawn again: nothing tells them from those that were held out.
    assert 0.3 < own["ood"]["textures"]["knn"]["auroc"] < 0.7
    assert own["gradient_variance"]["label_entropy_correlation"] > 0.99
    assert f"lambda_max {own['hessian']['lambda_max']:.4g} +- " in shown
    assert f"Spearman {own['gradient_variance']['entropy_correlation']:.4f}" in shown
    assert any(path.suffix == ".png" for path in out.iterdir())


def test_two_runs_are_compared_on_what_both_held_out(runs, capsys):
    out = runs / "two"
    folders = [str(runs / "soft"), str(runs / "sls"), str(runs / "other")]
    assert main(["diagnose", *folders, "--no_hessian", *FAST, "--output_dir", str(out)]) == 0
    shown = capsys.readouterr().out
    pairs = json.loads((out / "diagnostics.json").read_text())["pairs"]
    assert [(p["first"], p["second"]) for p in pairs] == [
        (folders[0], folders[1]),
        (folders[0], folders[2]),
        (folders[1], folders[2]),
    ]
    ids = [set(votes_and_ids(open_run(run)[0].eval_dataset)[1].tolist()) for run in folders]
    assert [p["examples"] for p in pairs] == [len(ids[0] & ids[1]), len(ids[0] & ids[2]), len(ids[1] & ids[2])]
    assert len(ids[0]) == pairs[0]["examples"] > pairs[1]["examples"] > 0
    for pair in pairs:
        assert 0 < pair["cka"] <= 1 and -1 <= pair["gradcam"]["correlation"] <= 1
        assert pair["barrier"]["barrier"] >= 0 and pair["barrier"]["reestimated_barrier"] >= 0
        assert len(pair["barrier"]["losses"]) == 3
    assert f"linear CKA {pairs[0]['cka']:.4f}" in shown and "re-estimated batch norm" in shown
    # The ends of the line are the runs' own losses on these examples.
    scores = json.loads((runs / "soft" / "metrics.json").read_text())
    assert pairs[0]["barrier"]["losses"][0] == pytest.approx(scores["soft_nll"], rel=1e-4)


def test_a_run_with_itself_is_at_one_and_without_a_barrier(runs):
    options = DiagnoseOptions(hessian=False, points=3)
    found = diagnose_run(runs / "soft", options)
    pair = diagnose_pair(found, found, options)
    assert pair.cka == pytest.approx(1) and pair.gradcam.mean == pytest.approx(1)
    assert pair.barrier.barrier == pytest.approx(0, abs=1e-9)


def test_texts_have_no_maps_but_all_else(runs, capsys):
    out = runs / "texts"
    assert main(["diagnose", str(runs / "text"), *FAST, "--hessian_examples", "30", "--output_dir", str(out)]) == 0
    own = json.loads((runs / "text" / "diagnostics.json").read_text())
    assert own["hessian"]["examples"] == 30 and own["hessian"]["lambda_max"] > 0


def test_what_cannot_be_diagnosed_is_said(runs, tmp_path, capsys):
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "is not a finished run of `hf-softlabel train`" in error_of(capsys)
    assert (
        main(["diagnose", str(runs / "soft"), str(runs / "text"), "--no_hessian", "--output_dir", str(tmp_path)]) == 2
    )
    assert "different" in error_of(capsys) or "no example in common" in error_of(capsys)
    cut = shutil.copytree(runs / "soft", tmp_path / "cut")
    (cut / "DONE").unlink()
    assert main(["diagnose", str(cut)]) == 2
    assert "has no DONE" in error_of(capsys)
