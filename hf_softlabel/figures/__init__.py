"""The pictures. Functions take run directories or arrays and return a matplotlib Figure, which `save` writes."""

from .bars import distribution_bars
from .curves import validation_curves
from .entropy import entropy_histograms, entropy_scatter
from .reliability import reliability_diagram
from .sources import Source, read_source
from .style import looks, new_figure, save

__all__ = [
    "Source",
    "distribution_bars",
    "entropy_histograms",
    "entropy_scatter",
    "looks",
    "new_figure",
    "read_source",
    "reliability_diagram",
    "save",
    "validation_curves",
]
