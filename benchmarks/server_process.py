"""A server under test as the system sees it: memory and CPU time of its process and of its engine's."""

import os
from pathlib import Path
from typing import NamedTuple

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Used(NamedTuple):
    """Bytes resident and seconds of CPU so far."""

    rss: int
    cpu_s: float


def used(pid: int) -> Used:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Used(int(fields[21]) * _PAGE, (int(fields[11]) + int(fields[12])) * _TICK_S)


def engines_of(pid: int) -> list[int]:
    """The children that compute."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            found += [int(child)] if b"rank_child" in command else []
    return found
