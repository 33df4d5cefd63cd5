"""How a benchmark measures: ours and the peer after each other in the same run, and what is kept of it."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class Row:
    """One comparison.

    Args:
        name: what was measured.
        peer: what it was measured against.
        ratio: in the direction that the target names (times as fast, or times as long); see `unit`.
        unit: what the ratio is of.
        target: `">= 20"`, `"<= 1.02"`, or None where a number is only reported.
        spread: the lowest and highest ratio of the rounds, where there are rounds.
        sizes: how large the work was.
        seconds: of ours and of the peer; medians, to tell how long a benchmark takes, not to be compared.
        checked: how the two were seen to do the same work.
        packages: the peers' packages, whose versions are kept.
    """

    name: str
    peer: str
    ratio: float
    unit: str
    target: str | None = None
    spread: tuple[float, float] | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checked: str = ""
    packages: tuple[str, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the target; None without one."""
        if self.target is None:
            return None
        relation, number = self.target.split()
        return {">=": self.ratio >= float(number), "<=": self.ratio <= float(number)}[relation]

    def as_json(self) -> dict[str, Any]:
        names = ("hf_softlabel", "torch", "transformers", "numpy", *self.packages)
        versions = {"python": platform.python_version()} | {name: version(name) for name in names}
        row = asdict(self) | {"met": self.met, "versions": versions, "machine": machine()}
        del row["packages"]
        return row


def machine() -> dict[str, Any]:
    """What ran it, and how busy it was in the last five minutes, in processes; the benchmark itself is one of them."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].split(":")[1].strip() if models else platform.processor()
    return {"processor": model, "cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1)}


def peer(module: str) -> ModuleType:
    """A peer's module. The peers are no dependencies of ours."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"The peer {module} cannot be imported ({error}). Install all peers with "
            "python -m pip install --no-deps --requirement benchmarks/requirements.txt"
        ) from None


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long `work` takes. The garbage of what ran before is collected first, so that it is not charged to it."""
    gc.collect()
    start = clock()
    work()
    return clock() - start


@dataclass
class Alternation:
    """The rounds of two kinds of work: `ours[i]` and `theirs[i]` ran one after the other."""

    ours: list[float]
    theirs: list[float]

    def row(self, name: str, peer: str, unit: str, target: str | None = None, **rest: Any) -> Row:
        """`unit` is "times as fast" (theirs / ours) or "times as long" (ours / theirs).

        The ratio is the median of the rounds' ratios: a machine that slows down for a while slows both of a round.
        """
        faster = {"times as fast": True, "times as long": False}[unit]
        ratios = [b / a if faster else a / b for a, b in zip(self.ours, self.theirs, strict=True)]
        return Row(
            name,
            peer,
            statistics.median(ratios),
            unit,
            target,
            spread=(min(ratios), max(ratios)) if len(ratios) > 1 else None,
            seconds={"ours": statistics.median(self.ours), "peer": statistics.median(self.theirs)},
            **rest,
        )


def alternate(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Alternation:
    """Run both in turn, and the one that begins in turn too: what comes second finds warmer caches.

    With `time.process_time` as the clock, what else the machine does is not counted: for work of this process alone.
    """
    times = Alternation([], [])
    for number in range(rounds):
        pair = [(ours, times.ours), (theirs, times.theirs)]
        for work, kept in pair if number % 2 == 0 else pair[::-1]:
            kept.append(seconds(work, clock))
    return times


def growth(
    name: str,
    work: Callable[[int], Callable[[], object]],
    n: int,
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    **rest: Any,
) -> Row:
    """The exponent e of a cost that grows as n ** e, from sizes n and 10 n. `work(n)` makes the inputs first."""
    times = alternate(work(10 * n), work(n), rounds, clock)
    row = times.row(name, "the same at a tenth of the size", "times as long", sizes={"from": n, "to": 10 * n}, **rest)
    row.ratio, row.unit = math.log10(row.ratio), "exponent of the growth"
    row.spread = row.spread and (math.log10(row.spread[0]), math.log10(row.spread[1]))
    return row


MEMORY = "MB per million examples"


def memory(
    name: str, beyond: str, work: Callable[[int], Callable[[], object]], n: int, sizes: dict[str, Any], **rest: Any
) -> Row:
    """A row of the table of memory: by how much the peak grows with an example, from n / 4 to n of them.

    What any number of examples takes is told apart, as `fixed MB`. A byte of each is a MB of a million.
    """
    few = max(1, n // 4)
    small, large = peak_memory(work, few), peak_memory(work, n)
    slope = max(0.0, (large - small) / max(1, n - few))  # what does not grow may shrink a little by chance
    return Row(name, beyond, slope, MEMORY, sizes={**sizes, "fixed MB": round((large - n * slope) / 1e6)}, **rest)


def _memory(field_name: str) -> int:
    """`VmRSS` or `VmHWM` of this process, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field_name))


def _peak(work: Callable[..., Callable[[], object]], arguments: tuple, pipe) -> None:
    call = work(*arguments)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _memory("VmRSS")
    kept = call()
    pipe.send(_memory("VmHWM") - before)
    del kept


def peak_memory(work: Callable[..., Callable[[], object]], *arguments: Any) -> int:
    """The bytes by which `work(*arguments)()` raises the peak of a process of its own; its inputs are there before.

    `work` is a function of a module, or a `partial` of one.
    """
    # Processes are forked from one that has imported the module, and has no arrays yet.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([getattr(work, "func", work).__module__])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(work, arguments, there))
    # Of glibc: arrays have pages of their own, so that none takes the place of a freed one, where it would not show.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "1048576"
    process.start()
    del os.environ["MALLOC_MMAP_THRESHOLD_"]
    there.close()
    peak = here.recv()
    process.join()
    return max(peak, os.sysconf("SC_PAGESIZE"))  # small trials may find room in what the process has already
