"""A report's kinds of drawing: what is drawn equals means and SDs worked out by hand, and no text lies on another."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import matplotlib
import numpy as np
import PIL.Image
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from hf_softlabel import VotesError
from hf_softlabel.figures.bands import band_curves, barrier_lines
from hf_softlabel.figures.examples import example_panels
from hf_softlabel.figures.seeds import paired_bars, seed_bars
from hf_softlabel.figures.style import LOOKS, save
from hf_softlabel.figures.sweep import WIDTH, Gain, gain_panels, seed_lines

DELIVERIES = [name for name in LOOKS if name != "annotators"]
SD = 2**0.5  # of two values that differ by 2


def segments(ax, which: int = 0) -> list[np.ndarray]:
    return [np.asarray(one) for one in ax.collections[which].get_segments()]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def every_figure(names: list[str]) -> dict[str, matplotlib.figure.Figure]:
    """All kinds, of these deliveries, with labels as long as they get."""
    rng = np.random.default_rng(0)
    curve = (np.arange(1, 21.0), 1 + 1 / np.arange(1, 21.0))
    gain = Gain(np.array([0, 0.1, 0.2]), rng.normal(size=(3, 3)), 0.1)
    swept = {name: {k: rng.normal(0.5, 0.01, 5).tolist() for k in (5, 10, 25, 50)} for name in names}
    means = {name: {k: float(np.mean(values)) for k, values in points.items()} for name, points in swept.items()}
    panels = {f"K = {k}": dict.fromkeys(names[:3], gain) for k in (5, 10, 25, 50)}
    scores = {name: rng.normal(3000, 100, 10).tolist() for name in names}
    seeds = {name: {0: 0.5, 1: 0.6} for name in ("soft", "majority")}
    groups = dict.fromkeys((f"cifar10h, resnet18, width 0.25, {e} epochs" for e in (20, 50, 200)), seeds)
    line = {"batch norm interpolated": rng.normal(size=(3, 11))}
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    shown = {"annotators": np.full(10, 0.1), "soft": np.full(10, 0.1), "majority": np.eye(10)[0] * 0.9 + 0.01}
    return {
        "lines": seed_lines({"soft NLL": swept, "accuracy": swept}, "votes per example", {"soft NLL": means}),
        "gains": gain_panels(panels, panels, "JS distance"),
        "one gain": gain_panels({"K = 5": {"sls": gain}}, {}, "JS distance"),
        "bars": seed_bars({f"{x} eigenvalue, high slice": scores for x in "abcd"}, {"a": {}}),
        "dots": seed_bars(
            {"linear CKA": {**scores, f"{names[0]} / {names[1]}, same seed": [3000.0]}}, from_zero=False
        ),
        "pairs": paired_bars({"KL to annotators": groups, "entropy correlation": groups}),
        "curves": band_curves({name: [curve, curve] for name in names}, "eval soft NLL"),
        "barrier": barrier_lines(np.linspace(0, 1, 11), line, ("sls", "soft")),
        "examples": example_panels({f"example {i}, entropy 1.00": shown for i in range(4)}, classes),
    }


def test_a_line_goes_through_the_means_with_sd_bars_and_every_seed_is_a_point():
    figure = seed_lines({"soft NLL": {"soft": {10: [1.0, 3.0], 5: [4.0, 6.0], 20: [7.0]}}}, "votes per example")
    (ax,) = figure.axes
    *points, line = ax.lines[:3] + [next(one for one in ax.lines if len(one.get_xdata()) == 3)]
    np.testing.assert_allclose(line.get_data(), [[5, 10, 20], [5, 2, 7]])
    assert sorted(y for one in points for y in one.get_ydata()) == [1, 3, 4, 6, 7]
    bars = segments(ax)
    np.testing.assert_allclose(bars[0], [[5, 5 - SD], [5, 5 + SD]])
    np.testing.assert_allclose(bars[1], [[10, 2 - SD], [10, 2 + SD]])
    assert not len(bars[2]) or np.isnan(bars[2][:, 1]).all()  # one seed has no SD
    assert ax.get_xscale() == "log" and ax.get_xticks().tolist() == [5, 10, 20]
    assert (ax.get_xlabel(), ax.get_ylabel(), legend(figure)) == ("votes per example", "soft NLL", ["soft"])


def test_lines_stand_beside_each_other_and_an_undefined_seed_leaves_a_gap():
    series = {"soft": {5: [1.0, 1.0], 50: [2.0, np.nan]}, "deterministic_control": {5: [1.0], 50: [2.0]}}
    figure = seed_lines({"soft NLL": series}, "K")
    means = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_linestyle() != "None"]
    first, second = (line.get_xdata() for line in means)
    assert (first < [5, 50]).all() and (second > [5, 50]).all()
    np.testing.assert_allclose(first * second, [25, 2500])
    assert means[0].get_ydata()[0] == 1 and np.isnan(means[0].get_ydata()[1])
    assert legend(figure) == ["soft", "deterministic control"]


def test_a_papers_means_are_hollow_marks_in_a_panel_of_their_own():
    ours = {"soft": {5: [1.0], 10: [1.1]}, "sls": {5: [0.9]}}
    paper = {"soft NLL": {"soft": {10: 0.5, 5: 0.6}}, "accuracy": {}}
    figure = seed_lines({"soft NLL": ours, "accuracy": ours}, "K", paper)
    assert [ax.get_ylabel() for ax in figure.axes] == ["soft NLL", "soft NLL, the paper", "accuracy"]
    (line,) = figure.axes[1].lines
    assert line.get_ydata().tolist() == [0.6, 0.5] and line.get_markerfacecolor() == "white"
    assert line.get_color() == LOOKS["soft"].colour and line.get_marker() == LOOKS["soft"].marker


def test_gains_are_means_over_the_seeds_that_have_the_bin_and_the_placebo_is_thin():
    train = Gain(np.array([0.0, 0.5]), np.array([[0.0, 4.0], [2.0, np.nan]]), 0.125)
    placebo = Gain(np.array([0.1, 0.4]), np.array([[1.0, 3.0]]), np.nan)
    figure = gain_panels({"K = 5": {"sls": train}}, {"K = 5": {"sls": placebo}}, "JS distance")
    (ax,) = figure.axes
    zero, thin, thick = ax.lines[:3]
    assert zero.get_ydata() == [0, 0]
    np.testing.assert_allclose(thin.get_data(), [[0.1, 0.4], [1, 3]])
    np.testing.assert_allclose(thick.get_data(), [[0, 0.5], [1, 4]])
    assert thin.get_linewidth() < 1 < thick.get_linewidth() and thick.get_linestyle() == "-"
    np.testing.assert_allclose(segments(ax)[0], [[0, 1 - SD], [0, 1 + SD]])
    assert ax.get_title().replace("\u00a0", " ") == "K = 5\nρ: sls 0.12"
    assert legend(figure) == ["sls", "thin: eval split (placebo)"]
    title = gain_panels({"K = 5": {"sls": placebo}}, {}, "JS distance").axes[0].get_title()
    assert title.replace("\u00a0", " ").endswith("ρ: sls undefined")


def test_gains_of_other_bins_than_their_distances_are_refused():
    with pytest.raises(VotesError, match="not of 3 bins"):
        gain_panels({"K = 5": {"sls": Gain(np.zeros(3), np.zeros((2, 4)), 0.0)}}, {}, "x")


def test_bars_are_means_with_sd_whiskers_and_the_papers_are_diamonds():
    panels = {"trace": {"soft": [1.0, 3.0], "sls": [5.0]}, "largest": {"soft": [2.0, np.nan]}}
    figure = seed_bars(panels, {"trace": {"soft": 9.0}})
    first, second = figure.axes
    assert [bar.get_width() for bar in first.patches] == [2, 5]
    colours = [bar.get_facecolor()[:3] for bar in first.patches]
    assert colours == [to_rgb(LOOKS[name].colour) for name in ("soft", "sls")]
    np.testing.assert_allclose(segments(first)[0], [[2 - SD, 0], [2 + SD, 0]])
    drawn = [tuple(line.get_xdata()) for line in first.lines]
    assert (1.0, 3.0) in drawn and (5.0,) in drawn and (9.0,) in drawn
    assert [label.get_text() for label in first.get_yticklabels()] == ["soft", "sls"]
    assert first.get_ylim() == (1.5, -0.5)  # the first is above
    assert [text.get_text() for text in second.texts] == [" undefined in 1 of 2"]
    assert np.isnan(second.patches[0].get_width())
    assert legend(figure) == ["mean", "± SD", "each seed", "the paper"]
    assert legend(seed_bars(panels, unit="pair")) == ["mean", "± SD", "each pair"]


def test_marks_instead_of_bars_leave_zero_out_and_points_below_the_mark():
    figure = seed_bars({"linear CKA": {"sls": [0.90, 0.92], "soft": [0.88]}}, from_zero=False)
    (ax,) = figure.axes
    assert not ax.patches and ax.get_xlim()[0] > 0.85
    (mark,) = [line for line in ax.lines if line.get_marker() == LOOKS["sls"].marker]
    assert mark.get_xdata() == pytest.approx(0.91) and mark.get_ydata() == [0]
    (points,) = [line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
    assert (
        points.get_xdata().tolist() == [0.90, 0.92] and ((points.get_ydata() > 0.1) & (points.get_ydata() < 0.5)).all()
    )


def test_paired_bars_join_the_seeds_that_both_methods_have():
    values = {"soft": {0: 1.0, 1: 3.0}, "majority": {0: 4.0, 2: 8.0}}
    figure = paired_bars({"KL": {"one": values, "two": {"soft": {0: 5.0}}}, "accuracy": {"one": values}})
    above, below = figure.axes
    heights = [bar.get_height() for bar in above.patches]
    assert heights[:3] == [2, 6, 5] and np.isnan(heights[3])
    joined = [line for line in above.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in joined] == [[1, 4]]
    left, right = (bar.get_x() + bar.get_width() / 2 for bar in above.patches[:2])
    np.testing.assert_allclose(joined[0].get_xdata(), [left, right])
    assert [label.get_text() for label in below.get_xticklabels()] == ["one", "two"]
    assert legend(figure) == ["soft, mean", "majority, mean", "each seed"]


def test_a_band_is_the_sd_around_the_mean_at_shared_epochs_with_the_best_marked():
    one = (np.array([1.0, 2, 3]), np.array([5.0, 1, 2]))
    two = (np.array([1.0, 2, 3, 4]), np.array([7.0, 3, 0, 9]))
    figure = band_curves({"sls": [one, two], "soft": [one]}, "eval soft NLL")
    (ax,) = figure.axes
    mean, best, mean_best = ax.lines[:3]
    np.testing.assert_allclose(mean.get_data(), [[1, 2, 3], [6, 2, 1]])
    np.testing.assert_allclose(best.get_data(), [[2, 3], [1, 0]])
    np.testing.assert_allclose(np.ravel(mean_best.get_data()), [3, 1])
    vertices = ax.collections[0].get_paths()[0].vertices
    for epoch, low, high in ((1, 6 - SD, 6 + SD), (2, 2 - SD, 2 + SD), (3, 1 - SD, 1 + SD)):
        at = vertices[vertices[:, 0] == epoch, 1]
        assert (at.min(), at.max()) == pytest.approx((low, high))
    assert legend(figure) == ["sls (2 runs)", "soft (1 run)"]
    with pytest.raises(VotesError, match="nothing to draw"):
        band_curves({}, "x")


def test_the_axis_of_curves_is_made_for_what_comes_after_the_first_tenth():
    losses = np.array([100.0, 90, 2, *np.linspace(1.5, 1, 17)])
    (ax,) = band_curves({"soft": [(np.arange(1, 21.0), losses)]}, "loss").axes
    assert 2 <= ax.get_ylim()[1] < 10 and ax.get_ylim()[0] < 1
    (few,) = band_curves({"soft": [(np.arange(1, 5.0), np.array([9.0, 3, 2, 1]))]}, "loss").axes
    assert few.get_ylim()[1] >= 9


def test_curves_that_are_undefined_or_have_no_epoch_in_common_are_left_empty():
    undefined = (np.array([1.0, 2]), np.array([np.nan, np.nan]))
    (ax,) = band_curves({"soft": [undefined]}, "loss").axes
    assert np.isnan(ax.lines[0].get_ydata()).all() and not len(ax.lines[1].get_xdata())
    apart = [(np.array([1.0, 2]), np.array([3.0, 1])), (np.array([1.5]), np.array([2.0]))]
    (ax,) = band_curves({"soft": apart}, "loss").axes
    assert not len(ax.lines[0].get_xdata()) and ax.lines[1].get_ydata().tolist() == [1, 2]


def test_the_line_between_models_is_thin_for_a_seed_and_thick_for_the_mean():
    alphas = np.array([0, 0.5, 1])
    losses = np.array([[1.0, 4, 2], [3.0, 8, 2]])
    figure = barrier_lines(alphas, {"batch norm interpolated": losses}, ("sls", "soft"))
    (ax,) = figure.axes
    first, second, mean, chord = ax.lines
    np.testing.assert_array_equal([first.get_ydata(), second.get_ydata()], losses)
    np.testing.assert_array_equal(mean.get_data(), [alphas, [2, 6, 2]])
    np.testing.assert_array_equal(chord.get_data(), [[0, 1], [2, 2]])
    assert first.get_linewidth() < 1 < mean.get_linewidth() and ax.get_xlabel() == "α, from sls to soft"
    with pytest.raises(VotesError, match="are not curves"):
        barrier_lines(alphas, {"x": losses[:, :2]}, ("sls", "soft"))


def test_example_panels_are_two_beside_each_other():
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    figure = example_panels({f"example {i}": {"annotators": p, "soft": q} for i in range(3)}, ["no", "yes"])
    assert [ax.get_subplotspec().colspan.start for ax in figure.axes] == [0, 1, 0]
    heights = [[bar.get_height() for bar in group] for group in figure.axes[2].containers]
    np.testing.assert_allclose(heights, [p, q])
    kl = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert figure.axes[0].get_title().replace("\u00a0", " ") == f"example 0\nKL: soft {kl:.2f}"


def drawn_texts(figure) -> list[tuple[str, Bbox]]:
    """Every text that does not slant, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ticks = [
        (tick, sorted(axis.get_view_interval()))
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in axis.get_major_ticks()
    ]
    # Ticks beyond the axis's ends are there, but not drawn.
    beyond = {tick.label1 for tick, (low, high) in ticks if not low - 1e-9 <= tick.get_loc() <= high + 1e-9}
    texts = [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text.get_rotation() in (0, 90) and text not in beyond
    ]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts]


@pytest.mark.parametrize("names", [DELIVERIES, DELIVERIES[:2]], ids=["nine", "two"])
def test_no_text_lies_on_another_or_is_cut_off_or_gets_too_small_on_a_page(names):
    for kind, figure in every_figure(names).items():
        # A page is 700 pixels wide, which is 7.3 inches of 96.
        assert figure.get_figwidth() <= WIDTH < 7.5, kind
        texts = drawn_texts(figure)
        assert len(texts) > 5, kind
        width, height = figure.get_size_inches() * figure.dpi
        for text, box in texts:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (kind, text)
        for (one, first), (two, second) in combinations(texts, 2):
            across = min(first.x1, second.x1) - max(first.x0, second.x0)
            up = min(first.y1, second.y1) - max(first.y0, second.y0)
            # Boxes have the font's whole height, so that they can touch where letters do not.
            assert across < 1 or up < 1.5, (kind, one, two)


def test_nothing_of_matplotlibs_state_is_changed_and_figures_are_saved_whole(tmp_path):
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        figures = every_figure(DELIVERIES)
        assert dict(matplotlib.rcParams) == before
    for name, figure in figures.items():
        assert all(ax.get_facecolor() == (1, 1, 1, 1) for ax in figure.axes), name
        assert {label.get_fontsize() for ax in figure.axes for label in ax.get_xticklabels()} <= {9}, name
    png, _ = save(figures["dots"], tmp_path / "dots")
    pixels = np.asarray(PIL.Image.open(png).convert("L"))
    for edge in (pixels[:4], pixels[-4:], pixels[:, :4], pixels[:, -4:]):
        assert (edge == 255).all()


def test_pyplot_is_not_imported():
    kinds = "bands, examples, seeds, sweep"
    code = f"import sys; from hf_softlabel.figures import {kinds}; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
