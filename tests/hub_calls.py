"""What the tests of pushes share: a user's token, commands as a user runs them, and what lies in a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from loopback.hub_writer import Hub, environment
from preloaded import python

TOKEN = "hf_RecognisableSecret"


def command(hub: Hub, home: Path, *words: str, token: str | None = TOKEN) -> subprocess.CompletedProcess:
    """`hf-softlabel` in a new process."""
    run = [python(), "-m", "hf_softlabel", *words]
    return subprocess.run(run, env=environment(hub.url, home, token), capture_output=True, text=True, timeout=120)


def run_code(
    hub: Hub, home: Path, code: str, *arguments: str, folder: Path | None = None, timeout: int = 120
) -> subprocess.CompletedProcess:
    """Python code in a new process, which must succeed."""
    done = subprocess.run(
        [python(), "-c", code, *arguments],
        env=environment(hub.url, home, TOKEN),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused_token_is_not_shown(done: subprocess.CompletedProcess, repo: str, wrong: str) -> None:
    """What `command` said to a token that the Hub does not know."""
    assert done.returncode == 2
    assert f"error: The Hub does not let you write to {repo}: Invalid user token. Log in" in done.stderr
    assert wrong not in done.stdout + done.stderr and "Traceback" not in done.stderr
