"""`hf-softlabel diagnose` on finished runs, one and two, as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hf_softlabel.build import open_run
from hf_softlabel.cli import main
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.diagnose import DiagnoseOptions, diagnose_pair, diagnose_run
from hf_softlabel.diagnostics import linear_cka
from hf_softlabel.diagnostics.batches import TrainerBatches
from hf_softlabel.diagnostics.ood import DETECTORS
from hf_softlabel.diagnostics.outputs import collect_outputs
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
    assert own["ood"]["textures"].keys() == {*DETECTORS, "settings"}
    # The same textures, drawn again: nothing tells them from those that were held out.
    assert 0.3 < own["ood"]["textures"]["knn"]["auroc"] < 0.7
    assert own["gradient_variance"]["label_entropy_correlation"] > 0.99
    assert f"lambda_max {own['hessian']['lambda_max']:.4g} +- " in shown
    assert f"Spearman {own['gradient_variance']['entropy_correlation']:.4f}" in shown
    assert f"of the model {own['uncertainty']['model_entropy']:.4f}, of the annotators" in shown
    assert any(path.suffix == ".png" for path in out.iterdir())


def test_a_model_without_features_has_the_rest(runs, monkeypatch, tmp_path):
    """As multiple choice models, whose last layer has one output for each choice."""
    from hf_softlabel import diagnose

    trainer, splits = open_run(runs / "text")
    trainer.model.classifier = torch.nn.Sequential(trainer.model.classifier, torch.nn.Tanh())
    monkeypatch.setattr(diagnose, "open_run", lambda *_: (trainer, splits))
    run = shutil.copytree(runs / "text", tmp_path / "run")
    found = diagnose_run(run, DiagnoseOptions(hessian=False))
    assert found.variance is None and found.results.keys() == {"uncertainty"}
    pair = diagnose_pair(found, found, DiagnoseOptions(hessian=False, points=3))
    assert pair.cka is None and pair.barrier.barrier == pytest.approx(0, abs=1e-9)
    text = diagnose.format_diagnosis(diagnose.Diagnosis([found], [pair], DiagnoseOptions()))
    assert "no gradient variance and no CKA" in text and "linear CKA" not in text


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


def test_grad_cam_takes_batches_of_the_training(runs):
    options = DiagnoseOptions(hessian=False, points=3)
    found = diagnose_run(runs / "soft", options)
    whole = diagnose_pair(found, found, options).gradcam
    sizes = {True: set(), False: set()}  # of the batches with gradients, and of those without
    found.trainer.model.register_forward_hook(
        lambda _, __, output: sizes[torch.is_grad_enabled()].add(len(output.logits))
    )
    found.trainer.args.per_device_train_batch_size = 16
    parts = diagnose_pair(found, found, options).gradcam
    assert max(sizes[True]) == 16 < found.trainer.args.eval_batch_size == max(sizes[False])
    np.testing.assert_allclose(parts.correlations, whole.correlations, rtol=1e-5)


def test_runs_with_other_inputs_are_compared_on_their_own(runs, tmp_path, capsys):
    """The same data with images of another size: each network sees its own."""
    larger = ["--output_dir", str(tmp_path / "larger"), "--seed", "0", "--image_size", "20"]
    assert main(["train", str(RECIPES / "sls.yaml"), *larger, *QUICK]) == 0
    options = DiagnoseOptions(hessian=False, points=3)
    one, two = (diagnose_run(run, options) for run in (runs / "sls", tmp_path / "larger"))
    pair, back = diagnose_pair(one, two, options), diagnose_pair(two, one, options)
    assert pair.cka == pytest.approx(back.cka, rel=1e-5)
    assert not pair.same_inputs and pair.barrier is None and pair.gradcam is None
    own = [collect_outputs(d.trainer.model, TrainerBatches(d.trainer, d.trainer.eval_dataset)) for d in (one, two)]
    assert pair.cka == pytest.approx(linear_cka(*(outputs.features for outputs in own)), rel=1e-5)


def test_other_votes_than_those_of_the_run_are_refused(tmp_path, capsys):
    rows = [f"the room was {word},{k % 3},{1 + k % 2}" for k, word in enumerate(["great", "bad"] * 40)]
    (tmp_path / "votes.csv").write_text("\n".join(["text,no,yes", *rows]))
    (tmp_path / "cut.csv").write_text("\n".join(["text,no,yes", *rows[:60]]))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"dataset: table\nsources: {tmp_path / 'votes.csv'}\nlabel_columns: ['no', 'yes']\nmodel: synthetic-bert\n"
        "delivery: soft\nnum_train_epochs: 1\nsave_strategy: 'no'\nreport_to: none\ndisable_tqdm: true\n"
    )
    run = str(tmp_path / "run")
    assert main(["train", str(recipe), "--output_dir", run]) == 0
    assert main(["diagnose", run, "--no_hessian", "--sources", str(tmp_path / "cut.csv")]) == 2
    assert "does not have the votes that" in error_of(capsys)
    moved = shutil.move(run, tmp_path / "elsewhere")
    assert main(["diagnose", str(moved), "--no_hessian"]) == 0
    assert not Path(run).exists()


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
