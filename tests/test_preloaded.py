"""Processes that are forked in place of started: as a caller sees them, they are like any."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from preloaded import python

SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"


def ends(process: Path) -> bool:
    return any(not process.exists() or time.sleep(0.01) for _ in range(1000))


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import sys; print(sys.argv[1:], input()); sys.exit(3)", "a", "b c"],
        ["-c", "import os; print(os.environ['TOLD'], os.getcwd())"],
        ["-c", "import atexit; atexit.register(print, 'at the end'); print(1 / 0)"],
        ["-c", "import sys; sys.exit('a message')"],
        ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
        ["-c", "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()"],
        ["-u", "script.py", "a"],
        ["-m", "script", "a"],
        ["-c", "import huggingface_hub; print(huggingface_hub.constants.ENDPOINT)"],
    ],
)
def test_it_ends_and_says_what_a_new_process_does(tmp_path, words):
    (tmp_path / "script.py").write_text("import sys; print(__name__, sys.argv[1:], sys.path[0])")
    environment = {**os.environ, "TOLD": "something", "HF_ENDPOINT": "http://127.0.0.1:1"}
    ours, other = (
        subprocess.run([start, *words], cwd=tmp_path, env=environment, input="said\n", capture_output=True, text=True)
        for start in (python(), sys.executable)
    )
    assert (ours.returncode, ours.stdout) == (other.returncode, other.stdout)
    assert ours.stderr.splitlines()[-1:] == other.stderr.splitlines()[-1:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_what_ends_it_ends_the_forked_process_in_the_same_way(number):
    def interruptible():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where tests run in the background, and then inherited

    codes = []
    for start in (python(), sys.executable):
        with subprocess.Popen(
            [start, "-c", SLEEP], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=interruptible
        ) as process:
            sleeper = Path("/proc", process.stdout.readline().decode().strip())
            assert sleeper.exists()
            process.send_signal(number)
            codes.append(process.wait(timeout=30))
            assert ends(sleeper)
    assert codes == [-number, -number]


@pytest.mark.parametrize("size", [0, 4, 8, 20])
def test_an_executable_that_dies_before_it_has_asked_takes_nothing_with_it(size):
    for name in ("all", "neutral"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(Path(python()).with_name(name)))
            socket.send_fds(client, [(1000).to_bytes(8, "little").ljust(20, b"{")[:size]], [0, 1, 2]) if size else None
    done = subprocess.run([python(), "-c", "print(1)"], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, b"1\n")


def test_what_it_starts_is_forked_too():
    ask = "print(open('/proc/self/cmdline').read())"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}])"
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "preloaded.py" in done.stdout, done.stderr
