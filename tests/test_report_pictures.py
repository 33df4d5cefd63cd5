"""A report's figures, from run directories: each is there only with its runs, and shows their numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from hf_softlabel.data.votes import subsampled_votes
from hf_softlabel.experiments import published
from hf_softlabel.experiments.dataset_pictures import held_out
from hf_softlabel.experiments.pictures import POOLED, report_pictures, setting_pictures
from hf_softlabel.experiments.runs import find_runs
from hf_softlabel.experiments.setting import Setting, settings_of
from hf_softlabel.figures.style import LOOKS
from hf_softlabel.metrics import entropy, js_distance, smooth_ece, soft_nll

BASINS, EPISTEMIC = published.BASINS, published.EPISTEMIC
CLASSES = ["cat", "dog", "frog"]
N = 60
SD = 2**0.5  # of two values that differ by 2


def write_run(
    root: Path,
    delivery: str,
    seed: int,
    k: int | None = None,
    every: int = 1,
    metrics: dict | None = None,
    diagnostics: dict | None = None,
    history: tuple = (),
    dataset: str = "cifar10h",
    gold: bool = True,
    train: bool = True,
) -> Path:
    """A finished run, with predictions that have to do with its votes; seeds hold out examples 10 apart."""
    folder = root / f"{dataset}-{delivery}-{k}-{every}-{seed}"
    folder.mkdir(parents=True)
    config = {"delivery": delivery, "dataset": dataset, "model": "resnet18", "seed": seed, "num_train_epochs": 2}
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "votes_per_example": k, "resample_every": every}))
    scores = {"soft_nll": 0.5 + seed, "votes_fingerprint": f"a-{seed}", **(metrics or {})}
    (folder / "metrics.json").write_text(json.dumps(scores))
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    if diagnostics is not None:
        (folder / "diagnostics.json").write_text(json.dumps(diagnostics))
    (folder / "model").mkdir()
    names = {str(i): name for i, name in enumerate(CLASSES)}
    (folder / "model" / "config.json").write_text(json.dumps({"id2label": names}))
    ids = np.arange(N) + 10 * seed
    votes = votes_of(ids)
    columns = {"example_id": ids, "logits": list(logits_of(ids, delivery, seed)), "votes": list(votes)}
    columns["label"] = votes.argmax(1) if gold else np.full(N, -1)
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    if k is not None and train:
        ids = ids + 1000
        sparse = subsampled_votes(votes_of(ids), ids, k, seed)
        columns = {"example_id": ids, "votes": list(sparse), "full_votes": list(votes_of(ids))}
        columns["logits"] = list(logits_of(ids, delivery, seed))
        pq.write_table(pa.table(columns), folder / "train_predictions.parquet")
    (folder / "DONE").touch()
    return folder


def votes_of(ids: np.ndarray) -> np.ndarray:
    return np.array(
        [np.random.default_rng(i).multinomial(20, np.random.default_rng(i).dirichlet([0.5] * 3)) for i in ids]
    )


def logits_of(ids: np.ndarray, delivery: str, seed: int) -> np.ndarray:
    noise = [np.random.default_rng([int(i), seed, len(delivery)]).normal(size=3) for i in ids]
    return np.log(votes_of(ids) + 1) + np.array(noise)


def write_pairs(root: Path, pairs: list[tuple[Path, Path, dict]]) -> None:
    (root / "diagnostics").mkdir()
    results = [{"first": str(one), "second": str(two), "examples": 50, **found} for one, two, found in pairs]
    (root / "diagnostics" / "diagnostics.json").write_text(json.dumps({"pairs": results}))


def settings(root: Path) -> list[Setting]:
    found = find_runs(root)
    made, notes = settings_of(found.runs, found.pairs)
    assert not notes
    return made


def pictures(root: Path) -> dict:
    (setting,) = settings(root)
    made = setting_pictures(setting)
    assert len({picture.key for picture in made}) == len(made)
    assert all(re.fullmatch(r"[a-z0-9-]+", picture.key) for picture in made)
    return {picture.key: picture for picture in made}


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def line_of(ax, name: str, hollow: bool = False):
    """The line through a delivery's means."""
    face = "white" if hollow else LOOKS[name].colour
    found = [x for x in ax.lines if x.get_marker() == LOOKS[name].marker and x.get_markerfacecolor() == face]
    return found[0]


def test_runs_with_too_little_for_a_figure_give_none(tmp_path):
    write_run(tmp_path, "posterior_sls", 0)
    assert pictures(tmp_path) == {}
    (setting,) = settings(tmp_path)
    # The votes are there, but not soft and majority labels.
    assert [picture.key for picture in report_pictures([setting])] == ["annotator-entropy"]
    assert report_pictures([]) == []


def test_the_sweep_shows_means_and_sds_by_votes_per_example_beside_the_papers(tmp_path):
    for k, nll in ((5, 2.0), (10, 4.0)):
        for seed in (0, 1):
            scores = {"soft_nll": nll + 2 * seed, "accuracy": 0.5 + 0.1 * seed, "entropy_correlation": 0.2}
            write_run(tmp_path, "soft", seed, k, metrics=scores, train=False)
    write_run(tmp_path, "multipass", 0, 5, metrics={"soft_nll": 1.5, "accuracy": 0.5, "entropy_correlation": None})
    made = pictures(tmp_path)
    assert set(made) == {"annotator-count-sweep"}  # no sparse-target diagnostic without training predictions
    picture = made["annotator-count-sweep"]
    assert picture.source == f"{BASINS}, Figure 1" and "means over 1 to 2 seeds" in picture.caption
    ours, paper, accuracy, correlation = picture.figure.axes
    assert line_of(ours, "soft").get_ydata().tolist() == [3, 5]
    np.testing.assert_allclose(np.diff(ours.collections[0].get_segments()[0][:, 1]), 2 * SD)
    assert line_of(ours, "multipass").get_ydata().tolist() == [1.5]
    assert line_of(accuracy, "soft").get_ydata() == pytest.approx([0.55, 0.55])
    assert np.isnan(line_of(correlation, "multipass").get_ydata()).all()  # undefined
    assert line_of(paper, "soft", hollow=True).get_ydata().tolist() == [0.5860, 0.5785]
    assert line_of(paper, "multipass", hollow=True).get_ydata().tolist() == [0.5649]  # only where we have runs
    assert [ax.get_ylabel() for ax in picture.figure.axes] == [
        "soft NLL",
        "soft NLL, the paper",
        "accuracy",
        "entropy correlation",
    ]


def test_on_other_data_nothing_of_the_paper_is_drawn(tmp_path):
    for seed in (0, 1):
        for delivery in ("soft", "sls", "majority"):
            hessian = {"lambda_max": 1.0, "trace": 2.0, "high_disagreement": {"lambda_max": 3.0, "trace": 4.0}}
            found = {"hessian": hessian, "gradient_variance": {"entropy_correlation": 0.9}}
            write_run(tmp_path, delivery, seed, diagnostics=found, dataset="synthetic")
            write_run(tmp_path, delivery, seed, 5, dataset="synthetic")
        write_run(tmp_path, "sls", seed, None, 5, dataset="synthetic")
    made = pictures(tmp_path)
    assert {"annotator-count-sweep", "resampling", "hessian", "gradient-variance", "sparse-target-js"} < set(made)
    for picture in made.values():
        texts = [*legend(picture.figure), *(ax.get_ylabel() for ax in picture.figure.axes)]
        assert not any("paper" in text for text in texts), picture.key
        assert "paper" not in picture.caption, picture.key


def test_the_sparse_target_diagnostic_shows_the_gain_over_soft_labels_by_distance(tmp_path):
    for seed in (0, 1):
        for delivery in ("soft", "sls"):
            write_run(tmp_path, delivery, seed, 5)
    made = pictures(tmp_path)
    numbers = {key: picture.source for key, picture in made.items() if key.startswith("sparse")}
    assert numbers == {
        "sparse-target-js": f"{BASINS}, Figure 2",
        "sparse-target-l1": f"{BASINS}, Figure 5",
        "sparse-target-js-high": f"{BASINS}, Figure 6",
    }
    picture = made["sparse-target-l1"]
    (ax,) = picture.figure.axes
    x, y = line_of(ax, "sls").get_data()
    # By hand: all examples of a seed, their L1 distances and gains.
    distances, gains = [], []
    for seed in (0, 1):
        ids = np.arange(N) + 10 * seed + 1000
        full, sparse = votes_of(ids) / 20, subsampled_votes(votes_of(ids), ids, 5, seed) / 5
        losses = [soft_nll(logits_of(ids, name, seed), full, True, per_example=True) for name in ("soft", "sls")]
        distances.append(np.abs(full - sparse).sum(1))
        gains.append(losses[0] - losses[1])
    # Five bins of the targets that are wrong, parted at all seeds' quantiles, and one of those that are not.
    every = np.concatenate(distances)
    edges = np.quantile(every[every > 0], [0.2, 0.4, 0.6, 0.8])
    last = [gain[d > edges[-1]].mean() for d, gain in zip(distances, gains, strict=True)]
    assert y[-1] == pytest.approx(np.mean(last)) and x[-1] == pytest.approx(every[every > edges[-1]].mean())
    assert len(x) == 6 and x[0] == 0
    assert y[0] == pytest.approx(np.mean([gain[d == 0].mean() for d, gain in zip(distances, gains, strict=True)]))
    low, high = ax.collections[0].get_segments()[-1][:, 1]
    assert high - low == pytest.approx(2 * np.std(last, ddof=1))
    assert legend(picture.figure) == ["sls", "thin: eval split (placebo)"]
    assert "the paper: 0.05 to 0.16" in made["sparse-target-js"].caption and "means over 2 seeds" in picture.caption
    # The tenth of each seed's examples with the largest entropy, and those that have the same as the last of them.
    js, gain = [], []
    for seed in (0, 1):
        ids = np.arange(N) + 10 * seed + 1000
        full, sparse = votes_of(ids) / 20, subsampled_votes(votes_of(ids), ids, 5, seed) / 5
        h = entropy(full).round(12)
        rows = h >= np.sort(h)[-N // 10]
        js.append(js_distance(sparse, full, per_example=True)[rows])
        gain.append(gains[seed][rows])
    x, y = line_of(made["sparse-target-js-high"].figure.axes[0], "sls").get_data()
    edge = np.quantile(np.concatenate(js), 0.8)
    last = [g[d > edge].mean() for d, g in zip(js, gain, strict=True) if (d > edge).any()]
    assert x[-1] == pytest.approx(np.mean([d for some in js for d in some if d > edge]))
    assert y[-1] == pytest.approx(np.mean(last))


def test_reliability_pools_the_predictions_of_all_seeds(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "majority", seed)
        write_run(tmp_path, "mixup", seed)
    picture = pictures(tmp_path)["reliability"]
    ids = [np.arange(N) + 10 * seed for seed in (0, 1)]
    logits = np.concatenate([logits_of(some, "majority", seed) for seed, some in enumerate(ids)])
    labels = votes_of(np.concatenate(ids)).argmax(1)
    expected = smooth_ece(logits, labels, True, "hard")
    assert legend(picture.figure) == [f"majority (smECE {expected:.3f})"]  # mixup is not one of the figure's
    assert "(2 seeds) are pooled" in picture.caption and "0.082 (majority)" in picture.caption
    assert POOLED >= 10_000


def test_without_gold_labels_reliability_is_of_the_annotators_share(tmp_path):
    write_run(tmp_path, "soft", 0, gold=False)
    picture = pictures(tmp_path)["reliability"]
    expected = smooth_ece(logits_of(np.arange(N), "soft", 0), votes_of(np.arange(N)), True)
    assert legend(picture.figure) == [f"soft (smECE {expected:.3f})"]
    assert "annotators' share" in picture.caption and "annotators" in picture.figure.axes[0].get_ylabel()


def test_the_resampling_probe_shows_how_long_labels_are_held(tmp_path):
    for every, nll in ((1, 1.0), (5, 3.0)):
        for seed in (0, 1):
            write_run(tmp_path, "sls", seed, None, every, {"soft_nll": nll + 2 * seed})
    ours, paper = pictures(tmp_path)["resampling"].figure.axes
    np.testing.assert_allclose(line_of(ours, "sls").get_data(), [[1, 5], [2, 4]])
    np.testing.assert_allclose(line_of(paper, "sls", hollow=True).get_data(), [[1, 5], [0.5027, 0.5458]])
    (setting,) = settings(tmp_path)
    only = Setting("one", [run for run in setting.runs if run.resample_every == 1])
    assert "resampling" not in {picture.key for picture in setting_pictures(only)}


def test_training_dynamics_are_means_of_all_seeds_without_the_control_that_must_fail(tmp_path):
    for seed in (0, 1):
        lines = [{"epoch": float(e), "soft_nll": loss + 2 * seed} for e, loss in ((1, 3.0), (2, 1.0), (3, 2.0))]
        write_run(tmp_path, "soft", seed, history=tuple(lines))
        write_run(tmp_path, "shuffled_sls", seed, history=tuple(lines))
    write_run(tmp_path, "sls", 0, history=({"epoch": 1.0, "soft_nll": 1.0},))  # no curve
    picture = pictures(tmp_path)["training-dynamics"]
    (ax,) = picture.figure.axes
    np.testing.assert_allclose(ax.lines[0].get_data(), [[1, 2, 3], [4, 2, 3]])
    assert legend(picture.figure) == ["soft (2 runs)"]
    assert "Without Shuffled SLS" in picture.caption and "means over 2 seeds" in picture.caption
    assert picture.source == f"{BASINS}, Figure 8; {EPISTEMIC}, Figure 4"


def test_bars_of_scores_are_means_over_seeds_with_the_papers_marks(tmp_path):
    for seed, value in ((0, 10.0), (1, 12.0)):
        high = {"lambda_max": 3 * value, "trace": 4 * value}
        found = {
            "hessian": {"lambda_max": value, "trace": 2 * value, "high_disagreement": high},
            "gradient_variance": {"entropy_correlation": value / 20},
        }
        scores = {"brier_miscalibration": value / 100, "brier_discrimination": value}
        write_run(tmp_path, "sls", seed, metrics=scores, diagnostics=found)
    write_run(tmp_path, "mixup", 0)
    made = pictures(tmp_path)
    panels = {ax.get_xlabel(): ax for ax in made["hessian"].figure.axes}
    means = {label: [bar.get_width() for bar in ax.patches] for label, ax in panels.items()}
    assert means == {
        "largest eigenvalue, eval split": [11],
        "trace, eval split": [22],
        "largest eigenvalue, high slice": [33],
        "trace, high slice": [44],
    }
    papers = [line.get_xdata()[0] for ax in panels.values() for line in ax.lines if line.get_marker() == "D"]
    assert papers == [104.9, 1633.9, 314.0, 3496.8]

    def mark(key: str, panel: int = 0):
        return line_of(made[key].figure.axes[panel], "sls").get_xdata()[0]

    assert mark("brier-decomposition") == pytest.approx(0.11) and mark("brier-decomposition", 1) == 11
    assert mark("gradient-variance") == pytest.approx(0.55)
    (paper,) = [x for x in made["gradient-variance"].figure.axes[0].lines if x.get_marker() == "D"]
    assert paper.get_xdata()[0] == 0.939
    assert made["hessian"].source == f"{BASINS}, Table 4" and "means over 2 seeds" in made["hessian"].caption


def test_pairs_are_within_a_delivery_across_seeds_or_across_deliveries_of_a_seed(tmp_path):
    runs = {(d, s): write_run(tmp_path, d, s) for d in ("soft", "sls") for s in (0, 1, 2)}
    sparse = [write_run(tmp_path, "sls", s, 5) for s in (0, 1)]

    def found(value: float) -> dict:
        return {"cka": value, "gradcam": {"correlation": value / 2, "high_disagreement": value / 4}}

    write_pairs(
        tmp_path,
        [
            (runs["soft", 0], runs["soft", 1], found(0.8)),
            (runs["soft", 0], runs["soft", 2], found(0.6)),
            (runs["soft", 0], runs["sls", 0], found(0.5)),
            (runs["soft", 0], runs["sls", 1], found(0.1)),  # neither
            (sparse[0], sparse[1], found(0.2)),  # not of all votes
            (runs["sls", 1], runs["sls", 2], {"cka": None}),  # not measured
        ],
    )
    made = pictures(tmp_path)
    (ax,) = made["cka"].figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["soft", "soft / sls, same seed"]
    assert line_of(ax, "soft").get_xdata()[0] == pytest.approx(0.7)
    values = [x.get_xdata().tolist() for x in ax.lines if x.get_marker() == "o" and x.get_color() == "black"]
    assert [0.8, 0.6] in values and [0.5] in values and not any(0.1 in some or 0.2 in some for some in values)
    (paper,) = [x for x in ax.lines if x.get_marker() == "D" and x.get_markerfacecolor() == "white"]
    assert paper.get_xdata()[0] == 0.887 and paper.get_ydata()[0] == 0
    whole, high = made["gradcam"].figure.axes
    assert line_of(whole, "soft").get_xdata()[0] == pytest.approx(0.35)
    assert line_of(high, "soft").get_xdata()[0] == pytest.approx(0.175)
    assert "means over 1 to 2 pairs" in made["cka"].caption and "loss-barrier" not in made


def test_the_loss_barrier_goes_from_sls_to_soft_labels_however_the_pair_was_given(tmp_path):
    runs = {(d, s): write_run(tmp_path, d, s) for d in ("soft", "sls") for s in (0, 1, 2)}

    def line(losses: list[float], barrier: float, alphas: tuple = (0.0, 0.5, 1.0)) -> dict:
        return {"barrier": {"alphas": list(alphas), "losses": losses, "barrier": barrier, "reestimated_losses": None}}

    write_pairs(
        tmp_path,
        [
            (runs["sls", 0], runs["soft", 0], line([1.0, 5.0, 2.0], 3.5)),
            (runs["soft", 1], runs["sls", 1], line([4.0, 9.0, 3.0], 5.5)),
            (runs["sls", 2], runs["soft", 2], line([1.0, 9.0], 8.0, (0.0, 1.0))),  # other places
            (runs["sls", 0], runs["sls", 1], line([7.0, 7.0, 7.0], 0.0)),
        ],
    )
    picture = pictures(tmp_path)["loss-barrier"]
    first, second, mean, _ = picture.figure.axes[0].lines
    assert [list(x.get_ydata()) for x in (first, second, mean)] == [[1, 5, 2], [3, 9, 4], [2, 7, 3]]
    assert "2 pairs" in picture.caption and "4.50 (batch norm interpolated) (the paper: 2.05)" in picture.caption
    assert picture.figure.axes[0].get_xlabel() == "α, from sls to soft"


def test_a_loss_barrier_that_is_not_finite_is_said_to_be_so(tmp_path):
    one, two = (write_run(tmp_path, delivery, 0) for delivery in ("sls", "soft"))
    losses = {"alphas": [0.0, 0.5, 1.0], "losses": [1.0, None, 2.0], "barrier": None, "reestimated_losses": None}
    write_pairs(tmp_path, [(one, two, {"barrier": losses})])
    picture = pictures(tmp_path)["loss-barrier"]
    np.testing.assert_array_equal(picture.figure.axes[0].lines[0].get_ydata(), [1, np.nan, 2])
    assert "chord: nan (batch norm interpolated)" in picture.caption


def test_predictions_on_an_example_are_averaged_over_the_seeds_that_held_it_out(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "soft", seed)
    (setting,) = settings(tmp_path)
    found = held_out(setting.runs)
    assert found.ids.tolist() == list(range(N + 10)) and found.runs.tolist() == [1] * 10 + [2] * (N - 10) + [1] * 10
    np.testing.assert_array_equal(found.votes, votes_of(found.ids))
    q = [np.exp(logits_of(np.array([i]), "soft", seed)) for i, seed in ((15, 0), (15, 1), (65, 1))]
    q = [x[0] / x.sum() for x in q]
    np.testing.assert_allclose(found.mean[15], (q[0] + q[1]) / 2)
    np.testing.assert_allclose(found.mean[65], q[2])


def test_the_most_ambiguous_examples_stand_beside_soft_and_majority_labels(tmp_path):
    for seed in (0, 1):
        for delivery in ("soft", "majority"):
            write_run(tmp_path, delivery, seed)
    made = pictures(tmp_path)
    picture = made["examples-ambiguous"]
    ids = np.arange(N + 10)
    h = entropy(votes_of(ids) / 20)
    shown = [int(re.match(r"example (\d+), entropy", ax.get_title())[1]) for ax in picture.figure.axes]
    assert len(shown) == 4 and sorted(h[shown]) == pytest.approx(sorted(h)[-4:])
    assert legend(picture.figure) == ["annotators", "soft", "majority"]
    people = [bar.get_height() for bar in picture.figure.axes[0].containers[0]]
    np.testing.assert_allclose(people, votes_of(np.array(shown[:1]))[0] / 20)
    assert [label.get_text() for label in picture.figure.axes[0].get_xticklabels()] == CLASSES
    ranged = [int(re.match(r"example (\d+), entropy", ax.get_title())[1]) for ax in made["examples-range"].figure.axes]
    shares = [(h <= h[i] + 1e-12).mean() for i in ranged]
    assert shares == sorted(shares) and shares[0] >= 0.5 and shares[-1] >= 0.95
    assert "1 to 2 seeds" in picture.caption and made["examples-range"].source == f"{EPISTEMIC}, Figures 1 and 2"


def test_data_sets_are_compared_by_their_entropy_and_by_soft_against_majority_labels(tmp_path):
    for dataset in ("chaosnli", "popquorn"):
        for seed in (0, 1):
            for delivery, kl in (("soft", 0.1), ("majority", 0.5)):
                scores = {"kl": kl + 0.2 * seed, "entropy_correlation": 0.5 - kl}
                write_run(tmp_path, delivery, seed, metrics=scores, dataset=dataset)
    write_run(tmp_path, "soft", 0, dataset="synthetic")
    histograms, compared = report_pictures(settings(tmp_path))
    assert histograms.source == f"{EPISTEMIC}, Figure 3"
    titles = [ax.get_title().split("\n") for ax in histograms.figure.axes]
    assert sorted(title[0] for title in titles) == ["chaosnli", "popquorn", "synthetic"]
    # Each example once, though two seeds held it out.
    assert {title[0]: title[2].split(",")[0] for title in titles}["chaosnli"] == f"{N + 10} examples"
    kl, correlation = compared.figure.axes
    assert [bar.get_height() for bar in kl.patches] == pytest.approx([0.2, 0.6] * 2)
    joined = [list(x.get_ydata()) for x in kl.lines if x.get_marker() == "o"]
    assert joined[:2] == [pytest.approx([0.1, 0.5]), pytest.approx([0.3, 0.7])] and len(joined) == 4
    assert [bar.get_height() for bar in correlation.patches] == pytest.approx([0.4, 0.0] * 2)
    assert sorted(label.get_text() for label in correlation.get_xticklabels()) == ["chaosnli", "popquorn"]
    assert "32% less KL and 61% more correlation" in compared.caption


def test_nothing_of_matplotlibs_state_is_changed_and_pyplot_is_not_needed(tmp_path):
    for delivery in ("soft", "majority", "sls"):
        write_run(tmp_path, delivery, 0, history=tuple({"epoch": float(e), "soft_nll": 1.0} for e in (1, 2)))
        write_run(tmp_path, delivery, 0, 5)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        before = dict(matplotlib.rcParams)
        made = [*setting_pictures(settings(tmp_path)[0]), *report_pictures(settings(tmp_path))]
        assert dict(matplotlib.rcParams) == before
    assert len(made) > 8 and all(ax.get_facecolor() == (1, 1, 1, 1) for one in made for ax in one.figure.axes)
    code = "import sys, hf_softlabel.experiments.pictures; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
