"""ChaosNLI (Nie et al., 2020): 100 human labels for each of 4,645 items of SNLI, MNLI and Abductive NLI."""

from __future__ import annotations

import json
import os

from datasets import Dataset, Features, Value, concatenate_datasets

from .errors import VotesError
from .sources import Source, check_totals, find_source
from .votes import votes_features

# The address in the authors' README (github.com/easonnie/ChaosNLI), with Dropbox's switch for the file itself instead
# of a page about it. Not tried from here; one other project notes that Dropbox answered "File Deleted" in September
# 2026. The error then says how to go on with a copy, which the sha256 shows to be the authors'.
ADDRESS = "https://www.dropbox.com/s/h4j7dqszmpt2679/chaosNLI_v1.0.zip?dl=1"
FILES = {
    "snli": ("chaosNLI_snli.jsonl", "99f9015ddda7d85f66a087452bc30d53974314fe27e7d589e2f41ad44bd509c1"),
    "mnli": ("chaosNLI_mnli_m.jsonl", "8eb49b589488e7b1a9ec95fb8a864bd50f0509b4f808eed0aed3f8167617664d"),
    "alphanli": ("chaosNLI_alphanli.jsonl", "f55817ecc11a02ba3030cd7d2c567d23843456809020723abad53f4fde024c9e"),
}
ITEMS = {"snli": 1514, "mnli": 1599, "alphanli": 1532}
# The two that have the same classes, as most work on ChaosNLI joins them.
JOINED = "snli+mnli"
VOTES_PER_ITEM = 100


def load_chaosnli(subset: str | None, sources: str | os.PathLike | None = None) -> Dataset:
    """Columns `premise` and `hypothesis` (alphanli: `obs1`, `obs2`, `hyp1`, `hyp2`), `votes`, `example_id` (the row in
    the authors' file, or in their files one after the other), `label` (the original gold label), `uid` and `source`.
    """
    if subset == JOINED:
        joined = concatenate_datasets([load_chaosnli(part, sources) for part in JOINED.split("+")])
        numbers = joined.features["example_id"]
        return joined.remove_columns("example_id").add_column("example_id", range(len(joined)), feature=numbers)
    if subset not in FILES:
        names = ", ".join([*FILES, JOINED])
        raise VotesError(f"ChaosNLI has the subsets {names}; choose one of them, not {subset!r}.")
    if subset == "alphanli":
        names, inputs, codes = ["hyp1", "hyp2"], ["obs1", "obs2", "hyp1", "hyp2"], [1, 2]
    else:
        names, inputs, codes = ["entailment", "neutral", "contradiction"], ["premise", "hypothesis"], ["e", "n", "c"]
    name, sha256 = FILES[subset]
    path = find_source(Source(name, ADDRESS, sha256), sources)
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    check_totals(
        path,
        {"items": len(rows), "votes": sum(sum(row["label_count"]) for row in rows)},
        {"items": ITEMS[subset], "votes": ITEMS[subset] * VOTES_PER_ITEM},
    )
    # `label_counter` leaves out the classes without votes; `label_count` has them all, always in this order.
    columns = {
        **{column: [row["example"][column] for row in rows] for column in inputs},
        "votes": [row["label_count"] for row in rows],
        "example_id": range(len(rows)),
        "label": [codes.index(row["old_label"]) for row in rows],
        "uid": [row["uid"] for row in rows],
        "source": [row["example"]["source"] for row in rows],
    }
    text = Value("string")
    features = {
        **dict.fromkeys(inputs, text),
        **votes_features(names),
        "uid": text,
        "source": text,
    }
    return Dataset.from_dict(columns, features=Features(features))
