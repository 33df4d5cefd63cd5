"""Python processes that start in a moment, for tests that start many.

Importing torch and transformers takes a process ten seconds of a core, and most processes of the tests do little else.
`python()` is an executable to use in place of `sys.executable`: real processes, forked from one that has imported
these packages already. Processes that they start by `sys.executable` in turn (cells of a grid, workers of `accelerate
launch`) are such processes too. The signals that end or wake a process are passed on to it, and it is killed when the
executable is; it ends with the same code. It has no other open files than stdin, stdout and stderr, none of the
executable's limits, the same hash seed as all others, and is not in the executable's process group. Where these
matter, or the imports themselves, use `sys.executable`.

A process whose environment says something to Hugging Face's packages or W&B, which read it when they are imported,
imports these itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

import numpy

NEUTRAL = (
    "torch._dynamo, torch._inductor, torch.distributed.tensor, torch.distributed.fsdp, torchvision, "
    "scipy.stats, pandas, pyarrow.dataset, sklearn.isotonic"
)
READ_AT_IMPORT = ("HOME", "HF_", "HUGGINGFACE", "TRANSFORMERS_", "WANDB_", "TRACKIO_", "XDG_", "MPL")
# That of the whole test run: what a single test sets is of no concern to the others.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

# The executable. `-I` and `-S` keep its own start short.
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

unbuffered = sys.argv[1:2] == ["-u"]
words = sys.argv[2:] if unbuffered else sys.argv[1:]
if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
told = {{k: v for k, v in os.environ.items() if k.startswith({prefixes!r}) and not k.startswith("HF_SOFTLABEL_")}}
server = socket.socket(socket.AF_UNIX)
server.connect({folder!r} + ("/all" if told == {told!r} else "/neutral"))
interruptible = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
request = dict(words=words, unbuffered=unbuffered, interruptible=interruptible)
request = json.dumps(dict(request, environment=dict(os.environ), folder=os.getcwd())).encode()
socket.send_fds(server, [len(request).to_bytes(8, "little")], [0, 1, 2])
server.sendall(request)



def answer():
    said = server.recv(8)
    if not said:
        sys.exit("The preloaded process that was to be forked has ended.")
    return int.from_bytes(said, "little")


pid = answer()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
status = os.waitstatus_to_exitcode(answer())
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def python() -> str:
    """The executable's path. What it needs is started with the first call, and ends with this process."""
    folder = tempfile.mkdtemp(prefix="preloaded-")
    command = [sys.executable, __file__, folder]
    # In a session of its own: Ctrl-C is for the tests.
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.wait)
    atexit.register(process.terminate)
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    return os.path.join(folder, "python")


def write_client(folder: str) -> None:
    told = {k: v for k, v in os.environ.items() if k.startswith(READ_AT_IMPORT) and not k.startswith("HF_SOFTLABEL_")}
    path = Path(folder, "python")
    path.write_text(CLIENT.format(python=sys.executable, folder=folder, told=told, prefixes=READ_AT_IMPORT))
    path.chmod(0o755)


def serve(address: str) -> dict:
    """Fork a process for every request: returns in that process only, with the request."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    running: dict[int, tuple[int, socket.socket]] = {}  # by the file that tells when a process has ended
    while True:
        clients = {client: (file, pid) for file, (pid, client) in running.items()}
        for ready in select.select([listener, *running, *clients], [], [])[0]:
            if ready is listener:
                client, _ = listener.accept()
                request, files = read_request(client)
                if request is None:
                    client.close()
                    continue
                pid = os.fork()
                if not pid:
                    end_with_parent(signal.SIGKILL)
                    os.setpgid(0, 0)
                    for number, file in enumerate(files):
                        os.dup2(file, number)
                    for file in (*files, *running):
                        os.close(file)
                    for other in (listener, client, *clients):
                        other.close()
                    return request
                for file in files:
                    os.close(file)
                with contextlib.suppress(OSError):
                    os.setpgid(pid, pid)  # whoever of both comes first
                with contextlib.suppress(OSError):
                    client.sendall(pid.to_bytes(8, "little"))
                running[os.pidfd_open(pid)] = pid, client
            elif ready in running:
                pid, client = running.pop(ready)
                os.close(ready)
                _, status = os.waitpid(pid, 0)
                with client, contextlib.suppress(OSError):
                    client.sendall(status.to_bytes(8, "little"))
            elif clients[ready][0] in running:
                os.kill(clients[ready][1], signal.SIGKILL)  # nobody is there any more: the executable was killed


def read_request(client: socket.socket) -> tuple[dict | None, list[int]]:
    """What is asked for, and stdin, stdout and stderr; None of an executable that was killed meanwhile."""
    client.settimeout(60)
    files: list[int] = []
    try:
        size, files, _, _ = socket.recv_fds(client, 8, 3)
        with client.makefile("rb") as stream:
            request = json.loads(stream.read(int.from_bytes(size, "little")))
        client.settimeout(None)
        return request, files
    except (OSError, ValueError):
        for file in files:
            os.close(file)
        return None, []


def become(request: dict, folder: str) -> None:
    """Run what was asked for, as a new Python process would."""
    words, environment = request["words"], request["environment"]
    os.chdir(request["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler if request["interruptible"] else signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    numpy.random.seed()  # as that of `random`, which Python sees to
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    encoding, _, errors = environment.get("PYTHONIOENCODING", "").partition(":")
    # They are open as long as the process is.
    sys.stdin = open(0, encoding=encoding or None, errors=errors or None)  # noqa: SIM115
    buffering = 1 if environment.get("PYTHONUNBUFFERED") or request["unbuffered"] else -1
    sys.stdout = open(1, "w", buffering, encoding=encoding or None, errors=errors or None)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=encoding or None, errors="backslashreplace")  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    # multiprocessing hands open files to the processes that it starts.
    multiprocessing.set_executable(sys.executable)
    sys.executable = os.path.join(folder, "python")
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Also if it is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def main(folder: str) -> None:
    write_client(folder)
    sys.path.pop(0)  # the folder of the tests
    end_with_parent()
    exec(f"import {NEUTRAL}", {})
    all_imported = os.fork() == 0
    if all_imported:
        end_with_parent()
        try:
            exec("import hf_softlabel.run", {})
        except BaseException:
            os.kill(os.getppid(), signal.SIGTERM)  # or the tests would wait for both
            raise
    gc.collect()
    gc.freeze()  # a forked process then copies fewer pages
    request = serve(os.path.join(folder, "all" if all_imported else "neutral"))
    code, interrupted = 0, False
    try:
        become(request, folder)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if not isinstance(stop.code, int | None):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        sys.excepthook(type(error), error, error.__traceback__)
    # As Python ends, but for taking every module apart, which takes seconds.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
