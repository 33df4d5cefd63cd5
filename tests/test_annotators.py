"""Votes split by who gave them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from hf_softlabel import load_votes
from hf_softlabel.config import DataConfig
from hf_softlabel.data.annotations import votes_from_annotations
from hf_softlabel.data.annotators import split_annotators
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.votes import dense_votes
from hf_softlabel.splits import load_splits

CLASSES = ["no", "perhaps", "yes"]


def crowd(items: int = 40, people: int = 10, seed: int = 0):
    """Person k gives class k % 3 to everything they see, and sees about half of the items."""
    rng = np.random.default_rng(seed)
    rows = [(i, f"p{k}") for i in range(items) for k in range(people) if rng.random() < 0.5]
    table = {
        "item": [i for i, _ in rows],
        "who": [who for _, who in rows],
        "said": [CLASSES[int(who[1:]) % 3] for _, who in rows],
        "text": [f"text {i}" for i, _ in rows],
    }
    return table, votes_from_annotations(
        table, item="item", label="said", annotator="who", names=CLASSES, keep=["text"]
    )


def test_every_person_is_on_one_side_with_all_their_votes():
    table, data = crowd()
    splits = split_annotators(data, 0.4, seed=3)
    # By brute force: exactly one way to choose 4 of the 10 gives both splits' votes.
    ids = splits["train"]["example_id"][:]
    assert list(splits["eval"]["example_id"]) == list(ids)
    found = []
    for judges in combinations([f"p{k}" for k in range(10)], 4):
        counts = {False: np.zeros((40, 3), int), True: np.zeros((40, 3), int)}
        for item, who, said in zip(table["item"], table["who"], table["said"], strict=True):
            counts[who in judges][item, CLASSES.index(said)] += 1
        if all((dense_votes(splits[name]) == counts[name == "eval"][list(ids)]).all() for name in splits):
            both = (counts[True].sum(1) > 0) & (counts[False].sum(1) > 0)
            found.append((judges, both.sum() == len(ids)))
    # People 0, 3, 6, 9 vote alike, but on different items: the votes tell them apart.
    assert len(found) == 1 and found[0][1]


def test_seeds_choose_other_people_and_nothing_else_does():
    _, data = crowd()
    votes = [dense_votes(split_annotators(data, 0.5, seed)["eval"]).tolist() for seed in (0, 0, 1)]
    assert votes[0] == votes[1] != votes[2]


def test_popquorn_by_recipe_keeps_every_vote_of_the_items_that_stay(sources):
    config = DataConfig(dataset="popquorn", subset="offensiveness", eval_annotators=0.5)
    splits = load_splits(config, seed=0)
    whole = load_votes("popquorn", "offensiveness")["train"]
    place = {example: row for row, example in enumerate(whole["example_id"])}
    rows = [place[example] for example in splits.train["example_id"]]
    assert (dense_votes(splits.train) + dense_votes(splits.eval) == dense_votes(whole)[rows]).all()
    assert len(rows) > 1400
    assert splits.train["text"][:] == [whole["text"][row] for row in rows]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.99, 1.0])
def test_a_share_that_leaves_nobody_is_refused(share):
    _, data = crowd()
    with pytest.raises(VotesError, match="nobody on one side"):
        split_annotators(data, share)


def test_votes_without_annotators_are_refused():
    config = DataConfig(dataset="synthetic", subset="text", eval_annotators=0.5)
    with pytest.raises(VotesError, match="have no annotator_ids and annotations"):
        load_splits(config, seed=0)


def test_a_size_takes_the_same_items_from_both_sides(sources):
    whole, few = (
        load_splits(DataConfig(dataset="popquorn", subset="politeness", eval_annotators=0.5, train_size=size), seed=3)
        for size in (None, 200)
    )
    ids = few.train["example_id"][:]
    assert len(ids) == 200 and few.eval["example_id"][:] == ids
    rows = [whole.train["example_id"][:].index(example) for example in ids]
    for some, all_of_them in zip(few[:2], whole[:2], strict=True):
        assert (dense_votes(some) == dense_votes(all_of_them)[rows]).all()


@pytest.mark.parametrize("option", [{"streaming": True}, {"eval_split": "test"}])
def test_what_would_score_other_items_is_refused(option, sources):
    with pytest.raises(VotesError, match=f"leave out {next(iter(option))}"):
        load_splits(DataConfig(dataset="popquorn", subset="offensiveness", eval_annotators=0.5, **option), seed=0)
