"""The errors that the estimates state are those they have, with memory for their vectors and without."""

from __future__ import annotations

import pytest
import torch
from hessians import rotated

from hf_softlabel.diagnostics import spectrum
from hf_softlabel.diagnostics.spectrum import Probes, estimate_trace, largest_eigenvalue

SPECTRA = {
    "slow decay": torch.logspace(1, -2, 300),
    "outliers": torch.cat([torch.tensor([50.0, 45.0, 40.0, 30.0]), torch.linspace(0.05, 0.15, 296)]),
    "indefinite": torch.cat([torch.tensor([60.0, 10.0, -8.0]), torch.linspace(-1, 1.2, 297)]),
}


def traces(matrix: torch.Tensor, seeds: int, rtol: float, max_products: int) -> list[spectrum.Estimate]:
    matrix = matrix.float()
    probes = (Probes(len(matrix), matrix[0, :0], seed) for seed in range(seeds))
    return [estimate_trace(lambda v: v @ matrix, probe, rtol, max_products)[0] for probe in probes]


def assert_honest(found: list[spectrum.Estimate], trace: float) -> None:
    """Nearly all within three stated errors, and these not larger than need be."""
    ratios = torch.tensor([abs(one.value - trace) / one.error for one in found])
    assert (ratios < 3).sum() >= 0.93 * len(ratios), ratios
    assert 0.5 < ratios.square().mean().sqrt() < 1.6, ratios


@pytest.mark.parametrize("name", SPECTRA)
def test_the_stated_error_of_the_trace_is_honest(name):
    found = traces(rotated(SPECTRA[name]), seeds=30, rtol=0.02, max_products=300)
    assert all(one.method == "xtrace" and one.error <= 0.02 * abs(one.value) for one in found)
    # The spread of fewer than 24 estimates is not believed, however small.
    assert min(one.products for one in found) >= 48
    assert_honest(found, float(SPECTRA[name].sum()))


@pytest.mark.parametrize("name", SPECTRA)
def test_without_memory_for_more_directions_probes_take_over(name, monkeypatch):
    monkeypatch.setattr(spectrum, "STORED_NUMBERS", 5 * 300)
    found = traces(rotated(SPECTRA[name]), seeds=30, rtol=1e-4, max_products=60)
    assert all(one.method == "xtrace+hutchinson" and one.products == 60 for one in found)
    assert_honest(found, float(SPECTRA[name].sum()))
    # They make good for the directions that are missing.
    few = traces(rotated(SPECTRA[name]), seeds=30, rtol=1e-4, max_products=10)
    assert sum(one.error for one in found) < 0.6 * sum(one.error for one in few)


def test_what_a_sketch_leaves_is_exact_where_all_eigenvalues_are_equal():
    """The probes' lengths are random, and do not matter."""
    for one in traces(2.0 * torch.eye(300), seeds=3, rtol=0.02, max_products=60):
        assert one.value == pytest.approx(600, rel=1e-5)
        assert one.error <= 1e-3


def test_lanczos_does_not_find_the_same_eigenvalues_again():
    """The negative outliers come up again and again where the vectors are not kept, and take three times as long."""
    matrix = rotated(torch.cat([-torch.logspace(2, 0, 20), torch.linspace(-0.5, 1, 280)])).float()
    found = largest_eigenvalue(lambda v: v @ matrix, Probes(300, matrix[0, :0], 0).draw(1)[0], 0.02, 299)
    assert abs(found.value - 1) <= found.error <= 0.02
    assert found.products <= 70


def test_lanczos_is_right_without_memory_for_its_vectors(monkeypatch):
    monkeypatch.setattr(spectrum, "STORED_NUMBERS", 2 * 300)
    matrix = rotated(torch.linspace(-1, 1, 300)).float()
    start = Probes(300, matrix[0, :0], 0).draw(1)[0]
    found = largest_eigenvalue(lambda v: v @ matrix, start, rtol=1e-4, max_products=290)
    assert abs(found.value - 1) <= found.error <= 1e-4
