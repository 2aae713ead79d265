"""The kernels' tables of docs/performance.md and README.md, from benchmarks/results/kernels.jsonl.

    python benchmarks/kernels_report.py [--write | --check]

The latest line of each op, case and variant counts. Without an option the tables are printed; `--write` puts them between the
pages' markers; `--check` says whether they are current and fails where they are not. Published figures come from
benchmarks/published/kernels_h200.yaml.
"""

import sys
from pathlib import Path

import yaml
from kernel_lines import latest, read
from kernel_tables import full_report, short_report
from markers import between, misplaced, put_between
from record import RESULTS, options

HERE = Path(__file__).parent
PAGES = {"performance": HERE.parent / "docs" / "performance.md", "readme": HERE.parent / "README.md"}
PUBLISHED = HERE / "published" / "kernels_h200.yaml"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"


def main() -> None:
    parser = options(__doc__)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--write", action="store_true", help="put the tables between the markers of both pages")
    asked.add_argument("--check", action="store_true", help="fail where a page is not current")
    args = parser.parse_args()
    try:
        lines = latest(read(RESULTS / "kernels.jsonl"))
        published = yaml.safe_load(PUBLISHED.read_text("utf-8"))
        texts = {"performance": full_report(lines, published), "readme": short_report(lines)} if lines else {}
        pages = {name: PAGES[name].read_text("utf-8") for name in texts}
    except (OSError, ValueError) as fault:
        sys.exit(f"no tables: {fault}")
    if not lines:
        sys.exit("no lines yet; on a GPU type: python benchmarks/kernels.py --record")
    if not args.write and not args.check:
        print("\n\n".join(texts.values()))
        return
    for name, page in pages.items():  # all, before any is written
        if why := misplaced(page, BEGIN, END):
            sys.exit(f"{PAGES[name].name} {why}")
    stale = [name for name, text in texts.items() if between(pages[name], BEGIN, END) != text]
    if args.check and stale:
        names = ", ".join(PAGES[name].name for name in stale)
        sys.exit(f"out of date: {names}; type: python benchmarks/kernels_report.py --write")
    for name in stale:
        PAGES[name].write_text(put_between(pages[name], BEGIN, END, texts[name]), "utf-8")


if __name__ == "__main__":
    main()
