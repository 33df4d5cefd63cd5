"""Build a data set of votes from its authors' files, as Parquet with a data card, and push it to the Hub.

A built folder has `data/<split>-*.parquet`, whose schema carries the features (so the classes' names survive),
`README.md`, and `votes.json`: by it a folder, or a repository, is known to be ours and to hold the same votes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from datasets.features.features import require_storage_embed
from datasets.table import embed_table_storage
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from ..checkpoint import write_text_atomically
from ..data.errors import VotesError
from ..data.show import Description, describe_votes
from ..score import VotesSource
from .data_card import REPO_ID, data_card, data_title
from .push import CARD_NAME, check_repo_id, hub_errors

MANIFEST_NAME = "votes.json"
SHARD_BYTES = 500 << 20
_EMBED_ROWS = 1000
_TAKEN = "{} exists and holds another data set. Choose another name, or replace it with --overwrite."


def build_data(source: VotesSource, folder: str | Path) -> Path:
    """Write a data set of votes into `folder`, whole or not at all, and return the folder.

    Raises:
        VotesError: the votes cannot be read, or `folder` holds something else than an earlier build.
    """
    folder = Path(folder)
    _refuse_others(folder)
    splits = source.load()
    if source.split is not None:
        splits = {source.split: splits[source.split]}
    found = describe_votes(splits)
    try:
        _write(source, splits, found, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise VotesError(f"{folder} could not be written: {reason}. Nothing there has changed.") from error
    return folder


def _write(source: VotesSource, splits: dict[str, Dataset], found: Description, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        new = Path(scratch) / "new"
        (new / "data").mkdir(parents=True)
        for split, dataset in splits.items():
            _write_split(dataset, split, new / "data")
        card = data_card(source.data, source.subset, source.sources, next(iter(splits.values())).features, found)
        write_text_atomically(new / CARD_NAME, card)
        manifest = {
            "title": data_title(source.data, source.subset, source.sources),
            "classes": found.names,
            "examples": found.splits,
            "votes": None if found.totals is None else int(found.totals.sum()),
            "card": _sha256(new / CARD_NAME),
            "files": {f"data/{path.name}": _sha256(path) for path in sorted((new / "data").iterdir())},
        }
        write_text_atomically(new / MANIFEST_NAME, json.dumps(manifest, indent=1) + "\n")
        if folder.exists():
            os.replace(folder, Path(scratch) / "old")
        os.replace(new, folder)


def push_data(
    folder: str | Path, repo_id: str, private: bool = True, token: str | None = None, overwrite: bool = False
) -> tuple[str, bool]:
    """Push a built folder as the data set `repo_id` in one commit; its address, and whether anything was pushed.

    Votes that are there already are left alone, with the card that they have by now.

    Args:
        private: of a new repository; a public one is only pushed to with `private=False`.
        token: with write access; by default HF_TOKEN, or that of `hf auth login`.
        overwrite: replace what the repository holds.
    """
    folder = Path(folder)
    check_repo_id(repo_id)
    manifest = _checked_manifest(folder)
    again = "Nothing was pushed: the same command tries again."
    with hub_errors(repo_id, token, again):
        api = HfApi(token=token)
        address = str(api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True))
        there = _names_there(api, repo_id, private)
        if there and not overwrite:
            if _files_there(api, repo_id, there) == manifest["files"]:
                return address, False
            raise VotesError(_TAKEN.format(repo_id))
        card = (folder / CARD_NAME).read_text(encoding="utf-8").replace(REPO_ID, repo_id)
        files: dict[str, bytes | str] = {name: str(folder / name) for name in (*manifest["files"], MANIFEST_NAME)}
        files[CARD_NAME] = card.encode()
        operations: list[Any] = [CommitOperationAdd(name, content) for name, content in files.items()]
        operations += [CommitOperationDelete(name) for name in sorted(there - files.keys())]
        message = f"Push {manifest['title']} with hf_softlabel"
        api.create_commit(repo_id, operations, commit_message=message, repo_type="dataset")
    return address, True


def check_push(repo_id: str, private: bool = True, token: str | None = None, overwrite: bool = False) -> None:
    """Refuse a push that the Hub, or what it has there, would refuse after a long build. Makes nothing there."""
    check_repo_id(repo_id)
    with hub_errors(repo_id, token, "Nothing was built."):
        api = HfApi(token=token)
        api.whoami()
        if not api.repo_exists(repo_id, repo_type="dataset"):
            return
        api.auth_check(repo_id, repo_type="dataset", write=True)
        there = _names_there(api, repo_id, private)
        if there and MANIFEST_NAME not in there and not overwrite:
            raise VotesError(_TAKEN.format(repo_id))


def _names_there(api: HfApi, repo_id: str, private: bool) -> set[str]:
    """The files of a repository, which must not be a public one unless that is asked for."""
    info = api.dataset_info(repo_id)
    if private and not info.private:
        raise VotesError(f"{repo_id} exists and is public: push to it with --public, or choose another name.")
    return {item.rfilename for item in info.siblings or ()} - {".gitattributes"}


def is_built(folder: str | Path) -> bool:
    """Whether a path is a folder that [`build_data`] wrote."""
    return (Path(folder) / MANIFEST_NAME).is_file()


def _write_split(dataset: Dataset, split: str, folder: Path) -> None:
    shards = max(1, -(-dataset.data.nbytes // SHARD_BYTES))
    for index in range(shards):
        shard = dataset.shard(shards, index, contiguous=True)
        if any(map(require_storage_embed, dataset.features.values())):
            # What lies in files beside the table would be lost, and its path told.
            options = {"batched": True, "batch_size": _EMBED_ROWS, "keep_in_memory": True}
            shard = shard.with_format("arrow").map(embed_table_storage, **options).with_format(None)
        shard.to_parquet(folder / f"{split}-{index:05d}-of-{shards:05d}.parquet")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _refuse_others(folder: Path) -> None:
    """Refuse to replace a file, a folder that is not ours, or one that somebody has worked on."""
    if folder.exists() and not folder.is_dir():
        raise VotesError(f"{folder} is a file: name a folder for the data set (--output_dir).")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not is_built(folder):
        raise VotesError(f"{folder} is not empty and was not made by `data build`: name another (--output_dir).")
    manifest = _manifest(folder)
    ours = {*manifest["files"], MANIFEST_NAME, CARD_NAME}
    others = [path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).as_posix() not in ours]
    card = folder / CARD_NAME
    if card.exists() and _sha256(card) != manifest["card"]:
        others.append(card)
    if others:
        raise VotesError(
            f"{folder} holds what you added or changed since it was built ({', '.join(p.name for p in others)}): move "
            "that away, or name another folder (--output_dir)."
        )


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        return {key: manifest[key] for key in ("title", "card", "files")}
    except (ValueError, KeyError, TypeError):
        raise VotesError(f"{folder / MANIFEST_NAME} cannot be read: build the data set again elsewhere.") from None


def _checked_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a built folder whose data files are those that were built."""
    if not is_built(folder) or not (folder / CARD_NAME).is_file():
        raise VotesError(f"{folder} was not made by `hf-softlabel data build`.")
    manifest = _manifest(folder)
    for name, sha256 in manifest["files"].items():
        if not (folder / name).is_file() or _sha256(folder / name) != sha256:
            raise VotesError(f"{folder / name} is not the file that was built: build the data set again.")
    return manifest


def _files_there(api: HfApi, repo_id: str, there: set[str]) -> Any:
    """Names and digests of the data that a repository holds; None if it was not pushed by us."""
    if MANIFEST_NAME not in there:
        return None
    path = api.hf_hub_download(repo_id, MANIFEST_NAME, repo_type="dataset")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError, TypeError):
        return None
