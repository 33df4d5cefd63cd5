"""Tokens are kept in the cache of `datasets`, and found only by the very rows and tokenizer that they were made of."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets, load_from_disk
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.synthetic import load_synthetic, synthetic_tokenizer
from hf_softlabel.data.text import tokenize_votes

PROGRAM = """
from hf_softlabel.data.synthetic import load_synthetic, synthetic_tokenizer
from hf_softlabel.data.text import tokenize_votes
print(tokenize_votes(load_synthetic("text", size=30), synthetic_tokenizer())["input_ids"][:])
"""

FULL_DISK = """
import resource, sys
from datasets import load_from_disk
from hf_softlabel.data.synthetic import synthetic_tokenizer
from hf_softlabel.data.text import tokenize_votes
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
print(tokenize_votes(load_from_disk(sys.argv[1]), synthetic_tokenizer())["input_ids"][:])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    return tmp_path / "hf_softlabel" / "tokens"


@pytest.fixture
def no_caching():
    datasets.disable_caching()
    yield
    datasets.enable_caching()


def texts(size: int = 30) -> Dataset:
    return load_synthetic("text", size=size)


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def in_another_process(program: str, cache: Path, *words: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        env={"HF_DATASETS_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )


def test_another_process_reads_what_this_one_has_tokenised(folder, tmp_path):
    tokenize_votes(texts(), synthetic_tokenizer())
    (first,) = kept(folder)
    # Other tokens in its place: whoever reads it, says so.
    tokenize_votes(texts().select(range(29, -1, -1)), synthetic_tokenizer())
    (other,) = set(kept(folder)) - {first}
    backwards = Dataset.from_file(str(other))["input_ids"][:]
    shutil.copy(other, first)
    assert in_another_process(PROGRAM, tmp_path).stdout.strip() == str(backwards)


def with_longer_word(dataset: Dataset) -> Dataset:
    return dataset.map(
        lambda row: {"text": row["text"].rsplit(" ", 1)[0] + " unheard"} if not row["example_id"] else {}
    )


def with_other_votes(dataset: Dataset) -> Dataset:
    return dataset.map(lambda row: {"votes": row["votes"][::-1]})


def with_other_ids(dataset: Dataset) -> Dataset:
    return dataset.map(lambda row: {"example_id": row["example_id"] + 1})


@pytest.mark.parametrize("change", [with_longer_word, with_other_votes, with_other_ids])
def test_other_rows_are_tokenised_themselves(folder, change):
    tokenizer = synthetic_tokenizer()
    before = tokenize_votes(texts(), tokenizer)
    after = tokenize_votes(change(texts()), tokenizer)
    assert len(kept(folder)) == 2
    assert after[:] != before[:]
    for name in ("votes", "example_id", "label"):
        assert after[name][:] == change(texts())[name][:]
    assert after[0]["input_ids"] == tokenizer(change(texts())[0]["text"])["input_ids"]


def test_another_length_and_another_tokenizer_have_their_own_tokens(folder):
    tokenizer, larger = synthetic_tokenizer(), synthetic_tokenizer()
    word = texts()[0]["text"].split()[0]
    larger.add_tokens([word[:2]])
    for options, by in (({}, tokenizer), ({"max_length": 5}, tokenizer), ({}, larger)):
        row = tokenize_votes(texts(), by, **options)[0]
        expected = by(texts()[0]["text"], truncation=True, **options)["input_ids"]
        assert row["input_ids"] == expected
    assert len(kept(folder)) == 3


def test_features_survive_the_cache(folder):
    made, read = (tokenize_votes(texts(), synthetic_tokenizer()) for _ in range(2))
    assert made.features == read.features and made[:] == read[:]
    assert read.features["label"].names == texts().features["label"].names


def test_nothing_is_kept_where_caching_is_off(folder, no_caching):
    assert len(tokenize_votes(texts(), synthetic_tokenizer())) == 30
    assert not folder.exists()


def test_texts_are_tokenised_where_nothing_can_be_kept(folder, tmp_path):
    (tmp_path / "hf_softlabel").write_text("a file in the folder's place")
    assert len(tokenize_votes(texts(), synthetic_tokenizer())) == 30
    # Nor is anything written beside the files of the data set, which may be another's.
    texts().save_to_disk(tmp_path / "rows")
    files = kept(tmp_path / "rows")
    assert len(tokenize_votes(load_from_disk(tmp_path / "rows"), synthetic_tokenizer())) == 30
    assert kept(tmp_path / "rows") == files


def test_a_tokenizer_that_splits_its_special_tokens_has_its_own_tokens(folder):
    dataset = texts().map(lambda row: {"text": f"{row['text']} [SEP]"})
    plain, splitting = synthetic_tokenizer(), synthetic_tokenizer()
    splitting.split_special_tokens = True
    for tokenizer in (plain, splitting):
        expected = tokenizer(dataset[0]["text"])["input_ids"]
        assert tokenize_votes(dataset, tokenizer)[0]["input_ids"] == expected
    assert plain(dataset[0]["text"])["input_ids"] != splitting(dataset[0]["text"])["input_ids"]


def test_rows_that_a_function_makes_are_not_kept(folder):
    tokenizer = synthetic_tokenizer()
    tokenize_votes(texts(), tokenizer)
    other = texts().with_transform(lambda batch: {**batch, "text": ["unheard"] * len(batch["text"])})
    made = tokenize_votes(other, tokenizer).with_format(None)
    assert made[0]["input_ids"] == tokenizer("unheard")["input_ids"]
    assert len(kept(folder)) == 1


@pytest.mark.parametrize("left", [0, 0.5, -20])
def test_a_damaged_file_is_made_anew(folder, left):
    before = tokenize_votes(texts(), synthetic_tokenizer())[:]
    (path,) = kept(folder)
    whole = path.read_bytes()
    path.unlink()  # which the data set before has mapped
    path.write_bytes(whole[: left if left < 0 else int(left * len(whole))])
    for _ in range(2):
        assert tokenize_votes(texts(), synthetic_tokenizer())[:] == before
    assert path.stat().st_size > len(whole) // 2


def test_what_is_no_text_is_refused_with_its_rows(folder):
    dataset = texts(3).remove_columns("text").add_column("text", [b"a", b"b", b"c"])
    with pytest.raises(VotesError, match="`text` is not a text in the examples 0, 1, 2"):
        tokenize_votes(dataset, synthetic_tokenizer())


class Louder(PreTrainedTokenizerFast):
    def __call__(self, *texts, **options):
        shouted = [[f"unheard {one}" for one in text] if isinstance(text, list) else text for text in texts]
        return super().__call__(*shouted, **options)


@pytest.mark.parametrize(
    ("module", "files"), [(__name__, 1), ("transformers_modules.louder", 1), ("transformers.louder", 2)]
)
def test_a_tokenizer_with_code_of_its_own_does_not_get_the_tokens_of_another(
    folder, tmp_path, monkeypatch, module, files
):
    plain = synthetic_tokenizer()
    plain.save_pretrained(tmp_path / "saved")
    before = tokenize_votes(texts(), plain)["input_ids"][:]
    monkeypatch.setattr(Louder, "__module__", module)
    louder = Louder.from_pretrained(tmp_path / "saved")
    after = tokenize_votes(texts(), louder)["input_ids"][:]
    assert after == louder(texts()["text"][:])["input_ids"] != before
    assert len(kept(folder)) == files


def test_a_tokenizer_with_a_step_in_python_keeps_nothing(folder):
    class Halves:
        def pre_tokenize(self, text):
            text.split(lambda _, part: [part[: len(str(part)) // 2], part[len(str(part)) // 2 :]])

    tokenizer = synthetic_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Halves())
    made = tokenize_votes(texts(), tokenizer)
    assert made["input_ids"][:] == tokenizer(texts()["text"][:])["input_ids"] and not folder.exists()


def test_a_saved_tokenizer_reads_what_the_one_that_was_saved_has_made(folder, tmp_path):
    before = tokenize_votes(texts(), synthetic_tokenizer())[:]
    (path,) = kept(folder)
    for place in ("run", "moved"):
        synthetic_tokenizer().save_pretrained(tmp_path / place)
        assert tokenize_votes(texts(), AutoTokenizer.from_pretrained(tmp_path / place))[:] == before
    assert kept(folder) == [path]


def test_rows_are_known_however_they_lie_in_memory(folder, tmp_path):
    whole = texts()
    whole.save_to_disk(tmp_path / "rows")
    chunks = concatenate_datasets([whole.select(range(7)), whole.select(range(7, 30))])
    backwards = whole.select(range(29, -1, -1)).flatten_indices()
    for dataset in (whole, load_from_disk(tmp_path / "rows"), chunks, backwards.select(range(29, -1, -1))):
        tokenize_votes(dataset, synthetic_tokenizer())
    part = concatenate_datasets([texts(10), whole]).select(range(10, 40))
    tokenize_votes(part, synthetic_tokenizer())
    assert len(kept(folder)) == 1
    for before, after in ((3, 5), (4, 1)):
        several = concatenate_datasets([texts(before), whole, texts(after)])
        beside = Dataset.from_dict(several[:], several.features)  # in one piece of memory
        tokenize_votes(beside.select(range(before, before + 30)), synthetic_tokenizer())
    assert len(kept(folder)) == 1


def test_votes_on_many_classes_are_not_turned_into_numbers_of_python(folder):
    votes = np.zeros((500, 1000), np.int64)
    votes[:, 0] = 5
    dataset = texts(500).remove_columns("votes").add_column("votes", list(votes))
    tracemalloc.start()
    made = tokenize_votes(dataset, synthetic_tokenizer())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A pointer for each number would be as much.
    assert peak < votes.nbytes
    assert len(kept(folder)) == 1 and made[-1]["votes"] == votes[-1].tolist()


def test_texts_are_tokenised_where_the_disk_is_full(folder, tmp_path):
    """By a limit on the size of files, under which writing fails as on a full disk."""
    texts().save_to_disk(tmp_path / "rows")
    before = kept(tmp_path)
    done = in_another_process(FULL_DISK, tmp_path, tmp_path / "rows")
    assert done.stdout.strip() == str(synthetic_tokenizer()(texts()["text"][:])["input_ids"])
    assert "held in memory and not kept for the next run: [Errno 27] File too large" in done.stderr
    assert kept(tmp_path) == before, "something half-written was left"
