"""A report that is made again when predictions are gone: what was drawn from them is taken over, and says so."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from run_directories import CLASSES, write_run

from hf_softlabel.cli import main
from hf_softlabel.experiments.kept import NOTE, OF_REPORTS, OF_SECTIONS
from hf_softlabel.experiments.report import build_report
from hf_softlabel.experiments.same_target import TAKEN_OVER

EXAMPLES = {"examples-range", "examples-ambiguous"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with runs and out, their report, and the captions of its figures."""
    folder = tmp_path_factory.mktemp("made")
    for delivery in ("soft", "majority", "sls"):
        write_run(folder / "runs" / delivery, delivery)
    for delivery in ("soft", "sls"):
        write_run(folder / "runs" / f"{delivery}5", delivery, votes_per_example=5)
    return folder, report(folder / "runs", folder / "out")


@pytest.fixture
def first(made, tmp_path):
    """The captions of the report in tmp_path, which is the test's own to change."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    return made[1]


@pytest.fixture
def runs(first, tmp_path):
    return tmp_path / "runs"


def report(runs: Path, out: Path) -> dict[str, str]:
    """The captions of the figures that a report shows, by the keys of their pictures."""
    assert main(["report", str(runs), "--output_dir", str(out)]) == 0
    shown = re.findall(r"!\[.*\]\(figures/(.+)\.png\)\n\n(.+)", (out / "report.md").read_text())
    assert all((out / "figures" / f"{stem}.{kind}").exists() for stem, _ in shown for kind in ("png", "svg"))
    captions = {stem.removeprefix("cifar10h-resnet18-"): caption for stem, caption in shown}
    assert len(captions) == len(shown)
    return captions


def keep_numbers(runs: Path, names: str = "*") -> None:
    for path in runs.glob(names):
        shutil.rmtree(path / "model")
        for table in path.glob("*.parquet"):
            table.unlink()


def test_figures_outlive_the_predictions_that_they_were_drawn_from(runs, first, tmp_path):
    out = tmp_path / "out"
    files = {path.name: path.read_bytes() for path in (out / "figures").iterdir()}
    page = (out / "report.html").read_text()
    heading = re.search(r"^### Smooth reliability.*$", (out / "report.md").read_text(), re.M).group()
    keep_numbers(runs)
    # These are all the pictures for which numbers do not suffice.
    assert set(first) - set(report(runs, tmp_path / "elsewhere")) == {*OF_REPORTS, *OF_SECTIONS, *EXAMPLES}
    for _ in range(2):  # once more, with the taken over ones in the earlier report
        again = report(runs, out)
        assert set(again) == set(first) - EXAMPLES
        kept = {key for key, caption in again.items() if NOTE in caption}
        assert kept == {*OF_REPORTS, *OF_SECTIONS}
        assert all(again[key] == f"{first[key]} {NOTE}" for key in kept)
        names = [name for name in files if Path(name).stem.endswith(tuple(kept))]
        assert len(names) == 2 * len(kept) and all((out / "figures" / n).read_bytes() == files[n] for n in names)
        assert heading in (out / "report.md").read_text().splitlines()
        assert set(json.loads((out / "report.json").read_text())["files"]) >= {f"figures/{name}" for name in names}
    # The page has them in the size in which they were drawn.
    sizes = re.compile(r'width="(\d+)" height="(\d+)" alt="Smooth reliability')
    assert sizes.findall((out / "report.html").read_text()) == sizes.findall(page) != []


def test_figures_are_drawn_anew_where_the_predictions_are_there(runs, first, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(runs, tmp_path / "whole")
    keep_numbers(runs)
    assert any(NOTE in caption for caption in report(runs, out).values())
    shutil.rmtree(runs)
    (tmp_path / "whole").rename(runs)
    assert report(runs, out) == first


def test_figures_are_drawn_anew_from_the_predictions_that_are_left(runs, first, tmp_path):
    keep_numbers(runs, "*5")
    again = report(runs, tmp_path / "out")
    assert again["reliability"] == first["reliability"]
    assert {key for key, caption in again.items() if NOTE in caption} == set(OF_SECTIONS) - {"reliability"}


def test_figures_of_runs_that_are_not_there_are_not_taken_over(runs, tmp_path):
    for delivery in ("soft5", "sls5"):
        shutil.rmtree(runs / delivery)
    again = report(runs, tmp_path / "out")
    assert not any(key.startswith("sparse-target") or NOTE in caption for key, caption in again.items())


def sparse(out: Path) -> dict[str, list[str]]:
    """The sparse-target table of a report: seeds and values of each cell."""
    path = out / "tables" / "cifar10h-resnet18-sparse.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {line["column"]: [line["seeds"], line["values"]] for line in csv.DictReader(file)}


def test_the_values_of_the_sparse_table_outlive_their_predictions(runs, tmp_path):
    out = tmp_path / "out"
    first = sparse(out)
    assert len(first) == 4 and {seeds for seeds, _ in first.values()} == {"0"}
    keep_numbers(runs)
    # Another seed of which the predictions are there: both are in the table, and only the one is taken over.
    for delivery in ("soft", "sls"):
        write_run(runs / f"{delivery}5-1", delivery, seed=1, votes_per_example=5)
    for _ in range(2):
        report(runs, out)
        again = sparse(out)
        assert {seeds for seeds, _ in again.values()} == {"0 1"}
        assert [values.split()[0] for _, values in again.values()] == [values for _, values in first.values()]
        assert f"- Of seed 0: {TAKEN_OVER}" in (out / "report.md").read_text().splitlines()
    report(runs, tmp_path / "elsewhere")
    assert {seeds for seeds, _ in sparse(tmp_path / "elsewhere").values()} == {"1"}
    assert TAKEN_OVER not in (tmp_path / "elsewhere" / "report.md").read_text()
    # Of a run that is not there nothing is said, nor of one that has been trained again.
    shutil.rmtree(runs / "sls5")
    report(runs, out)
    assert {seeds for seeds, _ in sparse(out).values()} == {"1"}


def test_the_sparse_table_is_computed_anew_where_the_predictions_are_there(runs, tmp_path):
    out = tmp_path / "out"
    first, path = sparse(out), out / "tables" / "cifar10h-resnet18-sparse.csv"
    path.write_text(path.read_text().replace(first["training, JS"][1], "0.123"))
    assert sparse(out)["training, JS"] == ["0", "0.123"]
    report(runs, out)
    assert sparse(out) == first


def test_what_is_wanting_is_said_on_the_console(runs, tmp_path, capsys):
    report(runs, tmp_path / "elsewhere")
    assert "only the numbers" not in capsys.readouterr().out
    keep_numbers(runs, "sls5")
    report(runs, tmp_path / "elsewhere")
    assert "Of 1 of 5 runs only the numbers were kept" in " ".join(capsys.readouterr().out.split())


def test_predictions_without_a_model_have_numbered_classes(runs):
    assert build_report(runs).sections[0].class_names == list(CLASSES)
    for path in runs.iterdir():
        shutil.rmtree(path / "model")
    section = build_report(runs).sections[0]
    assert section.class_names == ["0", "1", "2"]
    assert {picture.key for picture in section.pictures} >= EXAMPLES
