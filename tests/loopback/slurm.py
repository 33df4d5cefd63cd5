"""A real Slurm on loopback: munged, slurmctld and slurmd of one machine in a temporary folder, without systemd.

It needs Debian's packages munge, slurmctld, slurmd and slurm-client, and works as root and as an ordinary user (who
can then run only their own jobs). There is no accounting (slurmdbd), as on many small clusters, so that `sacct` fails.

    with serve() as environment:  # SLURM_CONF and PATH for the processes under test

By hand, with a shell that sees it: `python -m tests.loopback.slurm bash`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
# Daemons lie in folders that an ordinary user's PATH leaves out.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
# As quick as Slurm can be: a job credential of 5 s, because a requeued job waits until its old one has expired.
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=2
SchedulerParameters=batch_sched_delay=0
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 NodeHostname={host} CPUs={cpus} State=UNKNOWN
PartitionName=loopback Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why Slurm cannot be started here, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"{', '.join(absent)} not found: apt install munge slurmctld slurmd slurm-client" if absent else None


@contextlib.contextmanager
def serve(cpus: int = 4) -> Iterator[dict[str, str]]:
    """Start Slurm with one node of so many CPUs, whatever the machine has; gives the environment of its clients."""
    # A socket's path must be short, which pytest's temporary folders are not, and munged wants it open to all.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    environment |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
    daemons: list[subprocess.Popen] = []
    try:
        _write(folder, cpus)
        munge = [f"--{name}-file={folder / f'munge.{name}'}" for name in ("key", "pid", "seed", "log")]
        daemons.append(_start(["munged", "--foreground", f"--socket={folder / 'munge.socket'}", *munge], environment))
        _wait_until(lambda: (folder / "munge.socket").exists(), "munged", folder, daemons)
        daemons.append(_start(["slurmctld", "-D"], environment, folder / "slurmctld.log"))
        daemons.append(_start(["slurmd", "-D"], environment, folder / "slurmd.log"))
        _wait_until(
            lambda: _ask(["sinfo", "--noheader", "--format=%t"], environment) == "idle", "Slurm", folder, daemons
        )
        try:
            yield environment
        finally:
            # Processes of jobs outlive slurmd.
            _ask(["scancel", "--quiet", f"--user={getpass.getuser()}"], environment)
            _wait_until(lambda: _ask(["squeue", "--noheader"], environment) == "", "empty queue", folder, daemons)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, cpus: int) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    host = socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(user=getpass.getuser(), folder=folder, ports=_free_ports(2), host=host, cpus=cpus)
    (folder / "slurm.conf").write_text(text)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def _start(command: list[str], environment: dict[str, str], log: Path | None = None) -> subprocess.Popen:
    # In the foreground, so that its process id is ours to end, but in a session of its own: Ctrl-C is for the test.
    program = shutil.which(command[0], path=PATH)
    with open(log or os.devnull, "wb") as output:
        return subprocess.Popen(
            [program, *command[1:]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _ask(command: list[str], environment: dict[str, str]) -> str | None:
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _wait_until(condition, what: str, folder: Path, daemons: list[subprocess.Popen], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        dead = [daemon.args[0] for daemon in daemons if daemon.poll() is not None]
        if dead or time.monotonic() > end:
            reason = f"{dead[0]} ended" if dead else f"waited {seconds:.0f} s"
            logs = [f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in folder.glob("*.log")]
            raise RuntimeError("\n".join([f"No {what} on loopback: {reason}.", *logs]))
        time.sleep(0.1)


if __name__ == "__main__":
    with serve() as clients:
        sys.exit(subprocess.run(sys.argv[1:], env=clients).returncode)
