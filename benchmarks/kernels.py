"""Every device kernel timed on this machine's GPU, beside its peers, floor and target.

    python benchmarks/kernels.py [--only fp8_linear top_k] [--seconds 60] [--record]

Runs `pytest -m gpu -k speed --time FILE` on one file of tests/kernels after another. Some of these tests compare with the twin
before they time; that every value is right, `pytest tests/kernels -m gpu` says. `--only` takes words of names of tests or
files, `--seconds` is what one file may take. With `--record` the lines of the tests that passed are appended to
benchmarks/results/kernels.jsonl, of which `python benchmarks/kernels_report.py --write` makes the tables of the documentation.
Files that failed or were too slow are named at the end, and the exit status is 1. A peer's number is its time over ours. `bash
benchmarks/peer_environment.sh` makes .venv-peers, whose Python has the peers. How to read the columns: docs/performance.md.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import record
import torch
from kernel_lines import Line, beside, micros, notices, rate, read, verdict
from result_lines import add
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
WIDE = 220  # columns of the table where it is not shown on a terminal
NOTHING_CHOSEN = 5  # pytest's exit status
WITHOUT = ("-p", "no:cacheprovider")


@dataclass(frozen=True)
class Ran:
    """A test file: the lines of its tests that passed, and why it is not done in one sentence, or nothing."""

    file: Path
    lines: list[Line]
    failure: str = ""


def timing_files(only: Sequence[str] = ()) -> list[Path]:
    """Test files that time something, and where words are asked for, have one of them in their name or text."""
    files = {file: file.read_text("utf-8") for file in sorted((ROOT / "tests" / "kernels").glob("test_*.py"))}
    timing = {
        file: f"{file.stem} {text}"
        for file, text in files.items()
        if re.search(r"\btimed\(", text) and "mark.gpu" in text
    }
    return [file for file, text in timing.items() if not only or any(word in text for word in only)]


def run(file: Path, only: Sequence[str], seconds: float) -> Ran:
    """One file's timing tests in a process of their own."""
    words = f"speed and ({' or '.join(only)})" if only else "speed"
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", *WITHOUT, "-m", "gpu", "-k", words]
        command += ["--time", str(lines), str(file)]
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=seconds, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            return Ran(file, read(lines), f"stopped after {seconds:g} s; give it more with --seconds")
        if done.returncode in (0, NOTHING_CHOSEN):
            return Ran(file, read(lines))
        said = [row for row in done.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))]
        return Ran(file, read(lines), "; ".join(said) or (done.stdout + done.stderr).strip()[-500:])


def table(lines: Sequence[Line]) -> Table:
    """One row a case."""
    shown = Table("op", "case", "variant", "µs", "rate", "share of floor", "target", "peers")
    for line in lines:
        share = f"{line['share']:.0%} of {line['bound']}"
        cells = line.get("variant", ""), micros(line["median_us"]), rate(line), share, verdict(line), beside(line)
        shown.add_row(line["op"], line["case"], *cells)
    return shown


def _word(text: str) -> str:
    """One that pytest's -k takes as a name."""
    if re.fullmatch(r"[\w.:-]+", text) is None or text in ("and", "or", "not", "None", "True", "False"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no word of a test's name: letters, digits, _ . : -, like fp8_linear"
        )
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time that a test file may take: give seconds above 0")
    return seconds


def _unwritable(results: Path) -> str:
    """Why nothing can be added to a file; nothing where that is possible."""
    try:
        results.parent.mkdir(exist_ok=True)
        results.open("ab").close()
    except OSError as fault:
        return fault.strerror or str(fault)
    return ""


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--only", nargs="+", default=[], type=_word, help="words of names of tests or files")
    parser.add_argument("--seconds", type=_seconds, default=60, help="for one test file; 60 if not given")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            f"no CUDA device here: torch {torch.__version__} finds none; kernels are timed on a GPU; "
            "for what this machine lacks type: python -m deepinfer doctor"
        )
    results = record.RESULTS / "kernels.jsonl"
    if args.record and (why := _unwritable(results)):
        sys.exit(
            f"nothing was timed: --record adds to {results}, which cannot be written ({why}); leave out --record to only time"
        )
    bar = Console(stderr=True)
    files = track(timing_files(args.only), "timing", console=bar, disable=not bar.is_terminal)
    ran = []
    for file in files:
        ran.append(run(file, args.only, args.seconds))
        if args.record and ran[-1].lines:  # at once: what is stopped later keeps what was timed before
            add(results, ran[-1].lines)
    lines = [line for one in ran for line in one.lines]
    if lines:
        console = Console() if sys.stdout.isatty() else Console(width=WIDE)
        console.print(table(lines))
        for notice in notices(lines):
            console.print(notice, markup=False)
    if failed := [f"{one.file.name}: {one.failure}" for one in ran if one.failure]:
        sys.exit("not timed, or not all of it:\n" + "\n".join(failed))
    if not lines:
        words = f" with {' or '.join(args.only)} in its name" if args.only else ""
        sys.exit(f"nothing was timed: no GPU test{words} timed anything")


if __name__ == "__main__":
    main()
