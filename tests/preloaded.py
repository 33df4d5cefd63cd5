"""Python processes that start in a moment, for tests that start many.

Importing torch and transformers takes a process ten seconds of a core, and most processes of the tests do little else.
`python()` is an executable to use in place of `sys.executable`: real processes, forked from one that has imported
these packages already. Processes that they start by `sys.executable` in turn (cells of a grid, workers of `accelerate
launch`) are such processes too. Signals to one are passed on to it, but for SIGSTOP, and it is killed when the
executable is; it ends with the same code. It has no other open files than stdin, stdout and stderr, none of the
executable's limits, and is not in its process group. Where these matter, or the imports themselves, use
`sys.executable`.

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
import traceback
from pathlib import Path

NEUTRAL = (
    "torch._dynamo, torch._inductor, torch.distributed.tensor, torch.distributed.fsdp, torchvision, "
    "scipy.stats, pandas, pyarrow.dataset, sklearn.isotonic"
)
READ_AT_IMPORT = ("HF_", "HUGGINGFACE", "TRANSFORMERS_", "WANDB_", "TRACKIO_", "XDG_", "MPL")
# That of the whole test run: what a single test sets is of no concern to the others.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

# The executable. `-I` and `-S` keep its own start short.
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

words = sys.argv[1:]
while words[:1] == ["-u"]:
    words = words[1:]
if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
told = {{k: v for k, v in os.environ.items() if k.startswith({prefixes!r}) and not k.startswith("HF_SOFTLABEL_")}}
server = socket.socket(socket.AF_UNIX)
server.connect({folder!r} + ("/all" if told == {told!r} else "/neutral"))
interruptible = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
request = dict(words=words, environment=dict(os.environ), folder=os.getcwd(), interruptible=interruptible)
request = json.dumps(request).encode()
socket.send_fds(server, [len(request).to_bytes(8, "little")], [0, 1, 2])
server.sendall(request)
pid = int.from_bytes(server.recv(8), "little")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
status = os.waitstatus_to_exitcode(int.from_bytes(server.recv(8), "little"))
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
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
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
                size, files, _, _ = socket.recv_fds(client, 8, 3)
                with client.makefile("rb") as stream:
                    request = json.loads(stream.read(int.from_bytes(size, "little")))
                pid = os.fork()
                if not pid:
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


def become(request: dict, folder: str) -> None:
    """Run what was asked for, as a new Python process would."""
    words, environment = request["words"], request["environment"]
    os.chdir(request["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler if request["interruptible"] else signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    encoding, _, errors = environment.get("PYTHONIOENCODING", "").partition(":")
    # They are open as long as the process is.
    sys.stdin = open(0, encoding=encoding or None, errors=errors or None)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding or None, errors=errors or None)  # noqa: SIM115
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
        exec(compile(words[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def end_with_parent() -> None:
    """Also if it is killed. What is forked later does not end with this process, but with its executable."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main(folder: str) -> None:
    write_client(folder)
    sys.path.pop(0)  # the folder of the tests
    end_with_parent()
    exec(f"import {NEUTRAL}", {})
    all_imported = os.fork() == 0
    if all_imported:
        end_with_parent()
        exec("import hf_softlabel.run", {})
    gc.collect()
    gc.freeze()  # a forked process then copies fewer pages
    request = serve(os.path.join(folder, "all" if all_imported else "neutral"))
    code = 0
    try:
        become(request, folder)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if not isinstance(stop.code, int | None):
            print(stop.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    # As Python ends, but for taking every module apart, which takes seconds.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
