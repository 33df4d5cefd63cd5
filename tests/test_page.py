"""The report's page as text: the same numbers as in CSV, escaped, without a network, of a bounded size."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from page_reports import (
    CIFAR,
    FOLDER,
    METHODS,
    NASTY,
    NLI,
    examples,
    full_report,
    picture,
    report,
    runs,
    section,
    table,
)

from hf_softlabel.data.errors import VotesError
from hf_softlabel.experiments.content import Example, Picture
from hf_softlabel.experiments.page import LIMIT, page_html, write_page
from hf_softlabel.experiments.page_data import picture_pixels
from hf_softlabel.experiments.tables import (
    Table,
    comparison_text,
    paper_text,
    to_csv,
    to_latex,
    to_markdown,
    value_text,
)
from hf_softlabel.figures.style import LOOKS, new_figure

VOID = {"meta", "link", "img", "input", "br"}


class Page(HTMLParser):
    """Elements of a page in their order, each with its attributes, text and place; refuses tags that do not match."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[dict] = []
        self.elements: list[dict] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes)
        element = {"tag": tag, "text": "", "inside": [e["tag"] for e in self.open], **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def find(self, tag: str, kind: str | None = None) -> list[dict]:
        return [
            e for e in self.elements if e["tag"] == tag and (kind is None or kind in (e.get("class") or "").split())
        ]


@pytest.fixture(scope="module")
def full() -> Page:
    return Page(page_html(full_report()))


def only(part, **content) -> Page:
    return Page(page_html(report(section("one", "One", CIFAR, **{part: content[part]}), **content.get("more", {}))))


def browsers(page: Page) -> list[dict]:
    data = [json.loads(e["text"]) for e in page.find("script") if e.get("type") == "application/json"]
    return [one for one in data if "examples" in one]


@pytest.mark.parametrize("seeds", [1, 2, 5, 8])
def test_cells_are_those_of_the_csv(seeds):
    made = table(seeds=seeds)
    page = only("tables", tables=(made,))
    lines = list(csv.DictReader(io.StringIO(to_csv([made]))))
    cells = [e for e in page.find("td") if "tbody" in e["inside"]][: len(METHODS) * (1 + len(made.columns))]
    values = [e for i, e in enumerate(cells) if i % (1 + len(made.columns))]
    assert len(values) == len(lines) == 16
    for cell, line in zip(values, lines, strict=True):
        assert cell["data-value"] == line["mean"]
    spans, tests = page.find("span", "value"), page.find("small", "test")
    entries = [(made.entry(i, j), column) for i in range(len(METHODS)) for j, column in enumerate(made.columns)]
    assert [e["text"] for e in spans] == [value_text(*one) for one in entries if value_text(*one)]
    assert [e["text"] for e in tests] == [text for one in entries if (text := comparison_text(made, one[0]))]
    papers = [e["text"].removeprefix("paper ") for e in page.find("small", "published")]
    assert papers == [text for one in entries if (text := paper_text(one[0]))] != []


def test_best_cells_are_bold_and_blank_ones_listed():
    page = only("tables", tables=(table(),))
    best = [e["text"].split(" ")[0] for e in page.find("span", "best")]
    lines = list(csv.DictReader(io.StringIO(to_csv([table()]))))
    means = {(line["row"], line["column"]): float(line["mean"] or "nan") for line in lines}
    wanted = [means["soft", "accuracy"], means["sls", "soft NLL"], means["multipass", "OOD AUROC, far"]]
    assert f"{means['majority', 'accuracy']:.3f}" == f"{wanted[0]:.3f}"  # a tie, as it is rounded: both are bold
    assert sorted(best) == sorted([*(f"{wanted[i]:.{d}f}" for i, d in ((0, 3), (0, 3), (1, 4), (2, 4)))])
    assert "Not run (1): multipass / accuracy." in [e["text"] for e in page.find("p", "missing")]


def test_legends_say_only_what_is_there():
    def said(made: Table) -> str:
        page = only("tables", tables=(made,))
        assert page.find("button")[1]["text"] == made.unit
        return " ".join(e["text"] for e in page.find("p", "legend"))

    assert "Holm over the tests of this table" in said(table())
    assert "Holm over the tests of its column" in said(replace(table(), family_by_column=True))
    untested = replace(table(tests=False), unit="pairs", compares_rows=False)
    assert said(untested) == "paper: the published figure."
    plain = {place: replace(entry, paper=None) for place, entry in untested.entries.items()}
    assert said(replace(untested, entries=plain)) == ""


def test_copied_forms_are_embedded_whole(full):
    data = [json.loads(e["text"]) for e in full.find("script") if e.get("type") == "application/json"]
    forms = [one for one in data if "csv" in one]
    made = [table("overall", 8), table(), table("second", tests=False), table("<nli>", 2)]
    assert forms == [{"csv": to_csv([t]), "latex": to_latex(t), "markdown": to_markdown(t)} for t in made]


def test_ids_are_unique_and_links_lead_somewhere(full):
    ids = [e["id"] for e in full.elements if "id" in e]
    assert len(set(ids)) == len(ids) > 15
    targets = [e["href"].removeprefix("#") for e in full.find("a")]
    assert len(targets) > 10 and set(targets) <= set(ids)
    assert full.find("html")[0]["lang"] == "en"
    assert all(e["alt"] for e in full.find("img"))


def test_nothing_of_the_data_becomes_markup(full):
    executable = [e for e in full.find("script") if e.get("type") != "application/json"]
    assert len(executable) == 1 and "broken" not in executable[0]["text"]
    assert not full.find("b", "tags") and "<b>tags</b>" in full.find("main")[0]["text"]
    shown = [e["text"] for e in full.find("ul", "findings")]
    clean = [text.replace("\ud83d", "?").replace("\0", "\ufffd") for text in NASTY]
    assert "".join(clean) in shown
    nasty = browsers(full)[2]
    assert nasty["classes"] == [NASTY[1], NASTY[3]]
    assert [e["text"] for e in nasty["examples"]] == [f"{t}\n{t}" for t in (n.replace("\ud83d", "?") for n in NASTY)]


def test_nothing_is_fetched(full):
    for element in full.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            assert (element.get(name) or "#").startswith(("#", "data:"))
    policy = next(e["content"] for e in full.find("meta") if e.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy
    assert not re.search(r"https?://|@import|url\(", full.find("style")[0]["text"])
    assert not re.search(r"https?://|\beval\b|innerHTML|fetch\(", full.find("script")[-1]["text"])


def test_same_report_same_page():
    def made() -> str:
        return page_html(report(section("s", "S", NLI, examples=examples(2, 3), pictures=(picture("a"),))))

    assert made() == made()


def test_provenance_and_runs():
    page = Page(page_html(report()))
    said = page.find("div", "provenance")[0]["text"]
    assert "From the folder a <folder> & more by hf-softlabel report: 20 runs, 0 settings, 1 not finished." in said
    assert "transformers 5.20.0 and 5.21.0" in said
    rows = [e for e in page.elements if e["tag"] in ("th", "td") and "tbody" in e["inside"]]
    width = len(page.find("th")) - len(runs())
    assert width == 11 and len(rows) == 11 * 20
    last = [e["text"] for e in rows[-11:]]
    assert last[:8] == ["grid/majority-seed4", "majority", "4", "all", "0.8400", "0.5000", "", "0.4000"]
    assert last[8:] == ["1", "95.0", "34f3a9c0d2b4e6f8"]
    undefined = [e for e in rows if e["data-value"] == "" and e["text"] != "all"]
    assert len(undefined) == 10  # no accuracy of majority, no correlation of multipass
    listed = [e["text"] for e in page.find("p", "missing")]
    assert listed == [
        "Not finished (1): grid/mixup-seed4 (main, not started).",
        "Copies, left out (1): again has the configuration of grid/soft-seed0.",
    ]


def test_examples_are_ordered_and_scored_as_by_hand():
    third = 1 / 3
    given = [
        Example(1, "certain", None, (1, 0, 0), 10, 0.0, {"sls": (0.5, 0.25, 0.25)}, {"sls": 2}),
        Example(2, "split", None, (0.5, 0.5, 0), 4, 0.63, {"soft": (1, 0, 0), "sls": (0.5, 0.25, 0.25)}, {"sls": 3}),
        Example(3, "even", None, (third, third, third), None, 1.0000001, {"soft": (third, third, third)}, {"soft": 1}),
    ]
    page = Page(page_html(report(section("one", "One", NLI, examples=given))))
    (data,) = browsers(page)
    assert [m["name"] for m in data["methods"]] == ["sls", "soft"]
    assert [m["colour"] for m in data["methods"]] == [LOOKS["sls"].colour, LOOKS["soft"].colour]
    even, split, certain = data["examples"]
    assert [e["id"] for e in data["examples"]] == [3, 2, 1]
    assert even["entropy"] == 1 and even["majority"] == [0, 1, 2] and even["kl"] == [None, 0]
    assert split["majority"] == [0, 1] and certain["majority"] == [0]
    # 0.5 log(0.5 / 0.5) + 0.5 log(0.5 / 0.25); and a class that people chose has no probability.
    assert split["kl"] == [pytest.approx(0.5 * np.log(2), abs=1e-6), "inf"]
    assert certain["kl"] == [pytest.approx(np.log(2), abs=1e-6), None] and certain["seeds"] == [2, None]


def test_variants_keep_their_delivery_s_colour():
    methods = ("multipass", "deterministic_control", "mixup (mixup_alpha 0.4)")
    page = only("examples", examples=examples(2, 10, methods))
    found = browsers(page)[0]["methods"]
    assert [m["colour"] for m in found] == [LOOKS[name.split(" (")[0]].colour for name in methods]
    assert [m["striped"] for m in found] == [False, True, False]


def test_figures_are_the_smaller_of_two_forms():
    assert picture_pixels(picture("few")).address.startswith("data:image/svg+xml;base64,")
    figure, axes = new_figure(4, 3)
    axes[0, 0].scatter(*np.random.default_rng(0).normal(size=(2, 5000)))
    pixels = picture_pixels(Picture("many", "Many", "Points.", figure))
    assert pixels.address.startswith("data:image/png;base64,") and (pixels.width, pixels.height) == (384, 288)


def test_500_images_and_30_figures_fit():
    made = section(
        "large", "Large", CIFAR, examples=examples(500, 10, LOOKS.keys() - {"annotators"}, images=True),
        pictures=[picture(f"p{i}", i, points=60) for i in range(30)],
    )  # fmt: skip
    text = page_html(report(made))
    assert len(text.encode()) < LIMIT
    assert len(browsers(Page(text))[0]["examples"]) == 500
    assert "to keep this page small" not in text


def test_too_many_examples_leave_the_least_ambiguous_out():
    small, large = examples(30, 3), examples(60, 10, images=True, side=64)
    made = report(section("a", "A", NLI, examples=small), section("b", "B", CIFAR, examples=large))
    whole = len(page_html(made).encode())
    limit = whole - 200_000
    text = page_html(made, limit)
    page = Page(text)
    kept = [[e["id"] for e in data["examples"]] for data in browsers(page)]
    assert limit - 20_000 < len(text.encode()) <= limit
    assert len(kept[0]) == min(30, len(kept[1])) and len(kept[1]) < 60
    for ids, all_of_it in zip(kept, (small, large), strict=True):
        assert ids == [e.example_id for e in sorted(all_of_it, key=lambda e: -round(e.entropy, 6))][: len(ids)]
    assert f"Only the {len(kept[1])} most ambiguous of 60 are here, to keep this page small." in text


def test_too_many_figures_leave_the_largest_out():
    figure, axes = new_figure(6, 6)
    axes[0, 0].imshow(np.random.default_rng(0).random((300, 300, 3)))
    heavy = Picture("heavy-one", "Noise", "", figure)
    made = report(section("a", "A", NLI, examples=examples(3, 3), pictures=(picture("light"), heavy)))
    text = page_html(made, 150_000)
    page = Page(text)
    assert len(text) <= 150_000 and len(page.find("img")) == 1
    assert "Left out to keep this page small: see the file heavy-one." in text
    assert len(browsers(page)[0]["examples"]) == 3  # there is room again
    with pytest.raises(VotesError, match="report on fewer runs"):
        page_html(made, 1000)


def test_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = write_page(report(), tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == page_html(report())
    wrong = section("a", "A", NLI, examples=[replace(examples(1, 3)[0], predictions={"soft": (3, 0, 0)})])
    before = path.read_bytes()
    with pytest.raises(VotesError, match="probabilities"):
        write_page(report(wrong), path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_an_empty_report_is_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    empty = report(findings=(), runs=(), missing=(), copies=(), notes=(), folder=Path("."))
    page = Page(page_html(empty))
    assert f"From the folder {tmp_path.name} by" in page.find("div", "provenance")[0]["text"]
    assert not page.find("p", "missing") and str(FOLDER) not in page.find("main")[0]["text"]


@pytest.mark.slow
def test_installed_package_has_the_assets(tmp_path):
    root, source = Path(__file__).parents[1], tmp_path / "source"
    # A copy, as building leaves files behind.
    shutil.copytree(root / "hf_softlabel", source / "hf_softlabel", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(tmp_path / "installed")]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    there = {p.name for p in (tmp_path / "installed/hf_softlabel/experiments/page").iterdir()}
    assert there == {"page.html", "page.css", "page.js", "examples.js"}
