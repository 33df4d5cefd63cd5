"""What is in a data set of votes: counts, disagreement, and the examples on which people disagree most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Value

from ..metrics import entropy
from ..metrics.arrays import human
from .errors import VotesError
from .votes import class_names, gold_labels, validate_votes

BINS = 10
BAR = 40
CLASSES_SHOWN = 20
TEXT_WIDTH = 100
TEXT = (Value("string"), Value("large_string"))
# Eighths of a character, so that a bar is as long as its number.
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Disagreement:
    """One example on which people disagree.

    Args:
        entropy: over log C, from 0 to 1.
        votes: (C,), counts or probabilities.
        inputs: its texts by column, shortened.
    """

    split: str
    example_id: int
    entropy: float
    votes: np.ndarray
    inputs: dict[str, str]


@dataclass(frozen=True)
class Description:
    """What is in a data set of votes, over all its splits.

    Args:
        splits: the number of examples of each.
        totals: (N,) votes of each example; None if the data set has probabilities.
        shares: (C,), the mean distribution.
        majorities: (C,), of how many examples a class alone has the most votes.
        entropies: (N,), over log C, from 0 to 1.
        ties: in how many examples several classes have the most votes.
        annotators: (A,) how many votes each annotator gave; None where they are not known.
        gold, agreeing: examples with a gold label, and how many of these have it as their only majority.
        disagreed: the examples with the highest entropy, none of them unanimous.
    """

    splits: dict[str, int]
    names: list[str]
    totals: np.ndarray | None
    shares: np.ndarray
    majorities: np.ndarray
    entropies: np.ndarray
    ties: int
    annotators: np.ndarray | None
    gold: int
    agreeing: int
    disagreed: list[Disagreement]


def describe_votes(splits: Mapping[str, Dataset], examples: int = 5) -> Description:
    """Describe a data set by its splits, with so many of the most disagreed-on examples."""
    names = class_names(next(iter(splits.values())))
    parts = {key: validate_votes(dataset) for key, dataset in splits.items()}
    votes = np.concatenate(list(parts.values()))
    p = human(votes)
    # Shares that are equal but for their last bit are a tie.
    most = p.round(12) == p.round(12).max(-1, keepdims=True)
    alone = most.sum(-1) == 1
    majority = np.where(alone, most.argmax(-1), -1)
    gold = np.concatenate([gold_labels(dataset) for dataset in splits.values()])
    # Rounding leaves 1 + 1e-16 for even votes, which no bin would hold; + 0 makes -0 of unanimous ones 0.
    entropies = np.minimum(entropy(p) / math.log(len(names)), 1) + 0.0
    return Description(
        splits={key: len(dataset) for key, dataset in splits.items()},
        names=names,
        totals=votes.sum(-1) if votes.dtype.kind != "f" else None,
        shares=p.mean(0) if votes.dtype.kind == "f" else votes.sum(0) / votes.sum(),
        majorities=np.bincount(majority[alone], minlength=len(names)),
        entropies=entropies,
        ties=int((~alone).sum()),
        annotators=_votes_by_annotator(splits.values()),
        gold=int((gold >= 0).sum()),
        agreeing=int(((gold >= 0) & (gold == majority)).sum()),
        disagreed=_most_disagreed(splits, votes, entropies, examples),
    )


def entropy_histogram(entropies: np.ndarray, blocks: bool = True) -> str:
    """Entropies (N,) from 0 to 1 as one bar per tenth, of block characters or of plain `#`."""
    counts, edges = np.histogram(entropies, BINS, range=(0, 1))
    widest = len(f"{counts.max():,}")
    lines = []
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        bar = _bar(BAR * count / counts.max(), blocks)
        lines.append(f"{low:.1f} to {high:.1f} {count:>{widest},} {bar}".rstrip())
    return "\n".join(lines)


def format_description(title: str, found: Description, blocks: bool = True) -> str:
    """The whole text for a terminal; without `blocks`, bars are plain ASCII."""
    size = len(found.entropies)
    several = ", ".join(f"{key} {number:,}" for key, number in found.splits.items())
    lines = [title, f"  examples    {size:,} ({several})", f"  classes     {_listed(found.names)}"]
    lines += [f"  {name:<11} {value}" for name, value in count_facts(found).items()]
    lines += ["", f"entropy of the votes / log(classes), mean {found.entropies.mean():.3f}"]
    lines += [f"  {line}" for line in entropy_histogram(found.entropies, blocks).splitlines()]
    width = max(len("class"), *(len(found.names[i]) for i in shown_classes(found)))
    lines += ["", f"  {'class':<{width}}   votes  majority of"]
    for i in shown_classes(found):
        lines.append(f"  {found.names[i]:<{width}}  {found.shares[i]:6.1%}  {found.majorities[i]:,}")
    if len(found.names) > CLASSES_SHOWN:
        lines.append(f"  and {len(found.names) - CLASSES_SHOWN} more")
    if found.disagreed:
        lines += ["", "most disagreed on"]
    for example in found.disagreed:
        place = f"{example.split} " if len(found.splits) > 1 else ""
        lines.append(
            f"  {place}{example.example_id}  entropy {example.entropy:.3f}  {vote_text(example, found.names)}"
        )
        lines += [f"      {column}: {text}" for column, text in example.inputs.items()]
    return "\n".join(lines)


def count_facts(found: Description) -> dict[str, str]:
    """Numbers of votes, people and agreement, in words."""
    size, facts = len(found.entropies), {}
    if found.totals is None:
        facts["votes"] = "probabilities; how many people voted is not known"
    else:
        facts["votes"] = f"{found.totals.sum():,}; {_range(found.totals)} per example"
    facts["annotators"] = "not named"
    if found.annotators is not None:
        facts["annotators"] = f"{len(found.annotators):,}; {_range(found.annotators)} votes each"
    unanimous = int((found.entropies == 0).sum())
    facts["unanimous"] = f"{unanimous:,} of the examples ({unanimous / size:.1%})"
    facts["ties"] = f"{found.ties:,} of the examples ({found.ties / size:.1%}), which have no single majority"
    facts["gold label"] = "none"
    if found.gold:
        agreeing = found.agreeing / found.gold
        facts["gold label"] = f"of {found.gold:,} examples; the majority agrees with it in {agreeing:.1%}"
    return facts


def shown_classes(found: Description) -> list[int]:
    """All classes in their order; of very many, the most frequent."""
    if len(found.names) <= CLASSES_SHOWN:
        return list(range(len(found.names)))
    return np.argsort(-found.shares, kind="stable")[:CLASSES_SHOWN].tolist()


def vote_text(example: Disagreement, names: Sequence[str]) -> str:
    """'yes: 5, no: 4', the classes with votes, most first."""
    order = [i for i in np.argsort(-example.votes, kind="stable") if example.votes[i] > 0]
    shown = ", ".join(f"{names[i]}: {example.votes[i]:.4g}" for i in order[:6])
    return shown if len(order) <= 6 else f"{shown} and {len(order) - 6} more"


def _range(numbers: np.ndarray) -> str:
    if numbers.min() == numbers.max():
        return f"{numbers.min():,}"
    return f"{numbers.min():,} to {numbers.max():,} (median {np.median(numbers):g})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - CLASSES_SHOWN} more" if len(names) > CLASSES_SHOWN else ""
    return f"{len(names)}: {', '.join(names[:CLASSES_SHOWN])}{more}"


def _bar(length: float, blocks: bool) -> str:
    if not blocks:
        # What is there must be seen, be it ever so little.
        return "#" * max(round(length), int(length > 0))
    eighths = max(round(8 * length), int(length > 0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _votes_by_annotator(splits: Sequence[Dataset]) -> np.ndarray | None:
    if not all("annotator_ids" in dataset.column_names for dataset in splits):
        return None
    people = [dataset.with_format("arrow")["annotator_ids"][:] for dataset in splits]
    ids = np.concatenate([pc.list_flatten(column).to_numpy(zero_copy_only=False) for column in people])
    return np.unique(ids, return_counts=True)[1] if len(ids) else None


def _most_disagreed(
    splits: Mapping[str, Dataset], votes: np.ndarray, entropies: np.ndarray, examples: int
) -> list[Disagreement]:
    place = [(key, row) for key, dataset in splits.items() for row in range(len(dataset))]
    found = []
    order = np.argsort(-entropies.round(12), kind="stable")[:examples]
    for i in order[entropies[order] > 0]:
        key, row = place[i]
        found.append(
            Disagreement(key, splits[key]["example_id"][row], float(entropies[i]), votes[i], _inputs(splits[key], row))
        )
    return found


def _inputs(dataset: Dataset, row: int) -> dict[str, str]:
    """The texts of a row, shortened; empty for an image, which its id must stand for."""
    from .text import text_columns_of

    try:
        columns = text_columns_of(dataset.column_names)
    except VotesError:  # columns of other names: all that hold text
        columns = [name for name, feature in dataset.features.items() if feature in TEXT]
    values = dataset.select_columns(list(columns))[row] if columns else {}
    return {name: shortened(values[name]) for name in columns if values[name]}


def shortened(text: Any, width: int = TEXT_WIDTH) -> str:
    """A text on one line, cut at a word, without characters that would act on a terminal."""
    words = "".join(c if c.isprintable() else " " for c in str(text)).split()
    line = " ".join(words)
    if len(line) <= width:
        return line
    return line[: width - 3].rsplit(" ", 1)[0] + "..."
