"""The pictures of diagnostics: what is plotted equals the numbers given, and is saved whole."""

from __future__ import annotations

import subprocess
import sys

import matplotlib
import numpy as np
import PIL.Image
import pytest
import torch
from matplotlib.colors import to_hex
from sklearn.metrics import roc_auc_score

from hf_softlabel import VotesError
from hf_softlabel.diagnostics.barrier import LossBarrier
from hf_softlabel.figures import (
    cka_heatmap,
    gradcam_overlays,
    gradient_variance_scatter,
    hessian_bars,
    interpolation_curves,
    ood_histograms,
    ood_roc,
    save,
)
from hf_softlabel.figures.diagnostics import upsampled
from hf_softlabel.figures.style import LOOKS

NAMES = [f"{name}, seed {seed}" for name in list(LOOKS)[1:] for seed in (0, 1)]


def curvature(value: float, error: float = 1.0, converged: bool = True) -> dict:
    """lambda_max and trace of the whole split, twice and ten times the value on the slice."""

    def of(scale):
        return {
            "lambda_max": scale * value,
            "lambda_max_error": error,
            "lambda_max_converged": converged,
            "trace": 3 * scale * value,
            "trace_error": 2 * error,
            "trace_converged": True,
        }

    return {**of(1), "high_disagreement": of(2)}


def line(batch_norm: bool = True) -> LossBarrier:
    again = (np.array([1, 1.2, 1.0]), 0.2) if batch_norm else (None, None)
    return LossBarrier(np.array([0, 0.5, 1]), np.array([1, 3.0, 2]), 1.5, *again)


def scores(*sets: str, n: int = 300) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(i, 1, n + i) for i, name in enumerate(("in", *sets))}


def every_figure() -> dict[str, matplotlib.figure.Figure]:
    rng = np.random.default_rng(0)
    matrix = np.linspace(0.4, 1, 18) * np.linspace(0.4, 1, 18)[:, None]
    images = rng.integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    entropy = rng.random(2000)
    both = {name: {"energy": values, "a detector with a long name": values**2} for name, values in scores("a").items()}
    return {
        "hessian": hessian_bars({"sls, seed 0": curvature(5), "soft, seed 0": curvature(6, converged=False)}),
        "hessian_many": hessian_bars({name: curvature(i + 1) for i, name in enumerate(NAMES)}),
        "interpolation": interpolation_curves({"one": line(), "two": line(False)}),
        "interpolation_many": interpolation_curves({f"{a} – {a}": line() for a in NAMES[:5]}),
        "cka": cka_heatmap(["a", "b"], [[1, 0.5], [0.5, 1]]),
        "cka_many": cka_heatmap(NAMES, matrix),
        "gradcam": gradcam_overlays(images[:1], {"a": rng.random((1, 4, 4))}),
        "gradcam_many": gradcam_overlays(images, dict.fromkeys(NAMES[-4:], rng.random((2, 4, 4))), ["a b c", "d\ne"]),
        "histograms": ood_histograms(scores("a", "b", "c", "d", "e", "f", "g"), "knn", "sls, seed 0"),
        "roc": ood_roc(both, "sls, seed 0"),
        "roc_many": ood_roc({"in": both["in"], **dict.fromkeys("abcd", both["a"])}),
        "scatter": gradient_variance_scatter(entropy[:100], entropy[:100], 1.0),
        "scatter_many": gradient_variance_scatter(entropy**2, entropy, 1.0, "soft, seed 0"),
    }


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_figure_is_saved_whole(tmp_path):
    for name, figure in every_figure().items():
        png, pdf = save(figure, tmp_path / name)
        pixels = np.asarray(PIL.Image.open(png).convert("RGB")).astype(int)
        assert min(pixels.shape[:2]) > 450
        # Ink, and a margin of white: nothing is cut off at the edges.
        assert (pixels.min(-1) < 250).mean() > 0.005
        for edge in (pixels[:4], pixels[-4:], pixels[:, :4], pixels[:, -4:]):
            assert (edge == 255).all(), name
        assert pdf.read_bytes().startswith(b"%PDF") and b"/Type3" not in pdf.read_bytes()


def test_no_matplotlib_state_is_changed_and_the_users_does_not_leak_in():
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        figures = every_figure()
        assert dict(matplotlib.rcParams) == before
    for figure in figures.values():
        for ax in figure.axes:
            assert ax.get_facecolor() == (1, 1, 1, 1) and ax.xaxis.label.get_fontsize() <= 10
    first = "import sys, hf_softlabel.diagnose_figures; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", first], check=True)


def test_what_cannot_be_drawn_is_refused():
    image = np.zeros((2, 8, 8, 3), np.uint8)
    wrong = {
        "nothing to draw": [lambda: hessian_bars({}), lambda: interpolation_curves({})],
        "a: the Hessian's results have no 'trace'": [lambda: hessian_bars({"a": {**_without("trace")}})],
        "have no 'high_disagreement'": [lambda: hessian_bars({"a": _without("high_disagreement")})],
        "a: losses .* are not a curve": [
            lambda: interpolation_curves({"a": LossBarrier(np.arange(3), np.ones(4), 0)}),
            lambda: interpolation_curves({"a": LossBarrier(np.arange(3), np.ones(3), 0, np.ones(2), 0)}),
        ],
        "square matrix": [lambda: cka_heatmap(["a"], np.ones((2, 2))), lambda: cka_heatmap([], np.ones((0, 0)))],
        "not symmetric": [lambda: cka_heatmap(["a", "b"], [[1, 0.2], [0.3, 1]])],
        "between 0 and 1": [lambda: cka_heatmap(["a", "b"], [[1, 2], [2, 1]])],
        "uint8": [lambda: gradcam_overlays(image / 255, {}), lambda: gradcam_overlays(image[..., 0], {})],
        "1 titles, and 2 images": [lambda: gradcam_overlays(image, {}, ["a"])],
        "a: 2 images need maps": [
            lambda: gradcam_overlays(image, {"a": np.ones((3, 4, 4))}),
            lambda: gradcam_overlays(image, {"a": np.ones((2, 4))}),
        ],
        "a: some maps are not finite": [lambda: gradcam_overlays(image, {"a": np.full((2, 4, 4), np.nan)})],
        "of an OOD set are needed": [
            lambda: ood_histograms({"in": [1, 2]}, "energy"),
            lambda: ood_histograms({"a": [1, 2], "b": [1]}, "energy"),
            lambda: ood_roc({"in": {"energy": [1, 2]}}),
        ],
        "a: .*scores must be": [
            lambda: ood_histograms({"in": [1, 2], "a": []}, "energy"),
            lambda: ood_histograms({"in": [1, 2], "a": [[1]]}, "energy"),
            lambda: ood_roc({"in": {"energy": [1, 2]}, "a": {"energy": [np.nan]}}),
        ],
        "same detectors": [lambda: ood_roc({"in": {"energy": [1, 2]}, "a": {"knn": [1]}})],
        "same examples": [lambda: gradient_variance_scatter([1, 2], [1], 0.5)],
        "not finite": [lambda: gradient_variance_scatter([1, np.inf], [1, 2], 0.5)],
    }
    for message, calls in wrong.items():
        for call in calls:
            with pytest.raises(VotesError, match=message):
                call()


def _without(key: str) -> dict:
    return {name: value for name, value in curvature(1).items() if name != key}


def errorbars(ax) -> list[tuple[float, float]]:
    """Middle and half the length of each."""
    ends = [
        container.lines[2][0].get_segments()[0][:, 1] for container in ax.containers if hasattr(container, "lines")
    ]
    return [(sum(pair) / 2, (pair[1] - pair[0]) / 2) for pair in ends]


def test_bars_are_means_over_a_deliverys_runs_whose_marks_have_their_errors():
    runs = {"sls, seed 0": curvature(4, 0.5), "soft": curvature(10), "sls, seed 1": curvature(6, 1.5, False)}
    figure = hessian_bars(runs)
    largest, trace = figure.axes
    # sls and soft, each the whole split and the slice.
    assert [bar.get_height() for bar in largest.patches] == [5, 10, 10, 20]
    assert [bar.get_height() for bar in trace.patches] == [15, 30, 30, 60]
    np.testing.assert_allclose(errorbars(largest), [(4, 0.5), (6, 1.5), (8, 0.5), (12, 1.5), (10, 1), (20, 1)])
    np.testing.assert_allclose(errorbars(trace)[:2], [(12, 1), (18, 3)])
    marks = [container.lines[0].get_markerfacecolor() for container in largest.containers[1:3]]
    assert marks == ["black", "white"]  # the second did not converge
    assert [label.get_text() for label in largest.get_xticklabels()] == ["sls, 2 runs", "soft"]
    assert [bar.get_hatch() for bar in largest.patches] == [None, "////", None, "////"]
    assert [to_hex(bar.get_edgecolor()).upper() for bar in largest.patches[1:3]] == [
        LOOKS["sls"].colour,
        LOOKS["soft"].colour,
    ]
    assert legend(figure) == ["whole split", "high-disagreement slice", "not converged"]
    assert legend(hessian_bars({"soft": curvature(10)})) == ["whole split", "high-disagreement slice"]


def test_a_curvature_that_is_not_finite_is_told():
    runs = {"a": {**curvature(4), "trace": None, "lambda_max_error": float("inf")}}
    largest, trace = hessian_bars(runs).axes
    assert [text.get_text() for text in trace.texts] == ["undefined"] and not largest.texts
    assert largest.patches[0].get_height() == 4 and largest.get_ylim()[1] < 20


def test_interpolation_shows_losses_and_the_lines_between_the_ends_with_the_barriers():
    with_bn, without = interpolation_curves({"a – b": line(), "c – d": line(False)}).axes
    drawn = [np.transpose(curve.get_data()).tolist() for curve in with_bn.lines]
    assert drawn == [
        [[0, 1], [0.5, 3], [1, 2]],
        [[0, 1], [1, 2]],
        [[0, 1], [0.5, 1.2], [1, 1]],
        [[0, 1], [1, 1]],
        [],
    ]
    assert [curve.get_linestyle() for curve in with_bn.lines[:4]] == ["-", "--", "-", "--"]
    assert [text.get_text() for text in with_bn.get_legend().get_texts()] == [
        "batch norm interpolated: barrier 1.500",
        "batch norm re-estimated: barrier 0.200",
        "straight between the ends",
    ]
    assert without.get_legend().get_texts()[0].get_text() == "barrier 1.500" and len(without.lines) == 3
    assert (with_bn.get_title(), without.get_title()) == ("a – b", "c – d")


def test_cka_has_every_number_in_its_cell_in_a_colour_that_can_be_read():
    matrix = np.array([[1, 0.234, np.nan], [0.234, 1, 0.9], [np.nan, 0.9, 1]])
    ax = cka_heatmap(["a", "b", "c"], matrix).axes[0]
    np.testing.assert_array_equal(ax.images[0].get_array().filled(np.nan), matrix)
    assert ax.images[0].get_clim() == (0.2, 1)
    texts = {text.get_position(): (text.get_text(), text.get_color()) for text in ax.texts}
    assert texts[1, 0] == texts[0, 1] == ("0.23", "white") and texts[0, 0] == ("1.00", "black")
    assert texts[2, 0] == ("–", "black") and texts[2, 1] == ("0.90", "black") and len(texts) == 9
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]


@pytest.mark.parametrize("count", [2, 18])
def test_the_numbers_of_cka_fit_into_their_cells(count):
    figure = cka_heatmap(NAMES[-count:], np.eye(count))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    cell = ax.get_window_extent().width / count
    assert max(text.get_window_extent().width for text in ax.texts) < 0.9 * cell


def test_maps_are_upsampled_and_each_goes_from_0_to_1():
    maps = np.random.default_rng(0).random((3, 4, 5)) * np.array([1, 50, 0])[:, None, None]
    large = upsampled("a", maps, (3, 16, 20))
    reference = torch.nn.functional.interpolate(torch.tensor(maps)[None], (16, 20), mode="bilinear")[0].numpy()
    spread = np.ptp(reference[:2], axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(
        large[:2], (reference[:2] - reference[:2].min((1, 2), keepdims=True)) / spread, atol=1e-5
    )
    assert not large[2].any()  # no evidence anywhere


def test_overlays_are_the_image_and_each_models_map_on_it():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    maps = {"soft": rng.random((2, 4, 4)), "none": np.zeros((2, 2, 2))}
    figure = gradcam_overlays(images, maps, ["first", "second"])
    axes = np.array(figure.axes[:6]).reshape(2, 3)
    assert [ax.get_title() for ax in axes[0]] == ["image", "soft", "none"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["first", "second"]
    for row in range(2):
        np.testing.assert_array_equal(axes[row, 0].images[0].get_array(), images[row])
        below, above = axes[row, 1].images
        np.testing.assert_allclose(below.get_array(), images[row] @ [0.299, 0.587, 0.114])
        np.testing.assert_allclose(above.get_array(), upsampled("soft", maps["soft"], (2, 8, 8))[row])
        assert above.get_clim() == (0, 1) and axes[row, 1].get_xlim() == (-0.5, 7.5)
        # The half-way line is drawn where there is one.
        assert [len(ax.collections) for ax in axes[row]] == [0, 1, 0]


def test_histograms_are_densities_over_the_same_bins_with_each_sets_auroc():
    sets = scores("near", "far", n=500)
    figure = ood_histograms(sets, "energy", "sls, seed 0")
    ax = figure.axes[0]
    drawn = [patch.get_data() for patch in ax.patches]
    assert len(drawn) == 3
    for values, (heights, edges, _) in zip(sets.values(), drawn, strict=True):
        np.testing.assert_array_equal(edges, drawn[0].edges)
        np.testing.assert_allclose(heights, np.histogram(values, edges)[0] / len(values) / np.diff(edges))
        assert (heights * np.diff(edges)).sum() == pytest.approx(1)
    areas = [roc_auc_score([0] * 500 + [1] * len(sets[k]), np.append(sets["in"], sets[k])) for k in ("near", "far")]
    assert areas[1] > areas[0] > 0.7
    assert legend(figure) == [
        "in-distribution (500)",
        f"near (501), AUROC {areas[0]:.3f}",
        f"far (502), AUROC {areas[1]:.3f}",
    ]
    assert len({patch.get_hatch() for patch in ax.patches}) == 3
    assert ax.get_title() == "sls, seed 0" and ax.get_xlabel().startswith("energy score")


def test_roc_curves_have_the_ood_examples_as_positives_in_a_panel_per_set():
    inside = {"energy": [0.0, 1, 2, 3], "knn": [0.0, 0, 0, 0]}
    outside = {"energy": [1.5, 4], "knn": [1.0, 1]}
    reverse = {"energy": [-1.0], "knn": [-1.0]}
    figure = ood_roc({"in": inside, "far": outside, "near": reverse}, "soft")
    far, near = figure.axes
    # From the highest score on: 4 is OOD, 3 and 2 are in, 1.5 is OOD, 1 and 0 are in.
    curve = np.transpose(far.lines[1].get_data())
    np.testing.assert_allclose(curve, [[0, 0], [0, 0.5], [0.25, 0.5], [0.5, 0.5], [0.5, 1], [0.75, 1], [1, 1]])
    labels = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in (far, near)]
    assert labels[0] == ["energy, AUROC 0.750", "knn, AUROC 1.000"]
    assert labels[1] == ["energy, AUROC 0.000", "knn, AUROC 0.000"]
    assert far.get_title() == "far (2) against in-distribution (4)" and figure.get_suptitle() == "soft"
    # Marks lie on their curve.
    for curve, marks in ((far.lines[1], far.lines[2]), (far.lines[4], far.lines[5])):
        points = set(zip(*curve.get_data(), strict=True))
        assert len(marks.get_xdata()) == 3 and set(zip(*marks.get_data(), strict=True)) <= points


def test_the_scatter_shows_every_example_or_counts_them():
    figure = gradient_variance_scatter([0, 4, 9], [0, 0.5, 1], 0.98765, "sls, seed 1")
    ax = figure.axes[0]
    assert ax.collections[0].get_offsets().tolist() == [[0, 0], [0.5, 4], [1, 9]]
    assert ax.get_title() == "sls, seed 1: Spearman's ρ 0.988, 3 examples"
    assert "ρ undefined, 2 ex" in gradient_variance_scatter([1, 1], [1, 2], float("nan")).axes[0].get_title()
    entropy = np.random.default_rng(0).random(5000)
    ax = gradient_variance_scatter(entropy**2, entropy, 1.0).axes[0]
    assert ax.collections[0].get_array().sum() == 5000
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(y, x**2, atol=0.01)
    assert len(x) == 10 and x[0] == pytest.approx(0.05, abs=0.01)
