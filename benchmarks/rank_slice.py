"""One rank of V4.1-Flash at true width on one H200: step times, floors, rates, and the picture of its trade-off.

    python benchmarks/rank_slice.py [--only RUN …] [--set KEY=VALUE …] [--record]
    python benchmarks/rank_slice.py --write [--picture FILE]

Runs `deepinfer bench task.slice=rank` as one of 64 ranks that share the experts (decode, at short and long contexts) and as
one of 8 (prefill, some decode). `--set` replaces overrides, such as task.slice_contexts=[4Ki]. With
`--record` the lines go to benchmarks/results/rank_slice.jsonl, of which `--write` makes the tables of docs/performance.md and
the picture (default: docs/rank_slice.png) without a GPU. Links are modelled, all else is measured.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from markers import misplaced, put_between
from rank_slice_tables import BEGIN, END, draw, tables
from record import RESULTS, options, record
from result_lines import Line

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "performance.md", ROOT / "docs" / "rank_slice.png"
POINT = ("run", "what", "routing", "sequences", "rows_each", "context", "tokens", "chunk_tokens", "keep", "step")
GIVEN = ("date", "figure", "versions", "machine", "choices")  # which `record` says itself
COMMON = {
    "task.slice": "rank",
    "hardware": "h200",
    "model": "v41_flash",
    "model.weights": "dummy",
    "speculation": "dspark",
    "scheduler.max_num_batched_tokens": "8Ki",
    "scheduler.max_prefill_tokens": "8Ki",
}
DECODE = {"parallel": "ep64", "task.slice_prompts": "[]"}
RUNS = {  # a layout and which of its steps; each in a process of its own
    "ep64 short": {**DECODE, "task.slice_sequences": "[1,8,32,64,128,256]", "task.slice_contexts": "[4Ki]"},
    "ep64 long": {
        **DECODE,
        "task.slice_sequences": "[1,32,128]",
        "task.slice_contexts": "[32Ki,128Ki]",
        "task.slice_routing": "[balanced]",
    },
    "ep8": {
        "parallel": "ep8",
        "task.slice_sequences": "[32,128]",
        "task.slice_contexts": "[4Ki]",
        "task.slice_prompts": "[1Ki,4Ki,8Ki,32Ki]",
    },
}


def measure(name: str, more: Sequence[str], seconds: float | None) -> int:
    """One run, whose lines are recorded whether it ends or is stopped after `seconds`. Its exit status, 0 where stopped."""
    asked = COMMON | RUNS[name] | dict(text.split("=", 1) for text in more)
    words = [f"{key}={value}" for key, value in asked.items()]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "deepinfer", "bench", *words, f"out={folder}"]
        ran = subprocess.Popen(command, cwd=ROOT)
        try:
            status = ran.wait(seconds)
        except subprocess.TimeoutExpired:
            ran.terminate()
            ran.wait()
            status = 0
        for file in Path(folder).glob("*.jsonl"):
            for line in read_lines(file):
                own = {key: value for key, value in line.items() if key not in GIVEN}
                record("rank_slice", **{"run": name.split()[0]} | own)
    return status


def read_lines(path: Path) -> list[Line]:
    """JSON lines, the last of which may be half a one."""
    found = []
    for text in path.read_text("utf-8").splitlines():
        with suppress(ValueError):
            found.append(json.loads(text))
    return found


def latest(path: Path) -> list[Line]:
    """The last line of each point, table and run, in order of first appearance."""
    lines = read_lines(path) if path.is_file() else []
    return list({tuple(line.get(key) for key in POINT): line for line in lines}.values())


def write(picture: Path) -> None:
    lines = latest(RESULTS / "rank_slice.jsonl")
    if not lines:
        sys.exit("no lines yet; on an H200 type: python benchmarks/rank_slice.py --record")
    page = PAGE.read_text("utf-8")
    if why := misplaced(page, BEGIN, END):
        sys.exit(f"{PAGE.name} {why}")
    PAGE.write_text(put_between(page, BEGIN, END, tables(lines)), "utf-8")
    draw(lines, picture)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of every run")
    parser.add_argument("--seconds", type=float, help="stop a run after so long; what it measured is kept")
    parser.add_argument(
        "--write", action="store_true", help="tables and picture from what was recorded; measures nothing"
    )
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args()
    if args.write:
        write(args.picture)
        return
    statuses = [measure(name, args.set, args.seconds) for name in args.only]
    sys.exit(max(statuses))


if __name__ == "__main__":
    main()
