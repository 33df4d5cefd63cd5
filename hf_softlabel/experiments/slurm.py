"""Run the cells of a grid as jobs of Slurm, through submitit.

The cells that are not done are submitted as one job array; what a job does is in [`slurm_job`]. `logs/slurm.json` has
the job of each cell, so that a later call waits for those that are queued or running instead of submitting them again.
Whether a cell is finished is said by its `DONE`, and whether a job lives by `squeue`: `sacct`, which submitit itself
asks, needs a data base that many clusters do not have.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint import write_text_atomically
from ..data.errors import VotesError
from . import cell_lock
from .grid import Cell, Grid, cell_command, cell_environment, is_done, log_file
from .launch import launcher_words
from .progress_view import GridView, failure_report
from .slurm_job import CellJob

# A cell that needs longer is requeued. submitit's own default is 5.
DEFAULT_MINUTES = 240
# How often squeue is asked: at first soon, later as rarely as is kind to a cluster.
FIRST_POLL, LAST_POLL = 2.0, 30.0
# Jobs in these states do not come back; those that Slurm requeues by itself are PENDING or REQUEUED.
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}
WAITING = {"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}


@dataclass
class SlurmRun:
    """A grid that runs as jobs of Slurm; wrong parameters are refused when it is made.

    Args:
        parameters: of submitit: `timeout_min`, `cpus_per_task`, `gpus_per_node`, `mem_gb`, and sbatch's own as
            `slurm_partition`, `slurm_account`, ...
        launcher: words before `-m hf_softlabel`, such as `accelerate launch --num_processes 4`.
        retries: how often in a row a cell may be cut off without reaching another checkpoint.
    """

    grid: Grid
    parameters: Mapping[str, Any]
    launcher: Sequence[str] = ()
    retries: int = 2
    jobs: dict[str, str] = field(default_factory=dict)  # of the cells that this call waits for
    found: set[str] = field(default_factory=set)  # those among them whose jobs an earlier call submitted
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.executor = self._make_executor()

    def run(self, wait: bool = True) -> int:
        """Submit every cell that is not done and has no job, and wait for all; returns the exit code."""
        with self._sole_submitter():
            self._submit()
        if not wait:
            print(f"{self.grid.name}: the same command without --no_wait shows how far the jobs are", flush=True)
            return 0
        view = GridView(self.grid, self._at_once())
        try:
            self._watch(view)
        except KeyboardInterrupt:
            ids = " ".join(sorted({job.split("_")[0] for job in self.jobs.values()}, key=int))
            view.close(f"the jobs go on. The same command shows them again; `scancel {ids}` ends them")
            return 130
        view.close()
        if self.failed:
            print(failure_report(self.grid, self.failed), flush=True)
        return 1 if self.failed else 0

    def _make_executor(self) -> Any:
        """submitit's executor with the parameters, which it checks."""
        try:
            import submitit
        except ImportError:
            raise VotesError('--executor slurm needs submitit: pip install "hf_softlabel[slurm]"') from None
        for program in ("sbatch", "srun", "squeue"):
            if shutil.which(program) is None:
                raise VotesError(
                    f"--executor slurm needs Slurm's commands, and {program} is not on the PATH. Give the command on "
                    "a node of the cluster from which jobs are submitted, or leave --executor out to run here."
                )
        # How often a cell may be requeued is for CellJob to say: as long as it gets further.
        executor = submitit.AutoExecutor(self._folder(), cluster="slurm", slurm_max_num_timeout=10**6)
        parameters = self._with_defaults()
        try:
            executor.update_parameters(**parameters)
        except (NameError, AssertionError, TypeError, ValueError) as error:
            raise VotesError(f"--slurm: {error}") from None
        return executor

    def _with_defaults(self) -> dict[str, Any]:
        given = dict(self.parameters)
        for key in ("slurm_time", "time"):
            if key in given:
                raise VotesError(f"--slurm {key}={given[key]}: write timeout_min=MINUTES.")
        for key in ("nodes", "tasks_per_node", "slurm_nodes", "slurm_ntasks_per_node", "slurm_tasks_per_node"):
            if given.get(key, 1) != 1:
                raise VotesError(
                    f"--slurm {key}={given[key]}: a cell is one task on one node. For several processes ask for "
                    "gpus_per_node or cpus_per_task and give a --launcher."
                )
        additional = given.pop("slurm_additional_parameters", {})
        if not isinstance(additional, dict):
            raise VotesError(
                f"--slurm slurm_additional_parameters={additional}: write a JSON object of sbatch options."
            )
        return {
            "name": self.grid.name,
            "timeout_min": DEFAULT_MINUTES,
            "stderr_to_stdout": True,
            # Clusters may be set not to requeue jobs.
            "slurm_additional_parameters": {"requeue": True, **additional},
            **given,
        }

    def _submit(self) -> None:
        """Submit what has to be run as one array, and remember its jobs."""
        from submitit.core.utils import FailedJobError

        unfinished = [cell for cell in self.grid.cells if not is_done(cell)]
        known = self._read_jobs()
        states = job_states() if known else {}
        if states is None:
            raise VotesError("squeue did not answer, so it cannot be known which cells have jobs. Try again later.")
        live = {name for name, job in known.items() if states.get(job, "COMPLETED") not in ENDED}
        new = [cell for cell in unfinished if cell.name not in live]
        self.found = {cell.name for cell in unfinished} & live
        if new:
            try:
                # It prints what it raises.
                with contextlib.redirect_stderr(io.StringIO()), _outside_of_jobs(), self.executor.batch():
                    submitted = [self.executor.submit(self._cell_job(cell)) for cell in new]
            except FailedJobError as error:
                raise VotesError(f"sbatch refused the jobs: {error}") from None
            known |= {cell.name: job.job_id for cell, job in zip(new, submitted, strict=True)}
            write_text_atomically(self._jobs_file(), json.dumps({"jobs": known}, indent=1))
            array = submitted[0].job_id.split("_")[0]
            print(f"{self.grid.name}: submitted {len(new)} of {len(self.grid.cells)} cells as job {array}", flush=True)
        else:
            print(f"{self.grid.name}: nothing to submit", flush=True)
        self.jobs = {cell.name: known[cell.name] for cell in unfinished}
        if self.found:
            ids = " ".join(job for name, job in self.jobs.items() if name in self.found)
            print(f"{self.grid.name}: queued or running already: {ids}", flush=True)

    def _cell_job(self, cell: Cell) -> CellJob:
        lock = log_file(self.grid, cell, ".lock")
        environment = {**cell_environment(self.grid, cell), cell_lock.VARIABLE: str(lock)}
        threads = self.parameters.get("cpus_per_task")
        if threads and not self.launcher and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(threads)
        return CellJob(
            # Other jobs may share the node, so a launcher must look for a port of its own.
            command=cell_command(cell, launcher_words(self.launcher, jobs=2)),
            environment=environment,
            log=log_file(self.grid, cell),
            progress=log_file(self.grid, cell, ".progress.json"),
            lock=lock,
            run=cell.output_dir,
            retries=self.retries,
            launched=bool(self.launcher),
        )

    def _watch(self, view: GridView) -> None:
        """Show the cells until no job is left."""
        began = time.monotonic()
        states = dict.fromkeys((cell.name for cell in self.grid.cells), "finished")
        states |= dict.fromkeys(self.jobs, "waiting")
        waiting_for = {cell.name: cell for cell in self.grid.cells if cell.name in self.jobs}
        gone: set[str] = set()
        next_poll = began
        while waiting_for:
            now = time.monotonic()
            if now >= next_poll:
                next_poll = now + min(LAST_POLL, FIRST_POLL + (now - began) / 20)
                for name, state in self._ask(waiting_for, gone).items():
                    states[name] = state
                    if state in ("finished", "failed"):
                        del waiting_for[name]
            view.update(states, self.failed)
            if waiting_for:
                time.sleep(min(0.5, next_poll - now))
        view.update(states, self.failed)

    def _ask(self, cells: Mapping[str, Cell], gone: set[str]) -> dict[str, str]:
        """The states of cells, as the view calls them.

        Args:
            gone: cells whose jobs had ended without `DONE` when they were looked at last. Network file systems show a
                file late, so that only the second look counts.
        """
        queue = job_states()
        found = {}
        for name, cell in cells.items():
            state = "UNKNOWN" if queue is None else queue.get(self.jobs[name], "COMPLETED")
            if is_done(cell):
                found[name] = "finished"
            elif state not in ENDED:
                gone.discard(name)
                if state in WAITING:
                    found[name] = "waiting"
                elif state != "UNKNOWN":
                    found[name] = "found" if name in self.found else "running"
            elif name in gone:
                found[name] = "failed"
                self.failed[name] = self._reason(cell, queue.get(self.jobs[name]))
            else:
                gone.add(name)
        return found

    def _reason(self, cell: Cell, state: str | None) -> str:
        job = self.jobs[cell.name]
        note = cell_lock.read_note(log_file(self.grid, cell, ".lock"))
        if "failed" in note and note.get("slurm") == job.split("_")[0]:
            return f"failed with exit code {note['failed']} (job {job})"
        ended = f"ended as {state}" if state else "has left the queue"
        return f"has no DONE, and its job {job} {ended} (see {self._folder() / f'{job}_0_log.out'})"

    def _at_once(self) -> int:
        return min(len(self.jobs), int(self.parameters.get("slurm_array_parallelism", len(self.jobs))))

    def _folder(self) -> Path:
        return self.grid.output_dir / "logs" / "slurm"

    def _jobs_file(self) -> Path:
        return self.grid.output_dir / "logs" / "slurm.json"

    def _read_jobs(self) -> dict[str, str]:
        """The last job of each cell."""
        path = self._jobs_file()
        return json.loads(path.read_text(encoding="utf-8"))["jobs"] if path.exists() else {}

    @contextlib.contextmanager
    def _sole_submitter(self) -> Iterator[None]:
        """Two calls at once must not submit the same cells."""
        while (lock := cell_lock.take(self._jobs_file().with_suffix(".lock"))) is None:
            time.sleep(0.1)
        try:
            yield
        finally:
            os.close(lock)


def parse_parameters(words: Sequence[str], jobs: int | None = None) -> dict[str, Any]:
    """`KEY=VALUE` words as submitit's parameters; numbers, lists and mappings as in JSON.

    Args:
        jobs: jobs of the array that may run at once.
    """
    parameters: dict[str, Any] = {"slurm_array_parallelism": jobs} if jobs else {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise VotesError(f"--slurm {word}: parameters are written KEY=VALUE, for instance timeout_min=60.")
        try:
            parameters[key] = json.loads(value)
        except ValueError:
            parameters[key] = value
    return parameters


def job_states() -> dict[str, str] | None:
    """The state of the user's jobs, array tasks apart, that Slurm still knows; None when it does not answer."""
    command = ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i %T"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        return None
    return dict(line.split() for line in answer.stdout.splitlines())


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Hide the job that this command may run in itself: sbatch would hand its settings on."""
    from submitit.helpers import clean_env

    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    configuration = {key: os.environ[key] for key in ("SLURM_CONF",) if key in os.environ}
    with clean_env():
        os.environ.update(configuration)
        yield
