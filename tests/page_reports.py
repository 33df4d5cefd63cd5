"""Hand-made reports for the tests of the page: no runs are needed, and every number is known."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from hf_softlabel.experiments.content import Example, Picture, Report, Section
from hf_softlabel.experiments.runs import Missing, Run
from hf_softlabel.experiments.tables import Column, Entry, Published, Table, with_tests
from hf_softlabel.figures.style import LOOKS, new_figure, styled

METHODS = ("soft", "sls", "multipass", "majority")
# What would break a page that does not escape, wrap or isolate it.
NASTY = (
    "</script><script>window.broken = 1</script>",
    "\"quotes\" & 'apostrophes' <b>tags</b> &amp; ${dollar} {{braces}}",
    "<!-- a comment that is not closed",
    "שלום עולם: right to left, מימין לשמאל",
    "emoji 🦄👩‍👩‍👧 and \u2028 separators",
    "w" + "o" * 400 + "rd",
    "half a pair \ud83d and a \x00 zero",
)
FOLDER = Path("runs/a <folder> & more")


def entropy(p: Sequence[float]) -> float:
    p = np.asarray(p, float)
    return float(-(p[p > 0] * np.log(p[p > 0])).sum() / np.log(len(p)))


def png(generator: np.random.Generator, side: int = 32) -> bytes:
    out = io.BytesIO()
    coarse = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(out, "PNG")
    return out.getvalue()


def examples(
    count: int, classes: int, methods: Sequence[str] = METHODS, images: bool = False, side: int = 32
) -> list[Example]:
    """Votes from unanimous to evenly split; predictions are people's, blurred more for later methods."""
    generator = np.random.default_rng(classes)
    made = []
    for i in range(count):
        votes = generator.multinomial(20, generator.dirichlet(np.full(classes, 10 ** generator.uniform(-1.5, 0.5))))
        human = votes / votes.sum()
        predictions = {}
        for m, method in enumerate(methods):
            q = (human + 0.05 + generator.dirichlet(np.ones(classes)) * (m + 1) * 0.3) ** (1 + m / 2)
            predictions[method] = q / q.sum()
        text = None if images else f"The man no. {i} plays a guitar on the beach.\nA person makes music outside."
        image = png(generator, side) if images else None
        seeds = {method: 2 + m for m, method in enumerate(methods)}
        made.append(Example(1000 + i, text, image, human, 20, entropy(human), predictions, seeds))
    return made


def table(
    key: str = "main", seeds: int = 5, blanks: Sequence[tuple[int, int]] = ((2, 1),), tests: bool = True
) -> Table:
    """Four deliveries and four scores; the rows are not in the order of any score."""
    generator = np.random.default_rng(7)
    columns = (
        Column("soft NLL", True),
        Column("accuracy", False, 3),
        Column("λ max", None, 1),
        Column("OOD AUROC, far", False),
    )
    centres = ((0.55, 0.901, 31.0, 0.93), (0.5, 0.888, 102.0, 0.91), (0.52, 0, 9.5, 0.95), (0.9, 0.905, 250.0, 0.88))
    entries = {}
    for i, centre in enumerate(centres):
        for j, value in enumerate(centre):
            scores = {} if (i, j) in blanks else dict(enumerate(value * (1 + 0.02 * generator.normal(size=seeds))))
            paper = Published(round(value * 0.97, 3), 0.012, 0.031 if i else None) if j == 0 else None
            entries[i, j] = Entry({seed: float(score) for seed, score in scores.items()}, paper=paper)
    made = Table(
        key, "Main comparison", "Scores of the best checkpoint on the held-out split.", "delivery", columns, METHODS,
        entries, source="Table 2 of Same Target, Different Basins", reference="soft", one_sided=True,
    )  # fmt: skip
    return with_tests(made, lambda i, j: (0, j)) if tests else made


def picture(key: str, seed: int = 0, width: float = 5, points: int = 12) -> Picture:
    generator = np.random.default_rng(seed)
    with styled():
        figure, axes = new_figure(width, 3.4)
        for name in METHODS:
            look = LOOKS[name]
            line = np.exp(-np.linspace(0, 2, points)) + 0.08 * generator.normal(size=points)
            axes[0, 0].plot(line, color=look.colour, linestyle=look.line, marker=look.marker, label=name)
        axes[0, 0].set_xlabel("epoch")
        axes[0, 0].set_ylabel("soft NLL")
        axes[0, 0].legend()
    source = "Same Target, Different Basins, Figure 8; Soft-Label Training Preserves Epistemic Uncertainty, Figure 5"
    return Picture(key, "Dynamics", "Soft NLL of the eval split, mean over seeds.", figure, source)


def runs(seeds: int = 5) -> list[Run]:
    made = []
    for m, method in enumerate(METHODS):
        for seed in range(seeds):
            metrics = {
                "soft_nll": 0.5 + 0.1 * m + 0.01 * seed, "kl": 0.2 + 0.1 * m, "accuracy": None if m == 3 else 0.9,
                "entropy_correlation": float("nan") if m == 2 else 0.4, "world_size": 1,
                "train_seconds": 9.5 * 10 ** (seed % 3), "ledger_digest": f"{m}{seed}f3a9c0d2b4e6f8"[:16],
                "versions": {"hf_softlabel": "0.1.0", "torch": "2.15.0", "transformers": f"5.2{seed % 2}.0"},
            }  # fmt: skip
            config = {"delivery": method, "seed": seed, "votes_per_example": (None, 5, 10)[m % 3]}
            made.append(Run(FOLDER / "grid" / f"{method}-seed{seed}", config, metrics))
    return made


def section(key: str, title: str, classes: Sequence[str], **content) -> Section:
    given = {"findings": (), "tables": (), "pictures": (), "examples": ()} | content
    return Section(
        key, title, "2,000 training examples, 20 epochs; the paper: 10,000 and 200.", **given, class_names=classes
    )


CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NLI = ("entailment", "neutral", "contradiction")


def report(*sections: Section, **content) -> Report:
    given = {
        "title": "Learning from annotator votes",
        "folder": FOLDER,
        "findings": (
            "On cifar10h, no delivery differs from soft labels by more than the seeds do.",
            "With 5 seeds and 12 tests no comparison can pass Holm: 9 seeds would be needed.",
        ),
        "tables": (),
        "pictures": (),
        "runs": runs(),
        "missing": (Missing(FOLDER / "grid" / "mixup-seed4", "main", "not started"),),
        "copies": ((FOLDER / "again", FOLDER / "grid" / "soft-seed0"),),
        "notes": ("Seed 3 of majority has no pair.",),
    } | content
    return Report(sections=sections, **given)


def full_report() -> Report:
    """Images of 10 classes, texts of 3, nasty strings of 2, and 100 classes."""
    images = section(
        "cifar10h-small", "CIFAR-10H, resnet18, width 0.25", CIFAR, tables=(table(), table("second", tests=False)),
        findings=("majority has the highest soft NLL in each of 5 seeds (Holm 0.09: not shown by this many).",),
        pictures=(picture("dynamics"), picture("reliability", 1), picture("wide", 2, 9)),
        examples=examples(120, 10, images=True),
    )  # fmt: skip
    texts = section(
        "chaosnli", "ChaosNLI, bert-tiny, 3 epochs", NLI, examples=examples(40, 3), tables=(table("<nli>", 2),)
    )
    nasty = [
        Example(i, f"{text}\n{text}", None, (0.5, 0.5), None, 1.0 - i / 100, {"soft": (0.9, 0.1)}, {"soft": 1})
        for i, text in enumerate(NASTY)
    ]
    strange = section("cifar10h-small", NASTY[0], (NASTY[1], NASTY[3]), examples=nasty, findings=NASTY)
    many = section("many", "100 classes", [f"class {c}" for c in range(100)], examples=examples(15, 100))
    empty = section("Runs", "Nothing yet", NLI)
    return report(images, texts, strange, many, empty, tables=(table("overall", 8),))
