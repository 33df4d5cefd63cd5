"""The looks of the deliveries: told apart in colour-blind vision, and in print without colour."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from hf_softlabel.figures import looks
from hf_softlabel.figures.style import LOOKS

MAIN = ("annotators", "soft", "sls", "multipass", "majority")
# Machado, Oliveira and Fernandes (2009), severity 1, of linear RGB.
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
GREY = [[0.2126, 0.7152, 0.0722]] * 3


def lab(colour: str, vision: list[list[float]]) -> np.ndarray:
    """CIELAB of a colour as it is seen."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(np.array(vision) @ linear, 0, 1) / to_xyz.sum(1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_any_two_deliveries_differ_in_dashes_mark_and_hatch():
    for channel in ("line", "marker", "hatch"):
        assert len({getattr(look, channel) for look in LOOKS.values()}) == len(LOOKS) == 10


@pytest.mark.parametrize("vision", [DEUTERANOPIA, PROTANOPIA])
def test_the_main_deliveries_keep_their_colours_apart_in_colour_blind_vision(vision):
    # A difference of about 2 is just noticeable.
    for one, other in combinations(MAIN, 2):
        assert np.linalg.norm(lab(LOOKS[one].colour, vision) - lab(LOOKS[other].colour, vision)) > 15


def test_no_colour_is_lost_on_white_paper_in_grey():
    white = lab("#FFFFFF", GREY)
    assert white[0] == pytest.approx(100, abs=0.1)
    for look in LOOKS.values():
        assert white[0] - lab(look.colour, GREY)[0] > 25


def test_a_delivery_has_its_look_wherever_it_comes_and_no_two_series_share_one():
    names = ["my model", "sls, seed 1", "sls, seed 0", "soft"]
    chosen = looks(names)
    assert chosen[1] == LOOKS["sls"] and chosen[3] == LOOKS["soft"]
    assert len(set(chosen)) == 4 and LOOKS["annotators"] not in chosen
    assert looks(["sls", "mixup (mixup_targets soft)"]) == [LOOKS["sls"], LOOKS["mixup"]]
    assert looks(list(LOOKS)) == list(LOOKS.values())
    others = looks([f"model {i}" for i in range(12)])
    assert len(set(others)) == 9 and LOOKS["annotators"] not in others  # black is for people
    assert len(looks([*LOOKS, "one more", "and one"])) == 12
