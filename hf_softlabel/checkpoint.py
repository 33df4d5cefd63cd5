"""Which checkpoints are whole, and which run may go on from them.

`Trainer` writes a checkpoint file by file, so one that was cut off looks like any other. Here the last thing that is
written, atomically, is a manifest with the size of every file and the settings that the label stream depends on.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from .data.errors import VotesError

MANIFEST_NAME = "manifest.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
logger = logging.getLogger(__name__)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file so that at any moment it is either absent, the old one, or whole."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_manifest(
    checkpoint: Path, settings: dict[str, Any], progress: dict[str, int], resumable: bool = True
) -> None:
    """Declare a checkpoint whole.

    Args:
        settings: what the label stream depends on.
        progress: how far into the data it is.
        resumable: False when it holds only the model.
    """
    files = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != MANIFEST_NAME
    }
    manifest = {"settings": settings, "progress": progress, "resumable": resumable, "files": files}
    write_text_atomically(checkpoint / MANIFEST_NAME, json.dumps(manifest, indent=1))


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a whole checkpoint."""
    return json.loads((checkpoint / MANIFEST_NAME).read_text(encoding="utf-8"))


def flaw(checkpoint: Path) -> str | None:
    """Why training cannot go on from a checkpoint, or None when it is whole."""
    try:
        manifest = read_manifest(checkpoint)
        resumable, files = manifest["resumable"], manifest["files"].items()
    except FileNotFoundError:
        return f"it has no {MANIFEST_NAME}, so writing it was not finished"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST_NAME} cannot be read"
    if not resumable:
        return "it holds only the model (save_only_model), not the optimiser's state"
    for name, size in files:
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint that is whole; newer ones that are not are named in a warning."""
    found = [(int(m[1]), path) for path in Path(output_dir).glob("*") if (m := _CHECKPOINT.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        problem = flaw(path)
        if problem is None:
            return path
        logger.warning("Skipping %s: %s.", path, problem)
    return None


def refuse_changes(checkpoint: Path, settings: dict[str, Any]) -> None:
    """Raise [`VotesError`] unless the run that wrote a checkpoint had the same settings."""
    before = read_manifest(checkpoint)["settings"]
    changed = [
        f"{key}: {before.get(key)!r} then, {value!r} now"
        for key, value in settings.items()
        if before.get(key) != value
    ]
    if changed:
        raise VotesError(
            f"{checkpoint} was written by a run with other settings ({'; '.join(changed)}). Resumed like this, it "
            "would repeat or skip examples and deliver other labels. Use the same settings, start in another "
            "output_dir, or set allow_changed_resume: true if you want this."
        )
