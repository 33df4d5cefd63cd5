"""The demo, with one seed and a third of the epochs."""

from __future__ import annotations

import json

import numpy as np
import PIL.Image
import pytest

from hf_softlabel import demo
from hf_softlabel.cli import main
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.metrics import entropy


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "EPOCHS", 4)
        out = tmp_path_factory.mktemp("demo")
        assert main(["demo", "--output_dir", str(out), "--seeds", "1"]) == 0
    return out


def test_the_majority_label_is_clearly_worse_in_soft_nll_on_both_sets(done):
    tables = json.loads((done / "table.json").read_text())
    assert set(tables) == {"vision", "text"}
    for table in tables.values():
        others = [table[name]["soft_nll"][0] for name in ("soft", "sls", "multipass")]
        assert table["majority"]["soft_nll"][0] > max(others) + 0.05
        assert table["majority"]["kl_to_truth"][0] > max(table[n]["kl_to_truth"][0] for n in ("soft", "sls"))
        floor, truth, uniform = (
            table[name]["soft_nll"][0] for name in ("entropy floor", "the true distribution", "uniform")
        )
        assert floor < truth < min(others) < uniform


def test_the_figure_is_a_picture_with_something_in_it(done):
    pixels = np.asarray(PIL.Image.open(done / "ambiguous.png").convert("RGB"))
    assert pixels.shape[1] > 1500
    # The five colours of the bars, apart from white, black and the examples themselves.
    for colour in ("0072B2", "56B4E9", "009E73", "D55E00"):
        wanted = [int(colour[i : i + 2], 16) for i in (0, 2, 4)]
        assert (np.abs(pixels.astype(int) - wanted).max(-1) < 4).sum() > 500


@pytest.mark.parametrize("subset", ["vision", "text"])
def test_synthetic_votes_are_drawn_from_their_truth_and_mix_clear_with_ambiguous(subset):
    data = load_synthetic(subset)
    votes, truth = np.array(data["votes"][:]), np.array(data["truth"][:])
    assert len(data) == 2000 and set(votes.sum(1)) == set(range(6, 15))
    np.testing.assert_allclose(truth.sum(1), 1)
    expected = truth * votes.sum(1, keepdims=True)
    # Pearson residuals of a multinomial have a mean square of (1 - p); their sum over classes is C - 1 per example.
    assert (np.square(votes - expected) / expected).sum() / len(data) == pytest.approx(votes.shape[1] - 1, rel=0.06)
    clear = (truth.max(1) > 0.85).mean()
    assert 0.5 < clear < 0.7 and (entropy(truth) > 0.6).mean() > 0.2
    again = load_synthetic(subset, size=2000)
    assert again["votes"][:] == data["votes"][:]
    assert load_synthetic(subset, seed=1)["votes"][:] != data["votes"][:]
