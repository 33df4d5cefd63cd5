"""The report as one HTML page that needs no network: summary, tables, figures, an example browser, the runs.

The assets lie in `page/`: a template, a style sheet and two scripts. Tables are written whole, so that the page can be
read and printed without its scripts, which only sort them, copy them and show examples.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from ..checkpoint import write_text_atomically
from ..data.errors import VotesError
from .content import AnyPicture, Report, Section
from .page_data import Browser, Pixels, method_looks, picture_pixels, section_browser
from .page_tables import paragraph, remarks, results_html, runs_html, source_html

# Bytes: what mail and chat programs still take.
LIMIT = 15_000_000
# Wider figures have a row of the page for themselves.
WIDE = 560


def write_page(report: Report, path: str | Path) -> Path:
    """Write the page, whole or not at all."""
    path = Path(path)
    text = page_html(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, text)
    return path


def page_html(report: Report, limit: int = LIMIT) -> str:
    """The page, in at most so many bytes.

    What does not fit is left out and said to be: first the least ambiguous examples of all sections alike, then the
    largest figures.
    """
    drawn = [picture_pixels(picture) for picture in _pictures(report)]
    methods = method_looks(report)
    browsers = [section_browser(section, methods) for section in report.sections]
    text = _page(report, drawn, browsers, max((len(browser.examples) for browser in browsers), default=0))
    if _size(text) <= limit:
        return text
    while (bare := _size(_page(report, drawn, browsers, 0))) > limit and any(pixels.address for pixels in drawn):
        largest = max(range(len(drawn)), key=lambda i: len(drawn[i].address))
        drawn[largest] = drawn[largest]._replace(address="")
    # A browser's frame, and the digits in what is said of it, come with its first example.
    frames = sum(_size(browser.block(0)) + 100 for browser in browsers)
    text = _page(report, drawn, browsers, _examples_that_fit(browsers, limit - bare - frames))
    if _size(text) > limit:
        raise VotesError(
            f"The tables of {report.folder} alone need {_size(text)} bytes, and a page may have {limit}: report on "
            "fewer runs at once, such as one grid's folder."
        )
    return text


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _pictures(report: Report) -> list[AnyPicture]:
    """All figures, in the order in which the page shows them."""
    return [*report.pictures, *(picture for section in report.sections for picture in section.pictures)]


def _examples_that_fit(browsers: Sequence[Browser], room: int) -> int:
    """How many examples each section may have, so that all of them together need no more than `room` bytes."""
    count = 0
    for i in range(max((len(browser.examples) for browser in browsers), default=0)):
        room -= sum(_size(browser.examples[i]) + 1 for browser in browsers if i < len(browser.examples))
        if room < 0:
            break
        count = i + 1
    return count


def _page(report: Report, drawn: Sequence[Pixels], browsers: Sequence[Browser], count: int) -> str:
    """The page with the first `count` examples of each section."""
    anchor, images = _anchors(), iter(drawn)
    links: list[tuple[str, str, list[tuple[str, str]]]] = [("summary", "Summary", [])]
    body = []
    if report.tables or report.pictures:
        inner: list[tuple[str, str]] = []
        links.append((anchor("overview"), "All settings", inner))
        content = _tables_and_figures(report, "overview", anchor, images, inner)
        body.append(f'<section class="part" id="{links[-1][0]}">\n<h2>All settings</h2>\n{content}\n</section>')
    for section, browser in zip(report.sections, browsers, strict=True):
        inner = []
        links.append((anchor(section.key), section.title, inner))
        content = _tables_and_figures(section, section.key, anchor, images, inner)
        if browser.examples:
            inner.append((anchor(f"{section.key}-examples"), "Examples"))
            content += _browser_html(browser, count, *inner[-1])
        body.append(
            f'<section class="part" id="{links[-1][0]}">\n<h2 dir="auto">{escape(section.title)}</h2>\n'
            f"{paragraph(section.scale, 'scale')}\n{remarks(section.findings, 'findings')}\n{content}\n</section>"
        )
    links.append(("runs", "Runs", []))
    body.append(runs_html(report))
    assets = files(__package__) / "page"
    script = (
        "\n" + "\n".join((assets / name).read_text(encoding="utf-8") for name in ("page.js", "examples.js")) + "\n"
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    text = Template((assets / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(report.title),
        style=(assets / "page.css").read_text(encoding="utf-8"),
        # Text of the data can hold no script that runs: only this one does.
        script_hash=f"'sha256-{digest}'",
        script=script,
        contents=_contents(links),
        provenance=_provenance(report),
        summary=remarks(report.findings, "findings"),
        body="\n".join(body),
    )
    # Damaged texts: half of a surrogate pair cannot be written, and HTML has no zero character.
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def _anchors() -> Callable[[str], str]:
    """Turns keys into ids of the page, each its own."""
    used = {"summary", "runs", "browser-template"}

    def anchor(key: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-") or "part"
        name, number = plain, 1
        while name in used:
            number += 1
            name = f"{plain}-{number}"
        used.add(name)
        return name

    return anchor


def _contents(links: Sequence[tuple[str, str, list[tuple[str, str]]]]) -> str:
    def item(anchor: str, title: str, inner: Sequence[tuple[str, str]] = ()) -> str:
        below = "".join(item(*one) for one in inner)
        return f'<li><a href="#{anchor}" dir="auto">{escape(title)}</a>{f"<ul>{below}</ul>" if below else ""}</li>'

    return f"<ul>{''.join(item(*link) for link in links)}</ul>"


def _provenance(report: Report) -> str:
    """Where the numbers come from: folder, runs, settings, versions. No date: the same runs give the same page."""
    counts = [_plural(len(report.runs), "run"), _plural(len(report.sections), "setting")]
    if report.missing:
        counts.append(f"{len(report.missing)} not finished")
    versions: dict[str, list[str]] = {}
    for run in report.runs:
        for name, version in run.metrics.get("versions", {}).items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)
    first = (
        f"From the folder <b>{escape(report.folder.resolve().name)}</b> by hf-softlabel report: {', '.join(counts)}."
    )
    second = " · ".join(f"{name} {' and '.join(found)}" for name, found in versions.items())
    return f'<div class="provenance"><p>{first}</p>{f"<p>{escape(second)}</p>" if second else ""}</div>'


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _tables_and_figures(
    part: Report | Section,
    key: str,
    anchor: Callable[[str], str],
    images: Iterator[Pixels],
    links: list[tuple[str, str]],
) -> str:
    """Tables and figures of the report or of a section; takes as many of `images` and adds to `links`."""
    out = []
    for table in part.tables:
        links.append((anchor(table.key), table.title))
        out.append(results_html(table, links[-1][0]))
    if part.pictures:
        links.append((anchor(f"{key}-figures"), "Figures"))
        figures = "\n".join(_figure_html(picture, next(images), anchor(picture.key)) for picture in part.pictures)
        out.append(f'<div class="figures" id="{links[-1][0]}">\n{figures}\n</div>')
    return "\n".join(out)


def _figure_html(picture: AnyPicture, pixels: Pixels, anchor: str) -> str:
    kind = ' class="wide"' if pixels.width > WIDE else ""
    image = f'<p class="missing">Left out to keep this page small: see the file {escape(picture.key)}.</p>'
    if pixels.address:
        image = (
            f'<div class="plate"><img src="{pixels.address}" width="{pixels.width}" height="{pixels.height}" '
            f'alt="{escape(f"{picture.title}. {picture.caption}")}"></div>'
        )
    caption = f"<b>{escape(picture.title)}</b>{source_html(picture.source)} {escape(picture.caption)}"
    return f'<figure{kind} id="{anchor}">{image}<figcaption dir="auto">{caption}</figcaption></figure>'


def _browser_html(browser: Browser, count: int, anchor: str, title: str) -> str:
    total = len(browser.examples)
    note = "Held-out examples: what people voted, beside the mean prediction of each delivery over its seeds."
    if count < total:
        note += f" Only the {count} most ambiguous of {total} are here, to keep this page small."
    frame = f'<div class="browser" tabindex="-1">{browser.block(count)}</div>' if count else ""
    return f"""
<section class="sheet" id="{anchor}">
<h3>{title}</h3>
{paragraph(note, "caption")}
<noscript><p class="missing">The examples need JavaScript.</p></noscript>
{frame}
</section>"""
