"""`plot_diagnosis`: which pictures of runs and pairs there are, and what each is drawn from."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import yaml
from test_diagnostic_figures import curvature, line
from trainers import config, text_trainer

from hf_softlabel import VotesTrainer, diagnose_figures
from hf_softlabel.data.synthetic import TEXTURES
from hf_softlabel.diagnose import DiagnoseOptions, Diagnosis, PairDiagnosis, RunDiagnosis
from hf_softlabel.diagnose_figures import plot_diagnosis, run_names
from hf_softlabel.diagnostics.gradcam import grad_cam
from hf_softlabel.diagnostics.gradient_variance import gradient_variance
from hf_softlabel.metrics import entropy
from hf_softlabel.models import build_resnet, image_processor

OOD = {name: {"energy": np.arange(4.0), "knn": np.ones(4)} for name in ("in", "far")}


def image_run(folder: Path, images, rows, seed: int = 0) -> RunDiagnosis:
    """An untrained network whose eval split is `rows` of all examples."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"delivery": "sls", "seed": seed}))
    trainer = VotesTrainer(
        model=build_resnet(TEXTURES, width=0.125, image_size=16, seed=seed),
        args=config(folder),
        train_dataset=images["train"],
        eval_dataset=images["train"].select(rows),
        processing_class=image_processor(16),
    )
    variance = gradient_variance(np.ones((4, 2)), np.eye(4) + np.arange(4)[:, None])
    return RunDiagnosis(folder, trainer, {"hessian": curvature(2)}, {}, variance)


def drawn(monkeypatch, *names: str) -> dict[str, list]:
    """What these functions of `plot_diagnosis` are called with from now on, by their names."""
    calls: dict[str, list] = {name: [] for name in names}
    for name in names:
        real = getattr(diagnose_figures, name)

        def note(*args, name=name, real=real):
            calls[name].append(args)
            return real(*args)

        monkeypatch.setattr(diagnose_figures, name, note)
    return calls


def test_a_diagnosis_is_drawn_with_maps_of_what_is_most_disagreed_on(tmp_path, images, monkeypatch):
    calls = drawn(monkeypatch, "gradcam_overlays", "cka_heatmap", "interpolation_curves")
    # The second eval split has another order, and two examples of the first are not in it.
    rows, others = [6, 8, 1, 2, 3, 7, 4, 5], [9, 5, 4, 3, 2, 1, 8]
    runs = [image_run(tmp_path / "a", images, rows), image_run(tmp_path / "b", images, others, 1)]
    runs.append(replace(image_run(tmp_path / "c", images, rows, 2), ood_scores=OOD))
    pairs = [
        PairDiagnosis(runs[i].run, runs[j].run, 6, True, cka, barrier, None, None)
        for i, j, cka, barrier in ((0, 1, 0.25, line()), (0, 2, 0.5, None), (1, 2, 0.75, line()))
    ]
    written = plot_diagnosis(Diagnosis(runs, pairs, DiagnoseOptions()), tmp_path / "out")
    assert sorted({path.stem for path in written}) == [
        "cka",
        "gradcam",
        "gradient_variance_sls_seed_0",
        "gradient_variance_sls_seed_1",
        "gradient_variance_sls_seed_2",
        "hessian",
        "interpolation",
        "ood_energy_sls_seed_2",
        "ood_knn_sls_seed_2",
        "ood_roc_sls_seed_2",
    ]
    assert all(path.is_file() for path in written) and len(written) == 20
    names, matrix = calls["cka_heatmap"][0]
    assert names == ["sls, seed 0", "sls, seed 1", "sls, seed 2"]
    assert matrix.tolist() == [[1, 0.25, 0.5], [0.25, 1, 0.75], [0.5, 0.75, 1]]
    assert list(calls["interpolation_curves"][0][0]) == ["sls, seed 0 – sls, seed 1", "sls, seed 1 – sls, seed 2"]

    shown, maps, titles = calls["gradcam_overlays"][0]
    data = images["train"]
    votes = np.array(data["votes"][:])
    spread = entropy(votes / votes.sum(1, keepdims=True))
    most = sorted([8, 1, 2, 3, 4, 5], key=lambda row: -spread[row])[:4]
    assert [int(title.split()[1]) for title in titles] == [data[row]["example_id"] for row in most]
    pixels = np.stack([np.asarray(data[row]["image"]) for row in most])
    np.testing.assert_array_equal(shown, pixels)
    first = TEXTURES[votes[most[0]].argmax()]
    share = votes[most[0]].max() / votes[most[0]].sum()
    assert titles[0].split("\n")[1] == f"{first} {share:.0%}" and titles[0].endswith(f"maps of {first}")
    for found, name in zip(runs, maps, strict=True):
        inputs = found.trainer.image_transform(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        expected = grad_cam(found.trainer.model, inputs, torch.tensor(votes[most].argmax(1)))
        np.testing.assert_allclose(maps[name], expected, atol=1e-5)


def test_what_was_not_measured_is_not_drawn(tmp_path, images, texts):
    text = text_trainer(tmp_path, texts)
    found = replace(image_run(tmp_path / "a", images, [1, 2]), trainer=text, results={})
    written = plot_diagnosis(Diagnosis([found], [], DiagnoseOptions()), tmp_path / "out")
    assert {path.stem for path in written} == {"gradient_variance_sls_seed_0"}
    # Runs on images without an example in common.
    apart = [image_run(tmp_path / "b", images, [1, 2]), image_run(tmp_path / "c", images, [3, 4])]
    written = plot_diagnosis(Diagnosis(apart, [], DiagnoseOptions()), tmp_path / "apart")
    assert "gradcam" not in {path.stem for path in written}


def test_many_pairs_are_drawn_in_several_pictures(monkeypatch):
    calls = drawn(monkeypatch, "interpolation_curves")
    names = list("abcdef")
    pairs = [PairDiagnosis(Path(), Path(), 1, True, 0.5, line(), None, None)] * 15
    figures = dict(diagnose_figures._pair_figures(Diagnosis([], pairs, DiagnoseOptions()), names))
    assert list(figures) == ["cka", "interpolation_1", "interpolation_2"]
    shown = [title for (some,) in calls["interpolation_curves"] for title in some]
    assert shown == [f"{a} – {b}" for a, b in combinations(names, 2)]


def test_runs_with_one_name_are_told_apart(tmp_path):
    folders = [tmp_path / "x" / "run", tmp_path / "y" / "run", tmp_path / "z", tmp_path / "z 1", tmp_path / "z_1"]
    for folder, seed in zip(folders[:3], (0, 0, 0), strict=True):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump({"delivery": "sls", "seed": seed}))
    assert run_names(folders) == [
        "sls, seed 0, run, 1",
        "sls, seed 0, run, 2",
        "sls, seed 0, z",
        "z 1, z 1, 4",
        "z_1, z_1, 5",
    ]
    assert run_names(folders[:1]) == ["sls, seed 0"]
