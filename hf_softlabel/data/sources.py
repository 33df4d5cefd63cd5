"""Where the authors' own files are: in a folder of the user's, in the cache, or at their public address."""

from __future__ import annotations

import glob
import hashlib
import http.client
import io
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import VotesError

SOURCES_VARIABLE = "HF_SOFTLABEL_SOURCES"
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Source:
    """A file as its authors publish it.

    Args:
        name: the file's name, in a sources folder and in the cache.
        address: where it is downloaded from; a `.zip` holds the file `name` at any depth.
        sha256: of the file itself, not of the archive; None where several versions are in use.
        published_as: the end of its path in the authors' repository, where that is not `name`.
    """

    name: str
    address: str
    sha256: str | None
    published_as: str | None = None


def sources_folder(sources: str | os.PathLike | None) -> Path | None:
    """The folder with the authors' files: `sources`, else the environment's, else None for the public addresses."""
    folder = sources or os.environ.get(SOURCES_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        origin = "`sources`" if sources else SOURCES_VARIABLE
        raise VotesError(f"{origin} must be a folder that holds the authors' files; {folder} is not a folder.")
    return Path(folder)


def find_in_folder(folder: Path, endings: Sequence[str]) -> Path | None:
    """The one file below `folder`, at any depth, whose path ends as one of `endings`; None if there is none."""
    found: list[str] = []
    for ending in endings:
        # glob, unlike Path.rglob, goes through linked folders, which data folders often are.
        found += glob.glob(os.path.join(glob.escape(str(folder)), "**", ending), recursive=True)
    digests = {path: _sha256(Path(path).read_bytes()) for path in found} if len(found) > 1 else {}
    if len(set(digests.values())) > 1:
        raise VotesError(
            f"{endings[0]} is there more than once below {folder}, with different content: "
            f"{', '.join(sorted(digests))}. Remove the wrong ones, or name a narrower folder as `sources`."
        )
    return Path(min(found)) if found else None


def find_source(source: Source, sources: str | os.PathLike | None = None) -> Path:
    """The path of an authors' file, verified, downloaded first if no folder was named.

    Raises:
        VotesError: the file is not in the folder, cannot be downloaded, or is not the file that was published.
    """
    folder = sources_folder(sources)
    if folder is not None:
        endings = [source.name] + ([source.published_as] if source.published_as else [])
        path = find_in_folder(folder, endings)
        if path is None:
            # No fall back to the network: whoever names a folder wants what is in there.
            raise VotesError(
                f"{source.name} is not in the sources folder {folder} (looked at every depth). Download it from "
                f"{source.address} into that folder, or leave `sources` and {SOURCES_VARIABLE} unset to have it "
                "downloaded."
            )
        _verify(source, path.read_bytes(), str(path))
        return path
    path = _cache_folder() / source.name
    if not path.exists():
        _download(source, path)
    _verify(source, path.read_bytes(), str(path))
    return path


def check_totals(path: Path | str, found: dict[str, int], expected: dict[str, int]) -> None:
    """Compare what a file holds, such as its items and votes, with what its authors report."""
    if found != expected:
        raise VotesError(
            f"{path} does not hold what its authors published: expected {_listed(expected)}; found {_listed(found)}. "
            "Download the file again."
        )


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())


def _cache_folder() -> Path:
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "hf_softlabel_sources"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _verify(source: Source, data: bytes, place: str) -> None:
    if source.sha256 is not None and _sha256(data) != source.sha256:
        raise VotesError(
            f"{place} is not the {source.name} that its authors published: expected the sha256 {source.sha256}, "
            f"found {_sha256(data)}. Delete it and download it again from {source.address}."
        )


def _download(source: Source, path: Path) -> None:
    """Fetch, verify and only then put in place: an interrupted or wrong download leaves nothing in the cache."""
    import huggingface_hub

    try:
        if huggingface_hub.constants.is_offline_mode():
            raise ConnectionError("offline mode is on (HF_HUB_OFFLINE)")
        data = _fetch(source.address, source.name)
        if zipfile.is_zipfile(io.BytesIO(data)):
            data = _member(data, source.name)
    except (OSError, http.client.HTTPException, zipfile.BadZipFile) as error:
        raise VotesError(
            f"{source.name} could not be found. Looked for in the cache ({path}; {SOURCES_VARIABLE} is not set) and "
            f"at {source.address}, which failed: {error}. Download it by hand into a folder of any layout and set "
            f"{SOURCES_VARIABLE} to that folder."
        ) from error
    _verify(source, data, f"What {source.address} sent")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each process, so that several may download at once; the last one to finish wins.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


def _fetch(address: str, name: str) -> bytes:
    from tqdm.auto import tqdm

    chunks = []
    with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as response:
        size = response.headers.get("Content-Length")
        with tqdm(total=int(size) if size else None, unit="B", unit_scale=True, desc=f"Downloading {name}") as bar:
            while chunk := response.read(1 << 16):
                chunks.append(chunk)
                bar.update(len(chunk))
    return b"".join(chunks)


def _member(archive: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        # macOS archives carry a shadow of every file, with the same name behind a `._`.
        members = [m for m in file.namelist() if m.rsplit("/", 1)[-1] == name]
        if not members:
            raise FileNotFoundError(f"the archive holds no {name}, only {', '.join(file.namelist()[:5])}")
        return file.read(members[0])
