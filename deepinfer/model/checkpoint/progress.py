"""One line of progress on a terminal's stderr; silent where nobody looks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@contextmanager
def showing_bytes(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yields report(done, total), both in bytes; `total` may grow while more is found."""
    console = Console(stderr=True)
    numbers = (DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), *numbers)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
