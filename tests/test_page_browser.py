"""The report's page in a real browser: sorted, filtered, stepped through, copied, printed; no error and no request."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_reports import (
    CIFAR,
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

from hf_softlabel.experiments.content import Example, Report
from hf_softlabel.experiments.page import write_page
from hf_softlabel.experiments.tables import to_csv, to_latex, to_markdown

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")

IMAGES, TEXTS = examples(90, 10, images=True), examples(40, 3)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with sync_api.sync_playwright() as playwright:
        # Containers have no user namespaces for the sandbox, and a small /dev/shm.
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    return write_page(full_report(), tmp_path_factory.mktemp("full") / "report.html")


@pytest.fixture
def open_page(browser, tmp_path) -> Iterator:
    """Opens a page from the file system; at the end none may have logged, failed or asked for anything."""
    noise, contexts, asked, allowed = [], [], [], []

    def open_report(made: Report | Path, width: int = 1300, **options):
        path = made if isinstance(made, Path) else write_page(made, tmp_path / "a page.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("dialog", lambda dialog: noise.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        allowed.append(path.as_uri())
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert noise == []
    assert [url for url in asked if not url.startswith(("data:", *allowed))] == []


@pytest.fixture(scope="module")
def pictured(tmp_path_factory) -> Path:
    made = report(section("images", "Images", CIFAR, examples=IMAGES))
    return write_page(made, tmp_path_factory.mktemp("pictured") / "report.html")


@pytest.fixture
def viewer(open_page, pictured):
    """The example browser of 90 images of ten classes."""
    page = open_page(pictured)
    page.locator(".browser").scroll_into_view_if_needed()
    page.locator(".filters").wait_for()
    return page


def shown_ids(page) -> list[int]:
    """All examples in the order of the list, which grows while one steps to its end."""
    page.locator(".detail").click(position={"x": 5, "y": 5})
    page.keyboard.press("End")
    return page.locator(".list button").evaluate_all("all => all.map((one) => Number(one.dataset.id))")


def ordered(kept: list[Example], key) -> list[int]:
    """Ids by a key, the largest first; where keys are equal, the most ambiguous first."""
    return [e.example_id for e in sorted(sorted(kept, key=lambda e: -round(e.entropy, 6)), key=lambda e: -key(e))]


def kl(example: Example, method: str) -> float:
    pairs = zip(example.human, example.predictions[method], strict=True)
    return round(sum(p * math.log(p / q) for p, q in pairs if p > 0), 6)


def column(page, kind: str, index: int) -> list[str]:
    return page.locator(f"table.{kind} tbody tr > :nth-child({index + 1})").all_inner_texts()


def test_tables_sort_by_number_and_come_back(open_page):
    made = table()
    page = open_page(report(section("s", "S", NLI, tables=(made,))))
    names = list(METHODS)
    for j, head in enumerate(made.columns):
        button = page.locator("table.results thead button").nth(2 + j)
        header = page.locator("table.results thead th").nth(2 + j)
        means = {name: made.entry(i, j).mean for i, name in enumerate(names)}
        run = [name for name in names if not math.isnan(means[name])]
        blank = [name for name in names if math.isnan(means[name])]
        for state, wanted in (
            ("ascending", sorted(run, key=means.get) + blank),
            ("descending", sorted(run, key=means.get, reverse=True) + blank),
            ("none", names),
        ):
            button.click()
            assert header.get_attribute("aria-sort") == state
            assert column(page, "results", 0) == wanted, (head.title, state)
    assert page.locator("table.results [aria-sort=none]").count() == 2 + len(made.columns)


def test_tables_sort_by_keyboard_one_column_at_a_time(open_page):
    page = open_page(report(section("s", "S", NLI, tables=(table(),))))
    heads = page.locator("table.results thead button")
    heads.nth(0).focus()
    page.keyboard.press("Enter")
    assert column(page, "results", 0) == sorted(METHODS)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    states = [head.get_attribute("aria-sort") for head in page.locator("table.results thead th").all()]
    assert states == ["none", "none", "ascending", "none", "none", "none"]


def test_runs_sort_by_what_they_are(open_page):
    page = open_page(report())
    heads = page.locator("table.runs thead button")
    heads.nth(9).click()
    seconds = [run.metrics["train_seconds"] for run in runs()]
    assert [float(text) for text in column(page, "runs", 9)] == sorted(seconds)
    heads.nth(3).click()
    assert column(page, "runs", 3) == ["5"] * 5 + ["10"] * 5 + ["all"] * 10
    heads.nth(3).click()
    assert column(page, "runs", 3) == ["10"] * 5 + ["5"] * 5 + ["all"] * 10
    heads.nth(6).click()
    assert column(page, "runs", 6) == ["0.9000"] * 15 + [""] * 5


@pytest.mark.parametrize("allowed", [True, False])
def test_copied_tables_are_whole(open_page, allowed):
    first, second = table("one"), table("two", 2)
    made = report(section("s", "S", NLI, tables=(first, second)))
    page = open_page(made, permissions=["clipboard-read", "clipboard-write"])
    if not allowed:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    for i, one in enumerate((first, second)):
        wanted = {"CSV": to_csv([one]), "LaTeX": to_latex(one), "Markdown": to_markdown(one)}
        for name, text in wanted.items():
            page.locator(".copy").nth(i).get_by_role("button", name=name).click()
            page.get_by_text(f"{name} copied.").nth(0).wait_for()
            assert page.evaluate("navigator.clipboard.readText()") == text


def test_the_most_ambiguous_come_first(viewer):
    assert viewer.locator(".count").inner_text() == "90 of 90 shown"
    assert shown_ids(viewer) == ordered(IMAGES, lambda e: round(e.entropy, 6))


def test_class_filter(viewer):
    tied = 0
    for c, name in enumerate(CIFAR):
        kept = [e for e in IMAGES if e.human[c] == max(e.human)]
        tied += len(kept)
        if not kept:
            assert viewer.locator(f"select[name=class] option[value='{c}']").count() == 0
            continue
        viewer.locator("select[name=class]").select_option(f"{name} ({len(kept)})")
        assert viewer.locator(".count").inner_text() == f"{len(kept)} of 90 shown"
        assert shown_ids(viewer) == ordered(kept, lambda e: round(e.entropy, 6))
    assert tied > len(IMAGES)  # some have two most voted classes, and are found under both


@pytest.mark.parametrize("low, high", [(0, 0.4), (0.3, 0.7), (0.75, 1), (0.5, 0.5)])
def test_disagreement_filter(viewer, low, high):
    viewer.locator("[name=to]").fill(str(high))
    viewer.locator("[name=from]").fill(str(low))
    kept = [e for e in IMAGES if low <= round(e.entropy, 6) <= high]
    assert viewer.locator("[name=span]").inner_text() == f"{low:.2f} to {high:.2f}"
    assert viewer.locator(".count").inner_text() == f"{len(kept)} of 90 shown"
    if kept:
        assert shown_ids(viewer) == ordered(kept, lambda e: round(e.entropy, 6))


def test_ends_of_the_range_push_each_other(viewer):
    viewer.locator("[name=to]").fill("0.4")
    viewer.locator("[name=from]").focus()
    viewer.keyboard.press("End")
    assert viewer.locator("[name=span]").inner_text() == "1.00 to 1.00"
    viewer.locator("[name=to]").focus()
    viewer.keyboard.press("Home")
    viewer.keyboard.press("ArrowRight")
    assert viewer.locator("[name=span]").inner_text() == "0.00 to 0.01"
    # Arrow keys on a filter change the filter and not the example.
    assert viewer.locator(".place").is_hidden() or viewer.locator(".place").inner_text().startswith("1 of ")


def test_filters_work_together_and_with_orders(viewer):
    viewer.locator("[name=from]").fill("0.2")
    viewer.locator("select[name=order]").select_option("kl")
    viewer.locator("select[name=first]").select_option("majority")
    assert viewer.locator("select[name=second]").is_hidden()
    kept = [e for e in IMAGES if e.entropy >= 0.2]
    assert shown_ids(viewer) == ordered(kept, lambda e: kl(e, "majority"))
    viewer.locator("select[name=order]").select_option("gap")
    viewer.locator("select[name=second]").select_option("soft")
    wanted = ordered(kept, lambda e: kl(e, "majority") - kl(e, "soft"))
    assert shown_ids(viewer) == wanted
    first = next(e for e in IMAGES if e.example_id == wanted[0])
    gap = kl(first, "majority") - kl(first, "soft")
    assert viewer.locator(".list .key").first.inner_text() == f"{gap:.2f}"


def test_nothing_left_is_said_and_mended(viewer):
    assert viewer.locator(".empty").is_hidden()
    viewer.locator("[name=from]").fill("1")
    assert viewer.locator(".count").inner_text() == "0 of 90 shown"
    assert viewer.locator(".empty").is_visible() and viewer.locator(".detail").is_hidden()
    viewer.get_by_role("button", name="Show all examples").click()
    assert viewer.locator(".count").inner_text() == "90 of 90 shown"
    assert viewer.locator(".empty").is_hidden() and viewer.locator(".detail").is_visible()


def test_steps_by_buttons_keys_and_list(viewer):
    wanted = ordered(IMAGES, lambda e: round(e.entropy, 6))

    def current() -> tuple[int, str]:
        entry = viewer.locator(".list [aria-current]")
        assert entry.count() == 1
        detail = viewer.locator(".detail").get_attribute("data-id")
        assert entry.get_attribute("data-id") == detail
        return wanted.index(int(detail)), viewer.locator(".place").inner_text()

    assert current() == (0, "1 of 90")
    viewer.get_by_role("button", name="Previous").click(force=True)
    assert current() == (0, "1 of 90")
    viewer.get_by_role("button", name="Next").click()
    viewer.keyboard.press("ArrowRight")
    assert current() == (2, "3 of 90")
    viewer.keyboard.press("ArrowLeft")
    assert current() == (1, "2 of 90")
    viewer.keyboard.press("End")
    viewer.keyboard.press("ArrowRight")
    assert current() == (89, "90 of 90")
    assert viewer.get_by_role("button", name="Next").get_attribute("aria-disabled") == "true"
    viewer.keyboard.press("Home")
    viewer.locator(".list button").nth(7).click()
    assert current() == (7, "8 of 90")
    viewer.keyboard.press("ArrowDown")
    viewer.keyboard.press("ArrowDown")
    assert current() == (9, "10 of 90")
    assert viewer.evaluate("document.activeElement.getAttribute('aria-current')") == "true"


def test_bars_are_people_s_and_each_delivery_s(viewer):
    example = next(e for e in IMAGES if e.example_id == ordered(IMAGES, lambda e: round(e.entropy, 6))[0])
    heads = viewer.locator(".bars thead th")
    assert heads.all_inner_texts() == ["people", *METHODS]
    series = [example.human, *(example.predictions[method] for method in METHODS)]
    longest = max(max(values) for values in series)
    width = viewer.locator(".track").first.bounding_box()["width"]
    for c, name in enumerate(CIFAR):
        row = viewer.locator(".bars tbody tr").nth(c)
        assert row.locator("th").inner_text() == name
        assert row.locator(".number").all_inner_texts() == [f"{round(values[c], 4):.2f}" for values in series]
        for values, bar in zip(series, row.locator(".bar").all(), strict=True):
            assert bar.bounding_box()["width"] == pytest.approx(max(1, width * values[c] / longest), abs=0.6)
    found = viewer.locator(".bars tfoot tr.kl td[data-series]").all_inner_texts()
    assert found == [f"{kl(example, method):.3f}" for method in METHODS]
    least = min(METHODS, key=lambda method: kl(example, method))
    assert viewer.locator(".bars tfoot .best").get_attribute("data-series") == least
    assert viewer.locator(".bars tfoot tr:last-child td[data-series]").all_inner_texts() == ["2", "3", "4", "5"]
    facts = viewer.locator(".facts li").all_inner_texts()
    assert facts[:2] == [f"Example {example.example_id}", "20 votes"]
    assert facts[-1] == f"disagreement {example.entropy:.2f}"
    viewer.locator(".bars tbody tr").nth(3).locator("td").nth(2).hover()
    q, p = round(example.predictions["sls"][3], 4), round(example.human[3], 4)
    said = viewer.locator(".readout").inner_text().replace("−", "-")
    assert said == f"cat: sls {q:.3f}, people {p:.3f}, difference {q - p:+.3f}"


def test_checkboxes_hide_deliveries(viewer):
    viewer.get_by_label("sls", exact=True).uncheck()
    assert viewer.locator(".bars thead th").all_inner_texts() == ["people", "soft", "multipass", "majority"]
    viewer.keyboard.press("Tab")
    viewer.get_by_role("button", name="Next").click()
    assert viewer.locator(".bars thead th").all_inner_texts() == ["people", "soft", "multipass", "majority"]
    for method in ("soft", "multipass", "majority"):
        viewer.get_by_label(method, exact=True).uncheck()
    assert viewer.locator(".bars thead th").all_inner_texts() == ["people"]
    viewer.get_by_label("sls", exact=True).check()
    assert viewer.locator(".bars thead th").all_inner_texts() == ["people", "sls"]


def test_small_images_are_shown_as_pixels(viewer):
    image = viewer.locator(".input img.small")
    image.wait_for()
    assert image.evaluate("image => [image.naturalWidth, getComputedStyle(image).imageRendering]") == [32, "pixelated"]
    assert image.get_attribute("alt").startswith("Example 10")


def test_500_examples_are_not_all_drawn(open_page):
    page = open_page(report(section("s", "S", CIFAR, examples=examples(500, 10))))
    page.locator(".browser").scroll_into_view_if_needed()
    page.locator(".filters").wait_for()
    assert page.locator(".list li").count() < 150
    page.locator(".list").evaluate("list => list.scrollTo(0, list.scrollHeight)")
    page.locator(".list li").nth(100).wait_for(state="attached")
    assert len(set(shown_ids(page))) == 500


def test_many_classes_are_folded(open_page):
    given = examples(6, 100)
    page = open_page(report(section("s", "S", [f"class {c}" for c in range(100)], examples=given)))
    page.locator(".browser").scroll_into_view_if_needed()
    rows = page.locator(".bars tbody tr")
    rows.first.wait_for()
    first = max(given, key=lambda e: e.entropy)
    series = [first.human, *first.predictions.values()]
    most = {f"class {c}": max(round(values[c], 4) for values in series) for c in range(100)}
    found = page.locator(".bars tbody th").all_inner_texts()
    assert len(found) == 12 and sorted(most[name] for name in found) == sorted(most.values())[-12:]
    page.get_by_role("button", name="Show all 100 classes").click()
    assert page.locator(".bars tbody th").all_inner_texts() == list(most)
    page.get_by_role("button", name="Show only the 12 likeliest classes").click()
    assert rows.count() == 12


def test_hostile_texts_are_only_shown(open_page, full):
    page = open_page(full)
    root = page.locator(".browser").nth(2)
    root.scroll_into_view_if_needed()
    root.locator(".filters").wait_for()
    for text in NASTY:
        paragraphs = root.locator(".input p").all_inner_texts()
        clean = re.sub(r"\s+", " ", text.replace("\ud83d", "?"))
        assert [re.sub(r"\s+", " ", shown) for shown in paragraphs] == [clean, clean]
        root.get_by_role("button", name="Next").click(force=True)
    assert root.locator(".bars tbody th").all_inner_texts() == [NASTY[1], NASTY[3]]
    assert page.evaluate("window.broken") is None
    # Right-to-left text runs that way, though nobody said so.
    right = root.locator(".bars tbody th").nth(1)
    assert right.evaluate("cell => getComputedStyle(cell).direction") == "rtl"


def visit_all(page) -> None:
    for root in page.locator(".browser").all():
        root.scroll_into_view_if_needed()
        root.locator(".filters").wait_for()


@pytest.mark.parametrize("width", [320, 400, 800, 1400])
def test_the_page_never_scrolls_sideways(open_page, full, width):
    page = open_page(full, width)
    visit_all(page)
    for root in page.locator(".browser").all():
        root.locator("select[name=order]").select_option(index=0)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator(".scroll:has(table.runs)")
    inner, outer = box.evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert outer <= width and (width > 1000 or inner > outer)
    assert "auto" in box.evaluate("box => getComputedStyle(box).overflowX")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(open_page, full, scheme):
    page = open_page(full, color_scheme=scheme)
    visit_all(page)
    colours = page.evaluate("""() => {
      const ground = (element) => {
        const colour = getComputedStyle(element).backgroundColor;
        return colour === "rgba(0, 0, 0, 0)" ? ground(element.parentElement) : colour;
      };
      const kinds = ["h1", ".provenance", ".findings li", ".caption", ".source", ".results .value", ".results .test",
        ".results .published", ".legend", ".remarks", ".missing", ".runs td", "figcaption", ".field", ".count",
        ".list .words", ".list .key", ".facts", ".bars .number:not(.nil)", ".bars tfoot th", ".readout", ".contents a",
        ".copy button", "thead button"];
      return kinds.map((kind) => {
        const element = document.querySelector(kind);
        return [kind, getComputedStyle(element).color, ground(element)];
      });
    }""")

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for kind, text, ground in colours:
        low, high = sorted((luminance(text), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (kind, text, ground)  # WCAG AA
        assert (luminance(ground) > 0.5) == (scheme == "light"), kind


def test_print_shows_everything_and_no_controls(open_page, full):
    page = open_page(full, 700, color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator(".bars").count() == 4
    for hidden in (".filters", ".copy", ".contents", ".steps", ".strip"):
        assert page.locator(hidden).first.is_hidden(), hidden
    for box in page.locator(".scroll").all():
        assert box.evaluate("box => getComputedStyle(box).overflowY") == "visible"
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_without_scripts_the_numbers_are_there(open_page, full):
    page = open_page(full, java_script_enabled=False)
    assert page.locator("table.results").first.is_visible() and page.locator("figure img").first.is_visible()
    said = page.locator("noscript p").first
    assert said.is_visible() and said.inner_text() == "The examples need JavaScript."
    assert page.locator(".browser").first.is_hidden()


def test_figures_and_contents(open_page):
    texts = section("t", "T", NLI, examples=TEXTS, pictures=(picture("a"), picture("b", 1, 8)), tables=(table(),))
    page = open_page(report(texts), 1300)
    sizes = page.locator("figure img").evaluate_all("all => all.map((one) => [one.naturalWidth > 0, one.clientWidth])")
    assert [loaded for loaded, _ in sizes] == [True, True] and sizes[1][1] > sizes[0][1]
    page.locator(".contents a", has_text="Examples").click()
    page.locator(".filters").wait_for()
    page.locator(".contents [aria-current=true]", has_text="Examples").wait_for()
    assert page.locator("#t-examples").bounding_box()["y"] < 450
    assert shown_ids(page) == ordered(TEXTS, lambda e: round(e.entropy, 6))


def test_an_empty_report_opens(open_page):
    page = open_page(report(findings=(), runs=(), missing=(), copies=(), notes=()))
    assert page.locator("h1").inner_text() == "Learning from annotator votes"
