"""Looking at a machine: files, commands and installed packages, behind one small interface that a test can fake.

Nothing here opens a device: a probe must leave CUDA and CANN untouched, and must work where neither is installed.
"""

import glob
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Protocol

from deepinfer.config.env import Foreign, foreign

COMMAND_TIMEOUT_S = 10.0  # nvidia-smi of a wedged driver never returns


class Machine(Protocol):
    """The few questions a probe asks. Every answer is None or empty where the thing is not there."""

    system: str  # linux, darwin, windows
    architecture: str  # x86_64, aarch64
    python: str  # 3.11.7
    cores: int  # that this process may use
    foreign: Foreign

    def read(self, path: str) -> str | None:
        """Text of a file."""

    def find(self, pattern: str) -> list[str]:
        """Paths that match a glob pattern, sorted."""

    def which(self, command: str) -> str | None:
        """Where a command lies."""

    def run(self, *argv: str) -> str | None:
        """Standard output of a command that ended with 0."""

    def version(self, distribution: str) -> str | None:
        """Version of an installed Python distribution."""


class Host:
    """The machine this process runs on."""

    def __init__(self) -> None:
        self.system = platform.system().lower()
        self.architecture = platform.machine()
        self.python = platform.python_version()
        # affinity, not the socket: containers and taskset give a process fewer cores than the machine has
        self.cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.foreign = foreign()

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def find(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern))

    def which(self, command: str) -> str | None:
        return shutil.which(command)

    def run(self, *argv: str) -> str | None:
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=COMMAND_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def version(self, distribution: str) -> str | None:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None
