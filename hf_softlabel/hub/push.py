"""Push a finished run to the Hub, in one commit: model, tokenizer or image processor, calibration, scores and card.

Nothing of the run directory changes, and nothing but what is listed here leaves it: `config.yaml` and
`training_args.bin` know paths of this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo, RepoUrl, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id

from ..checkpoint import MANIFEST_NAME, read_manifest
from ..data.errors import VotesError

CARD_NAME = "README.md"
# In the output directory: which repository its run pushes to while it is trained.
OWN_REPOSITORY = "hub.json"
# A pickle with every argument of the training; what a checkpoint has for the next process that goes on from it.
NOT_PUBLISHED = (
    *("training_args.bin", "trainer_state.json", MANIFEST_NAME, "ledger.npz", "*.part", OWN_REPOSITORY),
    *("optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*.pth"),
    # PEFT's own, which knows the base model's path; ours takes its place.
    CARD_NAME,
)
METRICS_NAME = "metrics.json"


def push_run(
    run: str | Path,
    repo_id: str,
    private: bool = True,
    token: str | None = None,
    overwrite: bool = False,
    keep_others: bool = False,
    message: str = "Push a run of hf_softlabel",
) -> str:
    """Push a finished run as the model `repo_id`, and return its address. A run that is there already is left alone.

    Args:
        private: of a new repository; a public one is only pushed to with `private=False`.
        token: with write access; by default HF_TOKEN, or that of `hf auth login`.
        overwrite: replace what the repository holds of another model.
        keep_others: remove nothing from it.
    """
    run = Path(run)
    check_repo_id(repo_id)
    check_finished(run)
    flags = "" if private else " --public"
    again = (
        f"The run is whole: `hf-softlabel push {run} --repo {repo_id}{flags}{' --overwrite' * overwrite}` tries again."
    )
    # The Hub is asked first: the card's intervals take a while, and are in vain if it refuses.
    with hub_errors(repo_id, token, again):
        api = HfApi(token=token)
        address, info = open_repository(api, repo_id, private, "push to it with --public")
        there = {item.rfilename for item in info.siblings or ()} - {".gitattributes"}
        if there and not overwrite:
            if _is_there(api, repo_id, run / METRICS_NAME, there):
                # With its card, which people are asked to complete.
                return str(address)
            # What it holds so far are this run's own checkpoints, if the training began to push there.
            keep_others = own_repository(run) == address.repo_id
            if not keep_others:
                raise VotesError(
                    f"{repo_id} exists and holds another model. Choose another name, or replace it with --overwrite."
                )
    files = run_files(run, repo_id)
    # What lies in folders, as checkpoints do, is not the model's.
    stale = [] if keep_others else sorted(name for name in there - files.keys() if "/" not in name)
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    operations += [CommitOperationDelete(name) for name in stale]
    with hub_errors(repo_id, token, again):
        api.create_commit(repo_id, operations, commit_message=message)
    return str(address)


def own_repository(run: Path) -> str | None:
    """The repository that the run in a directory pushes to while it is trained, None if it does not."""
    mark = run / OWN_REPOSITORY
    return json.loads(mark.read_text(encoding="utf-8"))["repository"] if mark.exists() else None


def open_repository(api: HfApi, name: str, private: bool, consent: str) -> tuple[RepoUrl, ModelInfo]:
    """Make a repository if there is none, and refuse one that everybody can see unless that is asked for.

    Args:
        name: perhaps without the owner, who is then the one of the token.
        consent: how to ask for it.
    """
    address = api.create_repo(name, private=private, exist_ok=True)
    info = api.model_info(address.repo_id)
    if private and not info.private:
        raise VotesError(f"{address.repo_id} exists and is public: {consent}, or choose another name.")
    return address, info


def _is_there(api: HfApi, repo_id: str, metrics: Path, there: set[str]) -> bool:
    """Whether the repository holds this very run: no two have the same scores and label stream."""
    if METRICS_NAME not in there:
        return False
    return Path(api.hf_hub_download(repo_id, METRICS_NAME)).read_bytes() == metrics.read_bytes()


def check_repo_id(repo_id: str) -> None:
    """Refuse a name that the Hub would not have."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise VotesError(f"{repo_id!r} is no name of a repository: {error}") from None
    if "/" not in repo_id:
        raise VotesError(f"The repository needs its owner too: owner/{repo_id}.")


def check_finished(run: Path) -> None:
    """Refuse a folder that has no finished run."""
    if not run.is_dir():
        raise VotesError(f"There is no directory {run}: name that of a finished run of `hf-softlabel train`.")
    if not (run / "config.yaml").exists():
        raise VotesError(f"{run} is not a run of `hf-softlabel train`: it has no config.yaml.")
    if not (run / "DONE").exists():
        raise VotesError(f"The run {run} is not finished: it has no DONE. Start its recipe again, and it goes on.")
    if not (run / "model" / "config.json").exists():
        raise VotesError(f"The run {run} has no model/config.json any more: there is no model to push.")


def run_files(run: Path, repo_id: str) -> dict[str, bytes | str]:
    """What is pushed of a run, by its name in the repository: contents, or the path of a file of any size."""
    from ..figures import reliability_diagram
    from ..figures.style import render
    from .card import RELIABILITY_NAME, model_card

    card = model_card(run, repo_id)
    return {
        **model_files(run / "model"),
        METRICS_NAME: (run / METRICS_NAME).read_bytes(),
        RELIABILITY_NAME: render(reliability_diagram(run), "png"),
        CARD_NAME: card.encode(),
    }


def model_files(folder: Path) -> dict[str, bytes | str]:
    """The files of a saved model, or of a checkpoint, that are of use to others."""
    return {
        path.name: _config(path) if path.name.endswith("config.json") else str(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and not any(fnmatch(path.name, pattern) for pattern in NOT_PUBLISHED)
    }


def checkpoint_files(folder: Path) -> dict[str, bytes | str]:
    """The files of a whole checkpoint, from which others can resume, without what is true on this machine only.

    Its manifest, which says what a whole checkpoint has, is that of what is pushed.
    """
    manifest = read_manifest(folder)
    files: dict[str, bytes | str] = {}
    for name in manifest["files"]:
        path = folder / name
        if path.name == "trainer_state.json":
            state = json.loads(path.read_text(encoding="utf-8"))
            best = state["best_model_checkpoint"]
            files[name] = json.dumps({**state, "best_model_checkpoint": best and Path(best).name}, indent=2).encode()
        elif path.name.endswith("config.json"):
            files[name] = _config(path)
        elif path.name not in ("training_args.bin", CARD_NAME):
            files[name] = str(path)
    sizes = {name: _size(content) for name, content in files.items()}
    return {**files, MANIFEST_NAME: json.dumps({**manifest, "files": sizes}, indent=1).encode()}


def _size(content: bytes | str) -> int:
    return len(content) if isinstance(content, bytes) else os.path.getsize(content)


def _config(path: Path) -> bytes:
    """A configuration without what is true on this machine only, and with the loss that the model was trained by."""
    text = path.read_text(encoding="utf-8")
    values = json.loads(text)
    kept = _without_paths(values)
    if kept.get("problem_type") not in (None, "single_label_classification"):
        # Of the checkpoint that was fine-tuned: a pipeline would put a sigmoid on every class.
        kept["problem_type"] = "single_label_classification"
    return text.encode() if kept == values else json.dumps(kept, indent=2).encode()


def _without_paths(value: Any) -> Any:
    """A value of JSON without the absolute paths in it, at any depth."""
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items() if not _is_path(item)}
    if isinstance(value, list):
        return [_without_paths(item) for item in value if not _is_path(item)]
    return value


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and os.path.isabs(value)


@contextmanager
def hub_errors(repo_id: str, token: str | None = None, again: str = "") -> Iterator[None]:
    """Say what went wrong between us and the Hub, what to do about it, and nothing that is secret.

    Args:
        again: how to go on.
    """
    try:
        yield
    except (HTTPError, OSError, RuntimeError) as error:
        # The client's threads, which send the large files, tell only of the file and keep the reason behind it.
        found = error.__cause__ if isinstance(error, RuntimeError) else error
        if not isinstance(found, (HTTPError, OSError)):
            raise
        raise VotesError(f"{trouble(repo_id, found, token)} {again}".strip()) from None


def trouble(repo_id: str, error: BaseException, token: str | None = None) -> str:
    """What a failed push means to the user."""
    status, said = None, None
    if isinstance(error, HfHubHTTPError):
        status, said = error.response.status_code, error.server_message
    reason = " ".join((said or str(error) or type(error).__name__).split()).rstrip(".")
    # The last is that of the environment, or of `hf auth login`.
    for secret in (token, os.environ.get("HF_TOKEN"), get_token()):
        reason = reason.replace(secret, "<token>") if secret else reason
    if status in (401, 403) or isinstance(error, LocalTokenNotFoundError):
        return (
            f"The Hub does not let you write to {repo_id}: {reason}. Log in with `hf auth login`, or give a token "
            "with write access (HF_TOKEN, or --token of `push`)."
        )
    return f"The push to {repo_id} broke off: {reason}."
