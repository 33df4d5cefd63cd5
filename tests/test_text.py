"""Tokenising: which texts are taken, how they are paired and cut, and that the votes come through."""

from __future__ import annotations

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import BertProcessing
from transformers import PreTrainedTokenizerFast

from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.text import text_task, tokenize_votes
from hf_softlabel.data.votes import class_names, dense_votes

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "it", "rains", "sun", "shines", "she", "slept", "woke", "late"]
CLS, SEP = 2, 3
NAMES = ["entailment", "neutral", "contradiction"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", model_input_names=names
    )


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def rows(texts: dict[str, list[str | None]], names: list[str] = NAMES) -> Dataset:
    n = len(next(iter(texts.values())))
    columns = {
        "source": ["snli"] * n,
        **texts,
        "votes": [[i + 1] * len(names) for i in range(n)],
        "example_id": [10 + i for i in range(n)],
        "label": [None if i == 1 else i for i in range(n)],
    }
    features = {name: Value("string") for name in ("source", *texts)}
    features["votes"] = List(Value("int32"), length=len(names))
    features |= {"example_id": Value("int64"), "label": ClassLabel(names=names)}
    return Dataset.from_dict(columns, features=Features(features))


PAIR = {"premise": ["it rains", "she woke late"], "hypothesis": ["sun shines", "she slept"]}
CHOICE = {"obs1": ["it rains"], "obs2": ["she slept"], "hyp1": ["sun shines"], "hyp2": ["she woke late"]}


@pytest.mark.parametrize("streaming", [False, True])
def test_pairs_in_memory_and_streaming(tokenizer, streaming):
    source = rows(PAIR)
    out = tokenize_votes(source.to_iterable_dataset(num_shards=2) if streaming else source, tokenizer)
    first, second = list(out)
    assert first["input_ids"] == [CLS, *ids("it rains"), SEP, *ids("sun shines"), SEP]
    assert first["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert first["attention_mask"] == [1] * 7
    assert second["input_ids"] == [CLS, *ids("she woke late"), SEP, *ids("she slept"), SEP]
    assert second["votes"] == [2, 2, 2] and second["example_id"] == 11 and second["label"] is None
    expected = {"votes", "example_id", "label", "input_ids", "token_type_ids", "attention_mask"}
    assert first.keys() == set(out.column_names) == expected
    assert class_names(out) == NAMES
    assert out.features["votes"] == List(Value("int32"), length=3)
    if not streaming:
        assert dense_votes(out).tolist() == [[1, 1, 1], [2, 2, 2]]


@pytest.mark.parametrize("streaming", [False, True])
def test_choices(tokenizer, streaming):
    source = rows(CHOICE, names=["hyp1", "hyp2"])
    out = tokenize_votes(source.to_iterable_dataset() if streaming else source, tokenizer)
    (row,) = out
    start = [CLS, *ids("it rains"), SEP]
    assert row["input_ids"] == [
        [*start, *ids("sun shines she slept"), SEP],
        [*start, *ids("she woke late she slept"), SEP],
    ]
    assert row["token_type_ids"] == [[0] * 4 + [1] * 5, [0] * 4 + [1] * 6]
    assert class_names(out) == ["hyp1", "hyp2"]


def test_single_texts_and_named_columns(tokenizer):
    single = tokenize_votes(rows({"text": ["it rains"]}), tokenizer)
    assert single[0]["input_ids"] == [CLS, *ids("it rains"), SEP]
    pair = tokenize_votes(rows({"text": ["it rains"], "text_pair": ["she slept"]}), tokenizer)
    assert pair[0]["input_ids"] == [CLS, *ids("it rains"), SEP, *ids("she slept"), SEP]
    named = tokenize_votes(rows(PAIR), tokenizer, text_columns=["hypothesis"])
    assert named[1]["input_ids"] == [CLS, *ids("she slept"), SEP]
    turned = tokenize_votes(rows(PAIR), tokenizer, text_columns=("hypothesis", "premise"))
    assert turned[0]["input_ids"] == [CLS, *ids("sun shines"), SEP, *ids("it rains"), SEP]


def test_truncation(tokenizer):
    long = {"text": [" ".join(["rains"] * 700)]}
    assert len(tokenize_votes(rows(long), tokenizer, max_length=9)[0]["input_ids"]) == 9
    assert len(tokenize_votes(rows(long), tokenizer)[0]["input_ids"]) == 512
    tokenizer.model_max_length = 20
    assert len(tokenize_votes(rows(long), tokenizer)[0]["input_ids"]) == 20
    choice = tokenize_votes(rows(CHOICE, names=["hyp1", "hyp2"]), tokenizer, max_length=7)[0]["input_ids"]
    assert [len(row) for row in choice] == [7, 7]


def test_columns_are_those_of_the_tokenizer(tokenizer):
    """RoBERTa's tokenizer makes no token_type_ids; a feature without a column would fail."""
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    out = tokenize_votes(rows(PAIR), tokenizer)
    assert set(out.column_names) == {"votes", "example_id", "label", "input_ids", "attention_mask"}


def test_the_cache_is_used_again_for_the_same_request_only(tokenizer):
    """`datasets` names its cache files by the fingerprint; what cannot be pickled would get a random one."""
    source = rows(PAIR)
    first, second, other = (tokenize_votes(source, tokenizer, max_length=n)._fingerprint for n in (8, 8, 6))
    assert first == second != other


def test_text_task():
    assert text_task(["premise", "hypothesis", "votes"]) == "pair"
    assert text_task(["text", "votes"]) == "single"
    assert text_task(["text_pair", "text"]) == "pair"
    assert text_task(["hyp2", "obs1", "obs2", "hyp1", "votes"]) == "choice"
    with pytest.raises(VotesError, match=r"No known text columns .* among: sentence, votes\. Give text_columns"):
        text_task(["sentence", "votes"])
    with pytest.raises(VotesError, match=r"premise \+ hypothesis or text\?"):
        text_task(["premise", "hypothesis", "text"])


def test_wrong_texts_are_refused(tokenizer):
    with pytest.raises(VotesError, match=r"`hypothesis` is not a text in the examples 11:"):
        tokenize_votes(rows({**PAIR, "hypothesis": ["sun shines", None]}), tokenizer)
    with pytest.raises(VotesError, match="one or two of source, premise"):
        tokenize_votes(rows(PAIR), tokenizer, text_columns=["title"])
    with pytest.raises(VotesError, match="one or two of"):
        tokenize_votes(rows(PAIR), tokenizer, text_columns=["premise", "hypothesis", "source"])
    unknown = rows(PAIR).to_iterable_dataset().map(lambda row: row)
    assert unknown.features is None
    with pytest.raises(VotesError, match="does not know its columns"):
        tokenize_votes(unknown, tokenizer)
