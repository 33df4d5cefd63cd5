"""The pictures: what is plotted equals numbers worked out by hand, and is saved whole."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from matplotlib.colors import to_rgb
from scipy.stats import spearmanr

from hf_softlabel import VotesError
from hf_softlabel.cli import main
from hf_softlabel.figures import (
    Source,
    distribution_bars,
    entropy_histograms,
    entropy_scatter,
    read_source,
    reliability_diagram,
    save,
    validation_curves,
)
from hf_softlabel.figures.style import LOOKS
from hf_softlabel.metrics import smooth_ece


def made(seed: int = 0, n: int = 200, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and votes (n, classes) that have to do with each other."""
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(classes, 0.6), n)
    return q, rng.multinomial(7, q)


def write_run(path: Path, votes, logits, label=None, history=(), config=None) -> Path:
    path.mkdir()
    label = np.full(len(votes), -1) if label is None else label
    columns = {"example_id": np.arange(len(votes)), "logits": list(logits), "votes": list(votes), "label": label}
    pq.write_table(pa.table(columns), path / "predictions.parquet")
    (path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    if config:
        (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def every_figure(tmp_path: Path) -> dict[str, matplotlib.figure.Figure]:
    q, votes = made()
    lines = [{"step": e, "epoch": float(e), "soft_nll": 1 / e} for e in (1, 2, 3)]
    run = write_run(tmp_path / "run", votes, np.log(q), history=lines)
    return {
        "binned": reliability_diagram(("soft", q, votes), run),
        "smooth": reliability_diagram(("soft", q, votes), run, smooth=True),
        "scatter": entropy_scatter(run),
        "histograms": entropy_histograms({"one": votes, "two": run}),
        "bars": distribution_bars(votes, {"soft": q, "run": run}, ["a", "b", "c"]),
        # The longest legend that there is.
        "curves": validation_curves(dict.fromkeys(LOOKS, run)),
    }


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_figure_is_saved_whole_as_png_and_as_pdf_with_truetype_fonts(tmp_path):
    for name, figure in every_figure(tmp_path).items():
        png, pdf = save(figure, tmp_path / "new" / f"{name}.v1")
        assert (png.name, pdf.name) == (f"{name}.v1.png", f"{name}.v1.pdf")
        pixels = np.asarray(PIL.Image.open(png).convert("RGB")).astype(int)
        assert min(pixels.shape[:2]) > 500 and PIL.Image.open(png).info["dpi"][0] > 149
        # Ink, and a margin of white: nothing is cut off at the edges.
        assert 0.005 < (pixels.min(-1) < 250).mean() < 0.6
        for edge in (pixels[:4], pixels[-4:], pixels[:, :4], pixels[:, -4:]):
            assert (edge == 255).all(), name
        content = pdf.read_bytes()
        assert content.startswith(b"%PDF") and b"/FontFile2" in content and b"/Type3" not in content
        assert b"CreationDate" not in content  # the same figure is the same file
    assert not list((tmp_path / "new").glob("*.part"))


def test_no_matplotlib_state_is_changed_and_the_users_does_not_leak_in(tmp_path):
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        figures = every_figure(tmp_path)
        save(figures["bars"], tmp_path / "bars")
        assert dict(matplotlib.rcParams) == before
    for figure in figures.values():
        for ax in figure.axes:
            assert ax.get_facecolor() == (1, 1, 1, 1) and ax.xaxis.label.get_fontsize() <= 10
            assert {label.get_fontsize() for label in ax.get_xticklabels()} <= {9}


def test_neither_pyplot_nor_matplotlib_at_import_is_needed():
    first = "import sys, hf_softlabel; assert 'matplotlib' not in sys.modules"
    then = "import hf_softlabel.figures; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{first}\n{then}"], check=True)


def test_a_run_is_named_by_its_delivery_and_seed_and_else_by_its_folder(tmp_path):
    q, votes = made(n=5)
    one = write_run(tmp_path / "one", votes, np.log(q), np.arange(5) % 3, config={"delivery": "sls", "seed": 4})
    two = write_run(tmp_path / "two", votes, np.log(q))
    name, predictions, people, from_logits, label = read_source(str(one))
    assert name == "sls, seed 4" and from_logits and label.tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_allclose(predictions, np.log(q))
    np.testing.assert_array_equal(people, votes)
    assert read_source(two).name == "two" and read_source(two).label is None
    assert read_source(Source("x", q, votes)) == read_source(("x", q, votes))
    three = write_run(tmp_path / "three", votes, np.log(q), config={"delivery": "sls", "seed": 4})
    shown = [text.split(" (")[0] for text in legend(reliability_diagram(one, three, two))]
    assert shown == ["sls, seed 4, one", "sls, seed 4, three", "two"]


def test_what_cannot_be_drawn_is_refused_with_what_is_missing(tmp_path):
    q, votes = made(n=4)
    with pytest.raises(VotesError, match=r"no predictions\.parquet"):
        entropy_scatter(tmp_path)
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "logits": list(q)}), tmp_path / "predictions.parquet")
    with pytest.raises(VotesError, match="no column `votes`"):
        entropy_scatter(tmp_path)
    with pytest.raises(VotesError, match=r"x: predictions .* must have one shape"):
        entropy_scatter(("x", q[:3], votes))
    with pytest.raises(VotesError, match=r"row\(s\) 2 have no votes"):
        entropy_histograms({"x": np.where(np.arange(4)[:, None] == 2, 0, votes)})
    with pytest.raises(VotesError, match=r"row\(s\) 1 are not finite"):
        entropy_scatter(("x", np.where(np.arange(4)[:, None] == 1, np.nan, q), votes))
    with pytest.raises(VotesError, match="from_logits"):
        entropy_scatter(("x", np.log(q), votes))
    with pytest.raises(VotesError, match="no gold labels"):
        reliability_diagram(("x", q, votes), target="hard")
    for nothing in (reliability_diagram, lambda: entropy_histograms({}), lambda: validation_curves({}, [])):
        with pytest.raises(VotesError, match="nothing to draw"):
            nothing()


def four() -> tuple[np.ndarray, np.ndarray]:
    """Confidences .6, .7, .8, .9 in class 0; people give it .5, .9, .6, 1."""
    first = np.array([0.6, 0.7, 0.8, 0.9])
    share = np.array([5, 9, 6, 10])
    return np.stack([first, 1 - first], 1), np.stack([share, 10 - share], 1)


def test_marks_of_the_binned_diagram_are_the_hand_worked_means_with_normal_intervals():
    figure = reliability_diagram(("sls", *four()), bins=2)
    above, below = figure.axes
    np.testing.assert_allclose(above.collections[-1].get_offsets(), [[0.65, 0.7], [0.85, 0.8]])
    # s of (.5, .9) and of (.6, 1) is .2 sqrt 2, and s / sqrt n is .2; no interval goes past 1.
    intervals = [[[0.65, 0.7 - 0.392], [0.65, 1]], [[0.85, 0.8 - 0.392], [0.85, 1]]]
    np.testing.assert_allclose(above.collections[0].get_segments(), intervals)
    assert legend(figure) == ["sls (ECE 0.050)"]
    heights, edges, _ = below.patches[0].get_data()
    assert heights.sum() == pytest.approx(1) and sorted(heights)[-4:] == [0.25] * 4
    assert edges[0] == 0 and edges[-1] == 1


def test_an_interval_is_inside_when_it_can_be_and_absent_for_one_example():
    q = np.array([[0.9, 0.1]] * 3 + [[0.6, 0.4]])
    votes = np.array([[5, 5], [6, 4], [7, 3], [1, 1]])
    above = reliability_diagram(("x", q, votes), bins=4).axes[0]
    marks = above.collections[-1]
    np.testing.assert_allclose(marks.get_offsets(), [[0.6, 0.5], [0.9, 0.6]])
    # Ties share a bin, and three examples have three times the area of one.
    assert marks.get_sizes()[1] == pytest.approx(3 * marks.get_sizes()[0])
    one, three = above.collections[0].get_segments()
    assert not len(one)
    np.testing.assert_allclose(three[:, 1], 0.6 + 1.96 * 0.1 / math.sqrt(3) * np.array([-1, 1]))


def test_the_hard_diagram_compares_with_the_gold_label():
    q, votes = four()
    figure = reliability_diagram(Source("soft", q, votes, label=[0, 1, 0, 0]), target="hard", bins=2)
    np.testing.assert_allclose(figure.axes[0].collections[-1].get_offsets(), [[0.65, 0.5], [0.85, 1]])
    assert legend(figure) == ["soft (ECE 0.150)"]


def test_several_models_have_their_own_colour_and_mark_in_one_diagram():
    q, votes = four()
    above = reliability_diagram(("soft", q, votes), ("majority", q[:, ::-1], votes)).axes[0]
    marks = above.collections[1::2]
    assert [tuple(m.get_facecolor()[0][:3]) for m in marks] == [to_rgb(LOOKS[n].colour) for n in ("soft", "majority")]
    assert not np.array_equal(marks[0].get_paths()[0].vertices, marks[1].get_paths()[0].vertices)


@pytest.mark.parametrize("sure", [1.0, 0.9999, [0.6, 0.7, 1.0, 1.0, 1.0]])
def test_a_smooth_curve_of_confidences_up_to_1(sure, tmp_path):
    confidence = np.broadcast_to(sure, 5)
    q = np.stack([confidence, 1 - confidence], 1)
    figure = reliability_diagram(("sure", q, [[3, 1], [4, 0], [1, 3], [4, 0], [2, 2]]), smooth=True)
    figure.savefig(tmp_path / "sure.png")
    curve = max(figure.axes[0].lines, key=lambda line: len(line.get_markevery() or ()))
    assert len(curve.get_markevery()) == 9 and max(curve.get_markevery()) == len(curve.get_xdata()) - 1


def test_the_smooth_curve_is_the_kernels_mean_and_its_band_the_density():
    q, votes = made(n=300, classes=2)
    s = smooth_ece(q, votes)
    figure = reliability_diagram(("soft", q, votes), smooth=True)
    above, below = figure.axes
    assert legend(figure) == [f"soft (smECE {s:.3f})"] and below.patches[0].get_data().values.sum() == pytest.approx(1)
    curve = above.lines[1]
    x, y = curve.get_data()
    c, target = q.max(1), (votes / 7)[np.arange(300), q.argmax(1)]
    # The Gaussian kernel, reflected at 0 and 1.
    images = np.stack([c, -c, 2 - c, c - 2, c + 2])
    weight = np.exp(-np.square((x[:, None, None] - images) / s) / 2).sum(1)
    np.testing.assert_allclose(y, weight @ target / weight.sum(1), atol=1e-4)
    assert c.min() - 0.004 < x[0] < c.min() + 1e-9 and x[-1] > c.max() - 0.002
    vertices = above.collections[0].get_paths()[0].vertices
    place = len(x) // 3
    band = np.ptp(vertices[np.isclose(vertices[:, 0], x[place]), 1])
    density = weight.sum(1)
    assert band == pytest.approx(0.1 * density[place] / density.max(), rel=0.02)


def test_the_scatter_shows_every_example_with_its_entropies():
    votes = np.array([[4, 0], [2, 2], [3, 1]])
    q = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    quarter = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    figure = entropy_scatter(("soft", q, votes))
    ax = figure.axes[0]
    np.testing.assert_allclose(
        ax.collections[0].get_offsets(), [[0, math.log(2)], [math.log(2), quarter], [quarter, 0]]
    )
    assert ax.get_title() == "soft: Spearman's ρ -0.500, 3 examples"
    assert (
        entropy_scatter(("even", np.full((3, 2), 0.5), votes))
        .axes[0]
        .get_title()
        .startswith("even: Spearman's ρ unde")
    )


def test_a_scatter_of_many_examples_counts_them_and_marks_the_medians():
    q, votes = made(n=4000, classes=2)
    people, machine = (-(p * np.log(np.where(p > 0, p, 1))).sum(1) for p in (votes / 7, q))
    figure = entropy_scatter(("soft", q, votes))
    ax = figure.axes[0]
    assert ax.collections[0].get_array().sum() == 4000
    assert f"{spearmanr(people, machine).statistic:.3f}" in ax.get_title()
    x, y = ax.lines[1].get_data()
    # Unanimous votes are the first group, and all of one entropy.
    unanimous = people == 0
    assert unanimous.mean() > 0.2 and x[0] == 0
    assert y[0] == pytest.approx(np.median(machine[unanimous]))
    assert (np.diff(x) > 0).all() and len(x) <= 10


def test_histograms_are_shares_of_normalised_entropy_that_sum_to_one():
    even = np.ones((6, 7), int)  # log 7 / log 7 is 1 + 2e-16 in floating point
    half = np.array([[2, 0, 0, 0]] * 3 + [[1, 1, 0, 0]])  # entropies 0 and log 2 / log 4 = 0.5
    figure = entropy_histograms({"even": even, "half": half, "all": made()[1], "more": made(1)[1]})
    for ax in figure.axes:
        heights, edges, _ = ax.patches[0].get_data()
        assert heights.sum() == pytest.approx(1) and (edges[0], edges[-1]) == (0, 1)
        assert ax.get_xlim() == (0, 1) and ax.get_ylim() == figure.axes[0].get_ylim()
    assert figure.axes[0].patches[0].get_data().values[-1] == 1
    heights = figure.axes[1].patches[0].get_data().values
    assert heights[0] == 0.75 and heights[10] == 0.25
    assert figure.axes[1].lines[0].get_xdata()[0] == pytest.approx(0.125)
    assert figure.axes[1].get_title() == "half\nmean 0.12, unanimous 75%\n4 examples, 4 classes"


def test_bars_are_the_distributions_with_each_models_kl():
    votes = np.array([[9, 1], [5, 5], [10, 0]])
    q = np.array([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]])
    figure = distribution_bars(votes, {"soft": q, "majority": q[:, ::-1]}, ["no", "yes"], [1, 2], ["first", "second"])
    heights = [[bar.get_height() for bar in group] for group in figure.axes[0].containers]
    np.testing.assert_allclose(heights, [[0.5, 0.5], [0.25, 0.75], [0.75, 0.25]])
    kl = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    titles = [ax.get_title().replace("\u00a0", " ") for ax in figure.axes]
    assert titles[0] == f"first\nKL: soft {kl:.2f}, majority {kl:.2f}" and "KL: soft 0.14" in titles[0]
    assert titles[1] == f"second\nKL: soft {-math.log(0.9):.2f}, majority {-math.log(0.1):.2f}"
    assert legend(figure) == ["annotators", "soft", "majority"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["no", "yes"]
    assert [group[0].get_hatch() for group in figure.axes[0].containers] == ["", "//", "xx"]


def test_the_most_disagreed_on_examples_are_shown_unless_others_are_chosen():
    votes = np.array([[9, 1], [5, 5], [10, 0], [6, 4], [8, 2], [4, 6]])
    titles = [ax.get_title().split("\n")[0] for ax in distribution_bars(votes, {}, ["no", "yes"]).axes]
    assert titles == ["example 1", "example 3", "example 5", "example 4"]
    # These entropies are the same but for their last bits: rows come in their own order.
    votes = np.array([[1, 3, 6], [1, 6, 3], [6, 1, 3], [3, 1, 6]])
    titles = [ax.get_title() for ax in distribution_bars(votes, {}, ["a", "b", "c"]).axes]
    assert titles == ["example 0", "example 1", "example 2", "example 3"]


def test_of_many_classes_those_with_mass_are_shown_and_the_rest_is_told():
    p = np.zeros((1, 30))
    p[0, [2, 20]] = 0.7, 0.3
    q = np.full((1, 30), 0.002)
    q[0, [2, 5]] = 0.5, 1 - 0.5 - 28 * 0.002
    ax = distribution_bars(p, {"soft": q}, [str(k) for k in range(30)]).axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "5", "20"]
    # 27 classes of .002 each.
    assert ax.get_xlabel() == "3 of 30 classes; the others together: at most 5.4%"
    even = distribution_bars(np.ones((1, 30)), {}, [str(k) for k in range(30)]).axes[0]
    assert even.get_xlabel() == "12 of 30 classes; the others together: at most 60.0%"


def test_bars_of_runs_are_of_the_same_examples(tmp_path):
    q, votes = made(n=6)
    one = write_run(tmp_path / "one", votes, np.log(q))
    other = write_run(tmp_path / "other", votes[::-1], np.log(q))
    names = ["a", "b", "c"]
    bars = distribution_bars(one, {"sls": one}, names, [3]).axes[0].containers[1]
    np.testing.assert_allclose([bar.get_height() for bar in bars], q[3])
    with pytest.raises(VotesError, match="other examples"):
        distribution_bars(votes, {"sls": other}, names)
    with pytest.raises(VotesError, match="one shape"):
        distribution_bars(votes, {"sls": q[:2]}, names)
    with pytest.raises(VotesError, match="2 class names"):
        distribution_bars(votes, {"sls": q}, names[:2])
    with pytest.raises(VotesError, match="1 titles"):
        distribution_bars(votes, {"sls": q}, names, [0, 1], ["one"])


def test_curves_are_the_history_with_its_mean_and_best_epoch(tmp_path):
    def run(name: str, losses: list, accuracies: list) -> Path:
        lines = [
            {"step": 10 * e, "epoch": float(e), "soft_nll": loss, "accuracy": accuracy}
            for e, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), 1)
        ]
        return write_run(tmp_path / name, *reversed(made(n=2)), history=lines)

    one = run("one", [1.0, 0.5, 0.7], [0.5, 0.6, 0.9])
    two = run("two", [0.8, 0.6, 0.2, 0.1], [0.1, 0.2, None, 0.4])
    figure = validation_curves({"sls": [one, two], "soft": str(one)}, ["soft_nll", "accuracy"])
    lines = figure.axes[0].lines
    np.testing.assert_array_equal(lines[0].get_data(), [[1, 2, 3], [1, 0.5, 0.7]])
    np.testing.assert_array_equal(lines[1].get_data(), [[1, 2, 3, 4], [0.8, 0.6, 0.2, 0.1]])
    # Only at the epochs that both have: else the mean would jump where one run ends.
    np.testing.assert_allclose(lines[2].get_data(), [[1, 2, 3], [0.9, 0.55, 0.45]])
    assert lines[2].get_linewidth() > 2 * lines[0].get_linewidth()
    np.testing.assert_allclose(np.ravel(lines[3].get_data()), [3, 0.45])
    # The one run of `soft` is its own mean.
    np.testing.assert_allclose(lines[4].get_data(), [[1, 2, 3], [1, 0.5, 0.7]])
    np.testing.assert_allclose(np.ravel(lines[5].get_data()), [2, 0.5])
    # Accuracy is best where it is largest, and a null is a gap.
    lines = figure.axes[1].lines
    np.testing.assert_allclose(lines[2].get_data()[1], [0.3, 0.4, np.nan])
    np.testing.assert_allclose(np.ravel(lines[3].get_data()), [2, 0.4])
    assert lines[3].get_marker() == LOOKS["sls"].marker
    assert legend(figure) == ["sls (2 runs)", "soft (1 run)"]


def test_a_history_without_the_metric_is_refused(tmp_path):
    line = '{"step": 1, "epoch": 1.0, "kl": 0.2, "accuracy": 1}\n'
    for text, message in (
        (None, "no history.jsonl"),
        ("", "eval_strategy"),
        (line, "'soft_nll'. It has: kl, accuracy"),
    ):
        if text is not None:
            (tmp_path / "history.jsonl").write_text(text)
        with pytest.raises(VotesError, match=message):
            validation_curves({"soft": tmp_path})


def test_a_real_run_directory_gives_every_figure(tmp_path):
    recipe = Path(__file__).parents[1] / "recipes" / "synthetic" / "text.yaml"
    quick = ["--num_train_epochs", "2", "--train_size", "64", "--disable_tqdm", "true"]
    run = tmp_path / "run"
    assert main(["train", str(recipe), "--output_dir", str(run), *quick]) == 0
    metrics = json.loads((run / "metrics.json").read_text())
    assert f"{metrics['entropy_correlation']:.3f}" in entropy_scatter(run).axes[0].get_title()
    for smooth in (False, True):
        assert legend(reliability_diagram(run, target="hard", smooth=smooth))[0].startswith("multipass, seed 0 (")
    distribution_bars(run, {"multipass": run}, ["negative", "neutral", "positive"])
    entropy_histograms({"synthetic": run})
    line = validation_curves({"multipass": run}).axes[0].lines[0]
    assert line.get_ydata().min() == pytest.approx(metrics["soft_nll"])
