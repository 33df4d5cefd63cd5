"""A grid on a real Slurm, which runs on loopback (see tests/loopback/slurm.py)."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback import slurm as loopback
from preloaded import python

from hf_softlabel.checkpoint import last_whole_checkpoint, write_manifest
from hf_softlabel.cli import main
from hf_softlabel.experiments.slurm import job_states
from hf_softlabel.experiments.slurm_job import CellJob

pytestmark = pytest.mark.slow
RECIPE = Path(__file__).parents[1] / "recipes" / "synthetic" / "text.yaml"
# Jobs stay in the queue.
HOLD = 'slurm_additional_parameters={"hold": true}'


@pytest.fixture(scope="module")
def cluster():
    reason = loopback.missing()
    if reason:
        pytest.skip(f"no Slurm here: {reason}")
    with loopback.serve() as environment:
        yield environment


@pytest.fixture
def clients(cluster, monkeypatch):
    """This process itself is a client of the cluster."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster[name])


def write_grid_file(folder: Path, axes: object, **options) -> Path:
    path = folder / "grid.yaml"
    path.write_text(
        json.dumps({"recipe": str(RECIPE), "output_dir": str(folder / "runs"), "options": options, "axes": axes})
    )
    return path


def wait_for(condition: Callable[[], object], process: subprocess.Popen | None = None) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "waited too long"
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def jobs_of(runs: Path) -> dict[str, str]:
    path = runs / "logs" / "slurm.json"
    return json.loads(path.read_text())["jobs"] if path.exists() else {}


def digest(run: Path) -> str:
    return json.loads((run / "metrics.json").read_text())["ledger_digest"]


@contextlib.contextmanager
def running(words: list[str], **environment: str) -> Iterator[subprocess.Popen]:
    """The command in a process of its own, which does not outlive the test."""
    process = subprocess.Popen(
        [python(), "-m", "hf_softlabel", *words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Ignored where tests run in the background, and then inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def scancel(*words: str) -> None:
    subprocess.run(["scancel", *words], check=True)


def test_cells_are_requeued_with_their_checkpoints_and_failures_are_told(tmp_path, clients):
    axes = [
        {"delivery": ["sls"], "seed": [0, 1]},
        {"subset": ["sounds"]},  # there is no such data, which is found when the cell runs
        {"delivery": ["soft"]},
    ]
    path, runs = write_grid_file(tmp_path, axes, num_train_epochs=6), tmp_path / "runs"
    words = ["grid", str(path), "--executor", "slurm", "--slurm", "timeout_min=5"]
    # Called from within another job, whose number of tasks is not that of the cells.
    with running(words, SLURM_JOB_ID="1", SLURM_NTASKS="2") as process:
        wait_for(lambda: jobs_of(runs), process)
        jobs = jobs_of(runs)
        assert sorted(jobs.values()) == [f"{jobs['soft'].split('_')[0]}_{i}" for i in range(4)]  # one array
        wait_for(lambda: job_states()[jobs["soft"]] == "RUNNING", process)
        scancel(jobs["soft"])
        # What Slurm sends shortly before the time limit, and when a job is preempted.
        signals = {"sls-seed0": ["USR2"], "sls-seed1": ["TERM", "USR2"]}

        def all_signalled() -> bool:
            for name in [name for name in signals if last_whole_checkpoint(runs / name)]:
                for number in signals.pop(name):
                    scancel(f"--signal={number}", jobs[name])
            return not signals

        wait_for(all_signalled, process)
        output = process.communicate()[0]

    assert process.returncode == 1
    assert "2 cells of 4 failed" in output
    assert f"failed    subsetsounds: failed with exit code 2 (job {jobs['subsetsounds']})" in output
    assert "\n  | hf-softlabel: error: " in output  # the end of its log
    assert f"soft has no DONE, and its job {jobs['soft']} ended as CANCELLED" in output
    assert not list((runs / "logs" / "slurm").glob("*_1_log.out"))  # of second tasks
    straight = tmp_path / "straight"
    for seed in (0, 1):
        name = f"sls-seed{seed}"
        log = (runs / "logs" / f"{name}.log").read_text()
        stopped, resumed = log.split("hf-softlabel: requeued by Slurm, to go on from checkpoint-")
        assert "Resuming from" not in stopped and "Resuming from" in resumed
        assert f"cut off   {name}" in output and f"finished  {name}" in output
        same = ["--delivery=sls", f"--seed={seed}", "--num_train_epochs=6"]
        assert main(["train", str(RECIPE), *same, f"--output_dir={straight / name}"]) == 0
        digests = [
            json.loads((base / name / "metrics.json").read_text())["ledger_digest"] for base in (runs, straight)
        ]
        assert digests[0] == digests[1]

    # What is done is not submitted again, and what failed before is not what happens now.
    with running([*words, HOLD]) as process:
        wait_for(lambda: jobs_of(runs) != jobs, process)
        again = jobs_of(runs)
        scancel(again["soft"].split("_")[0])
        output = process.communicate()[0]
    assert {name for name in jobs if again[name] != jobs[name]} == {"subsetsounds", "soft"}
    assert "submitted 2 of 4 cells" in output and process.returncode == 1
    assert len(re.findall(r"failed    \w+: has no DONE, and its job \d+_[01] (has left|ended as CANC)", output)) == 2


def test_cells_in_the_queue_are_not_submitted_again(tmp_path, clients, capsys):
    path, runs = write_grid_file(tmp_path, {"seed": [0, 1, 2]}), tmp_path / "runs"
    words = ["grid", str(path), "--executor", "slurm", "--jobs", "2", "--no_wait", "--slurm", HOLD]
    assert main(words) == 0
    first = jobs_of(runs)
    array = first["seed0"].split("_")[0]
    assert f"submitted 3 of 3 cells as job {array}" in capsys.readouterr().out
    shown = subprocess.run(["scontrol", "show", "job", array], capture_output=True, text=True, check=True).stdout
    assert "ArrayTaskThrottle=2" in shown and "Requeue=1" in shown and "TimeLimit=04:00:00" in shown

    before = job_states()
    assert main(words) == 0
    assert "nothing to submit" in capsys.readouterr().out
    assert jobs_of(runs) == first and job_states() == before

    scancel(first["seed1"])
    wait_for(lambda: first["seed1"] not in job_states())
    assert main(words) == 0
    assert "submitted 1 of 3 cells" in capsys.readouterr().out
    second = jobs_of(runs)
    assert {name for name in first if second[name] != first[name]} == {"seed1"}
    assert job_states()[second["seed1"]] == "PENDING"


def test_two_calls_at_once_submit_each_cell_once_and_end_without_the_jobs(tmp_path, clients):
    path, runs = write_grid_file(tmp_path, {"seed": [0, 1]}), tmp_path / "runs"
    words = ["grid", str(path), "--executor", "slurm", "--slurm", HOLD]
    before = job_states()
    with running(words) as one, running(words) as other:
        outputs = []
        for process in (one, other):
            lines = [process.stdout.readline()]
            while lines[-1] and "2 cells, in" not in lines[-1]:
                lines.append(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            outputs.append("".join(lines) + process.communicate()[0])
    assert one.returncode == other.returncode == 130
    assert sorted("nothing to submit" in output for output in outputs) == [False, True], outputs
    assert len(job_states()) == len(before) + 2
    array = jobs_of(runs)["seed0"].split("_")[0]
    assert all(f"`scancel {array}` ends them" in output for output in outputs)
    assert [job_states()[job] for job in jobs_of(runs).values()] == ["PENDING"] * 2


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("timeout_min", "KEY=VALUE"),
        ("timeout_min=soon", "timeout_min"),
        ("slurm_time=1-00:00:00", "timeout_min=MINUTES"),
        ("nodes=2", "one task on one node"),
        ("slurm_additional_parameters=hold", "JSON object"),
        ("slurm_color=red", "Unknown argument 'color'"),
        ("slurm_partition=moon", "sbatch refused the jobs: .*invalid partition"),
    ],
)
def test_wrong_parameters_are_refused(tmp_path, clients, capsys, word, message):
    path = write_grid_file(tmp_path, {"seed": [0, 1]})
    before = job_states()
    assert main(["grid", str(path), "--executor", "slurm", "--slurm", word]) == 2
    assert re.search(f"hf-softlabel: error: .*{message}", capsys.readouterr().err, re.DOTALL)
    assert job_states() == before and not jobs_of(tmp_path / "runs")


def test_without_slurm_or_submitit_it_is_said_how_to_get_them(tmp_path, monkeypatch, capsys):
    path = write_grid_file(tmp_path, {"seed": [0]})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["grid", str(path), "--executor", "slurm"]) == 2
    assert "sbatch is not on the PATH" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["grid", str(path), "--executor", "slurm"]) == 2
    assert 'pip install "hf_softlabel[slurm]"' in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main(["grid", str(path), "--no_wait"]) == 2
    assert "--executor slurm" in capsys.readouterr().err


def cell_job(folder: Path, script: str, retries: int = 2) -> CellJob:
    """A job whose cell is a shell script."""
    names = ("log", "progress", "lock", "run")
    paths = {name: folder / name for name in names}
    paths["run"].mkdir()
    return CellJob(["sh", "-c", script], {"COUNT": str(folder / "count")}, **paths, retries=retries, launched=False)


@pytest.fixture
def keep_handlers():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_killed_cell_goes_on_within_its_job(tmp_path, keep_handlers):
    cell_job(tmp_path, 'echo >> "$COUNT"; test $(wc -l < "$COUNT") -gt 2 || kill -9 $$')()
    assert (tmp_path / "log").read_text().count("was killed and goes on") == 2


def test_a_cell_that_is_always_killed_is_given_up(tmp_path, keep_handlers):
    with pytest.raises(RuntimeError, match="exit code -9"):
        cell_job(tmp_path, 'echo >> "$COUNT"; kill -9 $$', retries=1)()
    assert (tmp_path / "count").read_text() == "\n" * 2
    assert "given up" in (tmp_path / "log").read_text()


def test_a_cell_that_fails_by_itself_is_not_started_again(tmp_path, keep_handlers):
    with pytest.raises(RuntimeError, match="exit code 3"):
        cell_job(tmp_path, 'echo >> "$COUNT"; exit 3')()
    assert (tmp_path / "count").read_text() == "\n"
    assert json.loads((tmp_path / "lock").read_text())["failed"] == 3


def test_a_cell_does_not_get_the_warning_that_is_for_its_job(tmp_path, keep_handlers):
    job = cell_job(tmp_path, "")
    job.command = ["grep", "SigBlk", "/proc/self/status"]  # a shell would unblock it
    job()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", (tmp_path / "log").read_text())[1], 16)
    assert blocked == 1 << (signal.SIGUSR2 - 1)
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_job_is_requeued_as_long_as_it_reaches_checkpoints(tmp_path):
    job = cell_job(tmp_path, "true", retries=1)
    for step, requeued in ((None, True), (None, False), (10, True), (10, True), (20, True), (20, True), (20, False)):
        if step and not (checkpoint := tmp_path / "run" / f"checkpoint-{step}").exists():
            checkpoint.mkdir()
            write_manifest(checkpoint, {}, {})
        submission = job.checkpoint()
        assert (submission is not None) == requeued, step
        job = submission.function if submission else job
    assert "to go on from checkpoint-20" in (tmp_path / "log").read_text()


def test_a_job_that_is_told_to_end_waits_for_what_slurm_decides(tmp_path):
    job = cell_job(tmp_path, 'echo >> "$COUNT"; exec sleep 60')
    (tmp_path / "job").write_bytes(pickle.dumps(job))
    program = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))()"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "job")]) as process:
        try:
            wait_for(lambda: (tmp_path / "count").exists())
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            # First the cell, as it may happen when Slurm signals one process after the other.
            os.kill(int(children[0]), signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            time.sleep(2)
            assert process.poll() is None
            assert (tmp_path / "count").read_text() == "\n"  # it was not started again
        finally:
            process.kill()
