"""How long a new process takes for our imports and our help, beside those of transformers."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .measure import Row, alternate, seconds

ROUNDS = 9


def rows(scale: float) -> Iterator[Row]:
    rounds = max(1, round(ROUNDS * scale))
    same = {"sizes": {"new processes of each": rounds}, "checked": "each process ends with exit code 0"}
    nothing, import_ours, import_theirs = python("pass"), python("import hf_softlabel"), python("import transformers")
    for work in (nothing, import_ours, import_theirs):
        work()  # compiles what is not compiled yet
    times = alternate(import_ours, import_theirs, rounds)
    yield times.row("import hf_softlabel", "import transformers", "times as long", "<= 1.0", **same)
    times = alternate(import_ours, nothing, rounds)
    yield times.row("import hf_softlabel", "a process that imports nothing", "times as long", **same)
    times = alternate(
        python("from hf_softlabel import SLSTrainer"), python("from transformers import Trainer"), rounds
    )
    yield times.row("from hf_softlabel import SLSTrainer", "from transformers import Trainer", "times as long", **same)
    taken = [seconds(show_help) for _ in range(rounds)]
    yield Row(
        "hf-softlabel --help",
        "none: a bound",
        statistics.median(taken),
        "s",
        "<= 0.5",
        spread=(min(taken), max(taken)),
        **same,
    )


def python(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def show_help() -> None:
    command = Path(sys.executable).with_name("hf-softlabel")
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
