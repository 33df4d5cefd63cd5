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
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=8000, special_tokens=[*special.values()], show_progress=False)
    texts = chaosnli()
    words.train_from_iterator([*texts["premise"], *texts["hypothesis"]], trainer)
    ends = [(token, words.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=128, **special)
