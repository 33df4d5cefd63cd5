"""What the report's page holds as data: examples for its browser, and figures as images."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..figures.style import looks
from ..metrics import kl_to_annotators
from .content import AnyPicture, Example, Report, Section

DIGITS = 4


def data_block(value: Any) -> str:
    """A script element that holds JSON and is not run."""
    return f'<script type="application/json">{_json(value)}</script>'


def _json(value: Any) -> str:
    # No "<", so that no text can end the element that it stands in.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


class Pixels(NamedTuple):
    """A figure as an image's address, with its size in CSS pixels."""

    address: str
    width: int
    height: int


def picture_pixels(picture: AnyPicture) -> Pixels:
    """As SVG or PNG, whichever is smaller."""
    files = {"image/svg+xml": picture.svg, "image/png": picture.png}
    mime = min(files, key=lambda name: len(files[name]))
    width, height = picture.size
    return Pixels(_address(mime, files[mime]), round(96 * width), round(96 * height))


def _address(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode('ascii')}"


def method_names(section: Section) -> list[str]:
    """The methods that its examples have predictions of, in the order in which they come."""
    return list(dict.fromkeys(method for example in section.examples for method in example.predictions))


def method_looks(report: Report) -> dict[str, dict[str, Any]]:
    """Of each method its name and colour, the same in all sections; striped where another has the colour too."""
    names = list(dict.fromkeys(name for section in report.sections for name in method_names(section)))
    seen: set[str] = set()
    found = {}
    for name, look in zip(names, looks(names), strict=True):
        found[name] = {"name": name, "colour": look.colour, "striped": look.colour in seen}
        seen.add(look.colour)
    return found


class Browser(NamedTuple):
    """The examples of a section as JSON, the most ambiguous first: `head` and each of `examples` on its own."""

    head: str
    examples: list[str]

    def block(self, count: int) -> str:
        """The script element with the first `count` examples."""
        inside = ",".join(self.examples[:count])
        return f'<script type="application/json">{{{self.head},"examples":[{inside}]}}</script>'


def section_browser(section: Section, methods: dict[str, dict[str, Any]]) -> Browser:
    names = method_names(section)
    examples = sorted(section.examples, key=lambda example: -_entropy(example))
    kls = {name: _kls(examples, name) for name in names}
    head = _json({"classes": list(section.class_names), "methods": [methods[name] for name in names]})
    return Browser(
        head[1:-1],
        [_json(_example(example, names, [kls[name][i] for name in names])) for i, example in enumerate(examples)],
    )


def _kls(examples: Sequence[Example], method: str) -> list[float | str | None]:
    """KL(human || prediction) of each example; JSON has no infinity, and None is for no prediction."""
    rows = [i for i, example in enumerate(examples) if method in example.predictions]
    q = np.array([examples[i].predictions[method] for i in rows], float)
    p = np.array([examples[i].human for i in rows], float)
    found: list[float | str | None] = [None] * len(examples)
    for i, kl in zip(rows, kl_to_annotators(q, p, per_example=True), strict=True):
        found[i] = "inf" if math.isinf(kl) else round(float(kl), DIGITS + 2)
    return found


def _entropy(example: Example) -> float:
    # Rounded before anything is ordered by it: the last bits of equal votes in another order of classes differ.
    return round(min(max(float(example.entropy), 0), 1), DIGITS + 2)


def _example(example: Example, names: Sequence[str], kls: list[float | str | None]) -> dict[str, Any]:
    human = np.asarray(example.human, float)
    predictions = [example.predictions.get(name) for name in names]
    return {
        "id": example.example_id,
        "text": example.text,
        "image": None if example.image is None else _image_address(example.image),
        "votes": example.votes,
        "entropy": _entropy(example),
        # Every class of a tie, as no order of the classes should decide.
        "majority": np.flatnonzero(np.isclose(human, human.max(), rtol=0, atol=1e-9)).tolist(),
        "people": _rounded(human),
        "predictions": [None if q is None else _rounded(q) for q in predictions],
        "kl": kls,
        "seeds": [example.seeds.get(name) for name in names],
    }


def _rounded(values: Sequence[float]) -> list[float | int]:
    # Whole numbers without ".0": most entries of many classes are 0.
    rounded = (round(float(value), DIGITS) for value in values)
    return [int(value) if value in (0, 1) else value for value in rounded]


def _image_address(content: bytes) -> str:
    return _address("image/png" if content.startswith(b"\x89PNG") else "image/jpeg", content)
