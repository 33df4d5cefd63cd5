"""A Hub on loopback that has the files of a folder, so that tests run the code path of an online user.

The folder is laid out as `datasets/<owner>/<name>/<files>` (and `models/...`, `spaces/...`). What else the Hub does is
in [`hub_writer`].

    with serve(folder) as url:  # HF_ENDPOINT=url for the process under test
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from . import hub_writer
from .hub_writer import Commit, Repository


@contextlib.contextmanager
def serve(root: Path) -> Iterator[str]:
    """Serve `root`, as it is now, to everybody; gives the address for HF_ENDPOINT."""
    with hub_writer.serve(tokens={}) as hub:
        for folder in root.glob("*/*/*"):
            files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            name = f"{folder.parent.name}/{folder.name}"
            commits = [Commit("initial commit", files)]
            hub.repositories[str(folder.relative_to(root))] = Repository(name, private=False, commits=commits)
        yield hub.url
