"""Launches that really run: written by `deepinfer launch`, started as scripts, looked at by their processes."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deepinfer.cli.main import main

TINY = ("model=v41_tiny", "hardware=cpu", "task.run=generate")
SHORT = (*TINY, "sampling.max_tokens=12")
LONG = (
    *TINY,
    "sampling.max_tokens=3500",
    "sampling.ignore_eos=true",
)  # minutes of answers: a fault is in the midst of them
IMPATIENT = ("executor=distributed", "executor.heartbeat_s=0.5", "executor.silence_s=8")


class Started:
    """One script of a launch and what it says, in a session of its own."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    def until(self, there: Callable[[], bool], within_s: float = 240.0) -> None:
        """Wait until something is so; fails where the script ends first, or with its text after `within_s`."""
        deadline_s = time.monotonic() + within_s
        while not there():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err}"
            assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {self.err}"
            time.sleep(0.05)

    def ended(self, within_s: float) -> int:
        """The exit code; subprocess.TimeoutExpired where it does not end within `within_s`."""
        return self.process.wait(within_s)


def launch(folder: Path, *overrides: str) -> Path:
    """The folder of a new launch."""
    assert main(["launch", *overrides, f"out={folder}"]) == 0
    return folder


@contextlib.contextmanager
def started(*commands: Sequence[str | Path], logs: Path) -> Iterator[list[Started]]:
    """Scripts beside each other; whatever of them is left in the end is killed."""
    logs.mkdir(exist_ok=True)
    scripts: list[Started] = []
    try:
        for number, command in enumerate(commands):
            scripts.append(Started(command, logs / str(number)))
        yield scripts
    finally:
        for script in scripts:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.process.pid, signal.SIGKILL)
            script.process.wait(10)


def ranks_of(launched: Path | str) -> dict[int, int]:
    """RANK → process of all ranks of a launch that run now: by its folder, or by a variable of theirs, "NAME=VALUE"."""
    mark = (f"plan={launched}/plan.json" if isinstance(launched, Path) else launched).encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
            rank = [variable[5:] for variable in variables if variable.startswith(b"RANK=")]
            if rank and b"deepinfer" in words and mark in (*words, *variables):
                found[int(rank[0])] = int(process.name)
    return found


def none_left(launched: Path | str, within_s: float = 30.0) -> bool:
    """Whether no rank of a launch runs any more."""
    deadline_s = time.monotonic() + within_s
    while ranks_of(launched) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return not ranks_of(launched)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether nobody takes a call at a port of this machine."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) != 0


def without_speed(text: str) -> str:
    """What the main job printed, without its last line, which tells of times."""
    answers, _, _ = text.rpartition("\n\n")
    return answers
