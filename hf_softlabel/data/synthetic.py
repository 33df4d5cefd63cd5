"""Votes whose true distribution is known: one vision set and one text set, generated, with nothing to download.

Most examples are clear and the rest are honestly ambiguous: what makes annotators disagree can be seen in the image or
read in the text. Each example's votes are drawn from its true distribution, which is kept in the column `truth`.
"""

from __future__ import annotations

import numpy as np
from datasets import Dataset, Features, Image, List, Value

from .errors import VotesError
from .votes import votes_features

TEXTURES = ("horizontal", "vertical", "checks", "rings")
TONES = ("negative", "neutral", "positive")
# Nobody agrees all the time: this share of votes falls on any class.
LAPSE = 0.02

_GOOD = ["lovely", "great", "warm", "bright", "kind", "clever", "fresh", "gentle", "superb", "honest", "lively"]
_BAD = ["awful", "cold", "rude", "stale", "clumsy", "bitter", "dreary", "cruel", "broken", "noisy", "hollow"]
_PLAIN = [
    *["the", "a", "this", "that", "our", "their", "and", "then", "with", "before", "after", "again", "today", "there"],
    *["room", "dinner", "story", "song", "walk", "letter", "game", "garden", "meeting", "journey", "it", "we", "they"],
    *["was", "felt", "seemed", "became", "looked", "sounded", "here"],
]
VOCABULARY = tuple(dict.fromkeys([*_PLAIN, *_GOOD, *_BAD]))


def load_synthetic(subset: str | None = None, size: int = 2000, seed: int = 0) -> Dataset:
    """`vision` (columns `image`, 16 x 16 textures) or `text` (column `text`), with `votes` and `truth` (C,) per row.

    Args:
        size: how many examples; each has 6 to 14 votes.
        seed: of the generator; the default is the canonical data set.
    """
    if subset not in ("vision", "text"):
        raise VotesError(f"synthetic has the subsets 'vision' and 'text', not {subset!r}.")
    rng = np.random.default_rng([seed, subset == "text"])
    if subset == "vision":
        names, feature = TEXTURES, {"image": Image()}
        inputs, truth = _textures(rng, size)
    else:
        names, feature = TONES, {"text": Value("string")}
        inputs, truth = _sentences(rng, size)
    truth = (1 - LAPSE) * truth + LAPSE / len(names)
    votes = rng.multinomial(rng.integers(6, 15, size), truth)
    columns = {
        next(iter(feature)): inputs,
        "votes": votes,
        "example_id": np.arange(size),
        "label": truth.argmax(1),
        "truth": truth,
    }
    features = Features({**feature, **votes_features(names), "truth": List(Value("float64"), length=len(names))})
    return Dataset.from_dict(columns, features=features)


def _blend(rng: np.random.Generator, size: int, classes: int) -> np.ndarray:
    """(size, classes) weights that sum to 1: three in five examples are one class, the others lie between several."""
    weights = np.zeros((size, classes))
    rows = np.arange(size)
    order = rng.permuted(np.tile(np.arange(classes), (size, 1)), axis=1)
    kinds = rng.choice([1, 2, 3], size, p=[0.6, 0.3, 0.1])
    shares = rng.dirichlet(np.full(3, 2.0), size)
    for place in range(3):
        weights[rows, order[:, place]] = np.where(place < kinds, shares[:, place], 0.0)
    return weights / weights.sum(1, keepdims=True)


def _textures(rng: np.random.Generator, size: int, pixels: int = 16) -> tuple[list, np.ndarray]:
    """Images that blend textures, each in proportion to its share of the votes; mirror images keep their class."""
    import PIL.Image

    weights = _blend(rng, size, len(TEXTURES))
    y, x = np.mgrid[:pixels, :pixels] / pixels * 2 * np.pi * 2
    phase_x, phase_y, phase_r = rng.uniform(0, 2 * np.pi, (3, size, 1, 1))
    radius = np.hypot(x - x.mean(), y - y.mean())
    patterns = np.stack(
        [
            np.sin(y + phase_y) + np.zeros_like(x),
            np.sin(x + phase_x) + np.zeros_like(y),
            1.4 * np.sin(x + phase_x) * np.sin(y + phase_y),
            np.sin(1.5 * radius + phase_r),
        ],
        axis=1,
    )
    grey = np.einsum("nk,nkhw->nhw", weights, patterns) + rng.normal(0, 0.15, (size, pixels, pixels))
    tint = rng.uniform(0.5, 1.0, (size, 1, 1, 3))
    images = (128 + 90 * grey[..., None] * tint).clip(0, 255).astype(np.uint8)
    return [PIL.Image.fromarray(image) for image in images], weights


def _sentences(rng: np.random.Generator, size: int) -> tuple[list[str], np.ndarray]:
    """Sentences of praise and blame; how the two balance decides how readers vote."""
    weights = _blend(rng, size, len(TONES))
    texts, truth = [], np.zeros((size, len(TONES)))
    for row, (bad, plain, good) in enumerate(weights):
        length = rng.integers(8, 15)
        n_bad, n_plain, n_good = rng.multinomial(length, [0.6 * bad, 0.4 + 0.6 * plain, 0.6 * good])
        words = [*rng.choice(_BAD, n_bad), *rng.choice(_PLAIN, n_plain), *rng.choice(_GOOD, n_good)]
        rng.shuffle(words)
        texts.append(" ".join(words))
        # What the votes depend on is in the text itself, not in the weights that made it.
        pull = np.array([1.2 * n_bad, 2.0, 1.2 * n_good])
        truth[row] = np.exp(pull - pull.max())
    return texts, truth / truth.sum(1, keepdims=True)


def synthetic_tokenizer():
    """A word-level tokenizer for the text set."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*special, *VOCABULARY])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
