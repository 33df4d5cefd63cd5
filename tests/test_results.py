"""What results/ says was found can be looked at: every figure that its report shows is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent.parent / "results"
# They show other people's texts and images, and are not passed on.
OF_EXAMPLES = re.compile(r"-examples-(range|ambiguous)\.(png|svg)$")


def test_every_figure_of_the_report_is_kept_unless_it_shows_examples():
    listed = subprocess.run(["git", "ls-files", "report"], cwd=RESULTS, capture_output=True, text=True)
    kept = {line.removeprefix("report/") for line in listed.stdout.splitlines()}
    if not kept:
        pytest.skip("not a git checkout of ours: what is kept cannot be told from what was only drawn here")
    figures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (RESULTS / "report" / "report.md").read_text(encoding="utf-8"))
    assert len(figures) > 10 and any(OF_EXAMPLES.search(figure) for figure in figures)
    assert [figure for figure in figures if figure not in kept and not OF_EXAMPLES.search(figure)] == []
    assert [figure for figure in kept if OF_EXAMPLES.search(figure)] == []
