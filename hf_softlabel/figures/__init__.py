"""The pictures. Functions take run directories or arrays and return a matplotlib Figure, which `save` writes."""

from .bars import distribution_bars
from .curves import validation_curves
from .diagnostics import (
    cka_heatmap,
    gradcam_overlays,
    gradient_variance_scatter,
    hessian_bars,
    interpolation_curves,
)
from .entropy import entropy_histograms, entropy_scatter
from .ood import ood_histograms, ood_roc
from .reliability import reliability_diagram
from .sources import Source, read_source
from .style import looks, new_figure, save

__all__ = [
    "Source",
    "cka_heatmap",
    "distribution_bars",
    "entropy_histograms",
    "entropy_scatter",
    "gradcam_overlays",
    "gradient_variance_scatter",
    "hessian_bars",
    "interpolation_curves",
    "looks",
    "new_figure",
    "ood_histograms",
    "ood_roc",
    "read_source",
    "reliability_diagram",
    "save",
    "validation_curves",
]
