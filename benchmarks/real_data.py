"""The authors' data for benchmarks: from HF_SOFTLABEL_SOURCES, else from `shared/data` beside the checkout."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hf_softlabel import load_votes
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.images import VotesImages
from hf_softlabel.data.sources import SOURCES_VARIABLE


def _sources() -> str:
    folder = os.environ.get(SOURCES_VARIABLE) or Path(__file__).parents[2] / "shared" / "data"
    if not Path(folder).is_dir():
        raise VotesError(f"Benchmarks need the authors' data: set {SOURCES_VARIABLE}; {folder} is not a folder.")
    return str(folder)


@lru_cache
def cifar10h(n: int) -> Dataset:
    """The first n of CIFAR-10H's 10,000 images with their votes."""
    disable_progress_bars()
    return load_votes("cifar10h", sources=_sources())["train"].select(range(n))


@lru_cache
def image_store(n: int) -> VotesImages:
    """The same, decoded."""
    return VotesImages.from_dataset(cifar10h(n))


@lru_cache
def chaosnli() -> Dataset:
    """1,599 pairs of sentences with 100 votes each, of MNLI."""
    disable_progress_bars()
    return load_votes("chaosnli", subset="mnli", sources=_sources())["train"]


@lru_cache
def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind of tokenizer, learnt from these texts: nothing is downloaded."""
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}

    def untrained(vocabulary: dict[str, int] | None = None) -> Tokenizer:
        words = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        return words

    texts, learner = [*chaosnli()["premise"], *chaosnli()["hypothesis"]], untrained()
    # The trainer numbers the letters within a word in the order of a hash table with a random seed, and breaks ties by
    # these numbers: each process would learn another vocabulary if it were not given them, as special tokens.
    letters = {letter for text in texts for letter in learner.normalizer.normalize_str(text) if not letter.isspace()}
    given = [*special.values(), *(f"##{letter}" for letter in sorted(letters))]
    trainer = trainers.WordPieceTrainer(vocab_size=8000, special_tokens=given, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    words = untrained(learner.get_vocab())
    ends = [(token, words.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=128, **special)
