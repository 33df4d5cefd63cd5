"""Figures and values of an earlier report whose predictions are gone.

Of archived runs often only the numbers are kept: votes may not be passed on, and predictions are large. A report made
anew would lose what was drawn and computed while these were there, so it is taken over from the report that it
replaces, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .content import AnyPicture, KeptPicture, Report
from .tables import Cells, values_of_csv

# The keys of all pictures that need predictions or votes, single examples' ones aside: these show other people's data.
OF_REPORTS = ("annotator-entropy",)
OF_SECTIONS = ("sparse-target-js", "sparse-target-l1", "sparse-target-js-high", "reliability")
NOTE = "Taken over from an earlier report: predictions that it was drawn from are no longer there."
# A picture as `report_markdown` writes it: heading, image, caption.
_PICTURE = re.compile(
    r"^### (?P<heading>.+)\n\n!\[(?P<title>.*)\]\(figures/(?P<stem>.+)\.png\)\n\n(?P<caption>.+)$", re.M
)


def earlier_sparse(out: Path, section: str) -> Cells:
    """What the sparse-target table of a section, known by its key, has in the report in a folder."""
    path = out / "tables" / f"{section}-sparse.csv"
    return values_of_csv(path.read_text(encoding="utf-8")) if path.exists() else {}


def keep_pictures(report: Report, out: Path) -> Report:
    """The report with those figures of the earlier one in a folder that it could not draw for want of predictions."""
    earlier = _earlier(out)
    sections = [
        replace(section, pictures=_with_kept(section.pictures, earlier, OF_SECTIONS, f"{section.key}-"))
        if section.numbers_only
        else section
        for section in report.sections
    ]
    pictures = report.pictures
    if any(section.numbers_only for section in report.sections):
        pictures = _with_kept(pictures, earlier, OF_REPORTS)
    return replace(report, sections=sections, pictures=pictures)


def _with_kept(
    pictures: Sequence[AnyPicture], earlier: Mapping[str, KeptPicture], keys: Sequence[str], prefix: str = ""
) -> list[AnyPicture]:
    drawn = {picture.key for picture in pictures}
    stems = [prefix + key for key in keys if key not in drawn]
    # A section's file has the section's name before the picture's.
    kept = [replace(earlier[stem], key=stem.removeprefix(prefix)) for stem in stems if stem in earlier]
    return [*pictures, *kept]


def _earlier(out: Path) -> dict[str, KeptPicture]:
    """The figures that report.md of a folder shows and that are there, by the names of their files."""
    page = out / "report.md"
    if not page.exists():
        return {}
    found = {}
    for match in _PICTURE.finditer(page.read_text(encoding="utf-8")):
        png, svg = (out / "figures" / f"{match['stem']}.{kind}" for kind in ("png", "svg"))
        if png.exists() and svg.exists():
            source = match["heading"].removeprefix(match["title"]).strip().removeprefix("(").removesuffix(")")
            caption = match["caption"] if match["caption"].endswith(NOTE) else f"{match['caption']} {NOTE}"
            picture = KeptPicture(
                match["stem"], match["title"], caption, png.read_bytes(), svg.read_bytes(), source or None
            )
            found[match["stem"]] = picture
    return found
