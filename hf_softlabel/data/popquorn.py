"""POPQUORN (Pei and Jurgens, 2023): ratings from 1 to 5 by a representative crowd, with the ids of the annotators."""

from __future__ import annotations

import os

import pandas as pd
from datasets import Dataset

from .annotations import votes_from_annotations
from .errors import VotesError
from .sources import Source, check_totals, find_source

_REPOSITORY = "https://raw.githubusercontent.com/Jiaxin-Pei/Potato-Prolific-Dataset/main/dataset"
FILES = {
    "offensiveness": Source(
        name="offensiveness_raw_data.csv",
        address=f"{_REPOSITORY}/offensiveness/raw_data.csv",
        sha256="fb0589093d45da76bf4ef4d0abff679b540bdd5b17af5764913b3ccd0a069e1e",
        published_as="offensiveness/raw_data.csv",
    ),
    # Path taken from others' code, not seen. That code reads demographic columns which the copy we test with lacks, so
    # the ratings are verified and not the bytes.
    "politeness": Source(
        name="politeness_raw_data.csv",
        address=f"{_REPOSITORY}/politeness_rating/raw_data.csv",
        sha256=None,
        published_as="politeness_rating/raw_data.csv",
    ),
}
NAMES = ["1", "2", "3", "4", "5"]
# Items, annotators, and the ratings 1 to 5.
TOTALS = {
    "offensiveness": (1500, 262, 7516, 2190, 1590, 1039, 701),
    "politeness": (3718, 506, 2797, 3477, 7269, 6235, 5264),
}


def load_popquorn(subset: str | None, sources: str | os.PathLike | None = None) -> Dataset:
    """Columns `text`, `votes` (5 counts), `example_id` (the source's instance_id), `label` (null: there is no gold
    label), `annotator_ids` and, parallel to it, `annotations` (class indices: the rating less 1).
    """
    if subset not in FILES:
        raise VotesError(f"POPQUORN has the subsets {', '.join(FILES)}; choose one of them, not {subset!r}.")
    path = find_source(FILES[subset], sources)
    table = pd.read_csv(path, keep_default_na=False)
    ratings = table[subset].value_counts()
    found = [table["instance_id"].nunique(), table["user_id"].nunique(), *(ratings.get(int(n), 0) for n in NAMES)]
    meaning = ["items", "annotators", *(f"ratings of {n}" for n in NAMES)]
    check_totals(
        path,
        dict(zip(meaning, map(int, found), strict=True)),
        dict(zip(meaning, TOTALS[subset], strict=True)),
    )
    return votes_from_annotations(
        table, item="instance_id", label=subset, annotator="user_id", names=NAMES, keep=["text"]
    )
