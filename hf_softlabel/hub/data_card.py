"""A data card: whose votes these are, how many, how much people disagree, where they are from and their licence."""

from __future__ import annotations

from typing import Any

from datasets import Features, Image, Value
from huggingface_hub import DatasetCardData

from ..data.show import CLASSES_SHOWN, TEXT, Description, count_facts, entropy_histogram, shown_classes, vote_text
from ..data.votes import is_sparse
from .data_facts import KNOWN, DataFacts, data_facts, hub_id

# Stands in a built card for the repository's id, which is known at the push.
REPO_ID = "OWNER/NAME"
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")
TASKS = {"image": "image-classification", "choice": "multiple-choice", "text": "text-classification"}
COLUMNS = {
    "example_id": "a number that stays with the example through splits, shuffles and subsampling",
    "label": "the source's own label; null where it has none",
    "annotator_ids": "who voted, as the source names them",
    "annotations": "what each of them chose, in the same order: places in the list of classes, from 0",
    "uid": "the source's own id",
    "truth": "the distribution that the votes were drawn from",
}


def data_card(name: str, subset: str | None, sources: str | None, features: Features, found: Description) -> str:
    """YAML metadata and Markdown for a data set of votes: the same votes, the same card.

    Args:
        name, subset, sources: as [`load_votes`] takes them. Of paths nothing is told.
        found: what is in it.
    """
    facts = _facts(name, subset, sources)
    known = name in KNOWN or facts.hub_ids
    kind = "simulated votes" if facts.simulated else "annotator votes"
    title = f"{data_title(name, subset, sources)}: {kind}" if known else "Annotator votes"
    parts = [
        f"# {title}",
        f"Each example has all votes on {_classes(found)}, not only the label with the most. Who voted: "
        f"{facts.voters}.",
        f"## Use\n\n{_usage(found)}",
        f"## Votes\n\n{_votes(found)}",
        f"## Disagreement\n\n{_disagreement(found)}",
        f"## Columns\n\n{_columns(features)}",
        f"## Source\n\n{_origin(name, subset, facts)}",
        f"## Licence and citation\n\n{_licence(facts)}",
    ]
    return f"---\n{_metadata(facts, title, features, found).to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def data_title(name: str, subset: str | None, sources: str | None) -> str:
    """What a data set is called, without any path of this machine."""
    facts = _facts(name, subset, sources)
    return f"{facts.title} ({subset})" if subset and name in KNOWN else facts.title


def _facts(name: str, subset: str | None, sources: str | None) -> DataFacts:
    return data_facts(name, subset, hub_id(sources if name == "table" else name))


def _metadata(facts: DataFacts, title: str, features: Features, found: Description) -> DatasetCardData:
    """What the Hub reads: where the splits are, the licence if it is known, and words to find the set by."""
    files = [{"split": split, "path": f"data/{split}-*"} for split in found.splits]
    size = len(found.entropies)
    task = _task(features)
    return DatasetCardData(
        **facts.licence_metadata,
        pretty_name=title,
        task_categories=[TASKS[task]] if task else None,
        size_categories=[SIZES[min(max(len(str(size)) - 3, 0), len(SIZES) - 1)]],
        tags=["hf_softlabel", "annotator-votes", "soft-labels", "human-label-variation"],
        configs=[{"config_name": "default", "data_files": files}],
    )


def _task(features: Features) -> str | None:
    if any(isinstance(feature, Image) for feature in features.values()):
        return "image"
    if {"obs1", "obs2", "hyp1", "hyp2"} <= features.keys():
        return "choice"
    return "text" if any(feature in features.values() for feature in TEXT) else None


def _classes(found: Description) -> str:
    shown = ", ".join(found.names[:CLASSES_SHOWN])
    more = f" and {len(found.names) - CLASSES_SHOWN} more" if len(found.names) > CLASSES_SHOWN else ""
    return f"{len(found.names)} classes ({shown}{more})"


def _usage(found: Description) -> str:
    split = next(iter(found.splits))
    return f"""```python
from hf_softlabel import class_names, load_votes

votes = load_votes("{REPO_ID}")["{split}"]
print(class_names(votes), votes[0])
```

With `streaming=True` it is read as it is used. Without hf_softlabel, `datasets.load_dataset("{REPO_ID}")` reads the
same rows."""


def _votes(found: Description) -> str:
    splits = ", ".join(f"{key} {number:,}" for key, number in found.splits.items())
    rows = {"examples": f"{len(found.entropies):,} ({splits})", **count_facts(found)}
    lines = ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    lines += ["", "| class | share of the votes | examples in which it alone has the most |", "|---|---|---|"]
    for i in shown_classes(found):
        lines.append(f"| {_cell(found.names[i])} | {found.shares[i]:.1%} | {found.majorities[i]:,} |")
    if len(found.names) > CLASSES_SHOWN:
        lines.append(f"| and {len(found.names) - CLASSES_SHOWN} more | | |")
    return "\n".join(lines)


def _disagreement(found: Description) -> str:
    lines = [
        f"Entropy of each example's votes over log(classes), from 0 (all agree) to 1; its mean is "
        f"{found.entropies.mean():.3f}.",
        "",
        "```text",
        entropy_histogram(found.entropies),
        "```",
    ]
    if found.disagreed:
        lines += ["", "The examples with the most disagreement:", ""]
        lines += ["| example_id | entropy | votes |", "|---|---|---|"]
    for example in found.disagreed:
        lines.append(f"| {example.example_id} | {example.entropy:.3f} | {_cell(vote_text(example, found.names))} |")
    return "\n".join(lines)


def _columns(features: Features) -> str:
    lines = ["| column | what it holds |", "|---|---|"]
    for column in features:
        other = "an image" if isinstance(features[column], Image) else "from the source"
        meaning = _votes_column(features) if column == "votes" else COLUMNS.get(column, other)
        lines.append(f"| `{_cell(column)}` | {meaning} |")
    return "\n".join(lines)


def _votes_column(features: Features) -> str:
    if is_sparse(features):
        return "`labels`, the classes that have votes, and `counts`, how many"
    if features["votes"].feature == Value("float64"):
        return "the share of the votes that each class has, in the order of the classes"
    return "how many votes each class has, in the order of the classes"


def _origin(name: str, subset: str | None, facts: DataFacts) -> str:
    """Where the authors publish what this was made from."""
    match name:
        case "cifar10h":
            from ..data.cifar10h import COUNTS, IMAGES

            return (
                f"The votes are of [{COUNTS.name}]({COUNTS.address}) (sha256 `{COUNTS.sha256}`). The images are "
                f"CIFAR-10's: the test split of [{IMAGES}](https://huggingface.co/datasets/{IMAGES})."
            )
        case "chaosnli":
            from ..data.chaosnli import FILES

            files = [FILES[part] for part in subset.split("+")]
            listed = " and ".join(f"{file} (sha256 `{sha256}`)" for file, sha256 in files)
            address = "https://github.com/easonnie/ChaosNLI"
            return f"The file{'s' * (len(files) > 1)} {listed} that the [authors]({address}) publish."
        case "popquorn":
            from ..data.popquorn import FILES

            return f"The ratings that the authors publish as [{FILES[subset].published_as}]({FILES[subset].address})."
        case "synthetic":
            return f"Generated by `hf-softlabel data build synthetic --subset {subset}`."
    if facts.hub_ids:
        return f"[{facts.hub_ids[0]}](https://huggingface.co/datasets/{facts.hub_ids[0]})."
    return "Say here where the examples are from."


def _licence(facts: DataFacts) -> str:
    return f"{facts.licence}\n\n```bibtex\n{facts.citation}\n```" if facts.citation else facts.licence


def _cell(text: Any) -> str:
    """A text that does not end a cell of a table."""
    return str(text).replace("|", "\\|")
