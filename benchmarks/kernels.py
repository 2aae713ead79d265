"""Every device kernel checked and timed on this machine's GPU, beside its peers, floor and target.

    python benchmarks/kernels.py [--only fp8_linear top_k] [--record]

Runs `pytest tests/kernels -m gpu --time FILE`: a test first checks a kernel against its twin, then times it. `--only` takes
words of test names. With `--record` the lines are appended to benchmarks/results/kernels.jsonl, of which
`python benchmarks/kernels_report.py --write` makes the tables of the documentation. A peer's number is its time over ours.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import record
import torch
from kernel_lines import Line, beside, micros, notices, rate, read, verdict
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]


def run(only: list[str], file: Path) -> int:
    """pytest's exit status; its lines are in `file`."""
    command = [sys.executable, "-m", "pytest", "tests/kernels", "-m", "gpu", "-q", "--time", str(file)]
    words = ["-k", " or ".join(only)] if only else []
    return subprocess.run([*command, *words], cwd=ROOT, check=False).returncode


def table(lines: list[Line]) -> Table:
    """One row a case."""
    shown = Table("op", "case", "variant", "µs", "rate", "share of floor", "target", "peers")
    for line in lines:
        share = f"{line['share']:.0%} of {line['bound']}"
        cells = line.get("variant", ""), micros(line["median_us"]), rate(line), share, verdict(line), beside(line)
        shown.add_row(line["op"], line["case"], *cells)
    return shown


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="words of test names")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "no CUDA device here: kernels are timed on a GPU; for what is missing type: python -m deepinfer doctor"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.jsonl"
        status = run(args.only, file)
        lines = read(file)
    if not lines:
        words = f" with {' or '.join(args.only)} in its name" if args.only else ""
        sys.exit(f"nothing was timed: no GPU test{words} timed anything" if status in (0, 5) else status)
    console = Console()
    console.print(table(lines))
    for notice in notices(lines):
        console.print(notice, markup=False)
    if args.record and status == 0:
        record.RESULTS.mkdir(exist_ok=True)
        with (record.RESULTS / "kernels.jsonl").open("a") as results:
            results.writelines(json.dumps(line) + "\n" for line in lines)
    sys.exit(status)


if __name__ == "__main__":
    main()
