"""The cost model's figures of our own kernels, derived from their timings, and how far they are from timings they never saw.

    python benchmarks/kernel_calibration.py [--write]

Every kind of kernel gets the few figures of deepinfer/plan/cost/kernel_time.py, fitted to its lines of kernels.jsonl and
kernel_sizes.jsonl in benchmarks/results by least squares of the logarithms. "Held out" is each line by figures that were fitted
on the other lines of its kind; of kinds with two lines there is none. `--write` puts the figures into
conf/cost/calibrated.yaml and the table into docs/costs.md, between their markers.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from kernel_cases import MULTIPROCESSORS, RESULTS, Origin, cases_of, origin_of, read
from kernel_fit import NEUTRAL, Fit, fit, median, p90
from markers import put_between, put_lines
from record import options
from rich.progress import track

from deepinfer.plan.cost.kernel_time import KernelTime

ROOT = Path(__file__).parents[1]
CONF, DOCS = ROOT / "conf" / "cost" / "calibrated.yaml", ROOT / "docs" / "costs.md"
BEGIN, END = "# own kernels: begin", "# own kernels: end"
ORIGIN_BEGIN, ORIGIN_END = "# origin: begin", "# origin: end"
TABLE_BEGIN, TABLE_END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
FAR = 0.15  # of a case that is named, with what the formula leaves out there
FAR_HEAD = "| kernel | cases that are further off, held out | what the formula leaves out |\n|---|---|---|"
SHORT = "few timings, a microsecond or two each: the shortest and the longest are predicted from the others alone"
CACHE = "where rows come from: what else lies in the second-level cache decides"
BANDS = "bands of other heights than the formula's, and which of them the kernel takes for the rows at hand"
SHARED = "a row is shared by one to eight multiprocessors, by its length, and kept in more or fewer registers"
LEFT_OUT = {  # kernel → why its cases are off
    "fp8_linear": "the kernel's own choice of a cut, which is not the fastest everywhere; heat in long products",
    "fp8_grouped_linear": "the kernel's own choice of a cut, which is not the fastest everywhere",
    "bf16_linear": "tiles of 64 outputs for few rows, and products of 32 and 128 outputs, which fill no tile",
    "fp4_experts_up": BANDS,
    "fp4_experts_down": BANDS,
    "sparse_attention": "how many multiprocessors share a row at which number of rows",
    "index_scores": "rows of one sequence share keys, in groups",
    "candidate_scores": "candidates of neighbouring rows, which the cache holds already",
    "top_entries": SHARED,
    "candidate_blocks": SHARED,
    "hyper_border": "forms for few rows and for many",
    "norm_quantise": CACHE,
    "quantise": CACHE,
    "swiglu_quantise": CACHE,
    "combine": CACHE,
    "norm_rope_store_window": SHORT,
    "compress_store": SHORT,
    "index_store": SHORT,
    "rotate_quantise_index_q": SHORT,
    "router": SHORT,
    "expert_permutation": "every 24 experts all pairs are read again, so that time grows with both",
    "engram_gather": SHORT,
    "engram_add": CACHE,
    "sample_rows": "a row is eight multiprocessors': rounds of 16 rows",
    "markov_step": SHORT,
    "accepted_lengths": SHORT,
}
HEAD = (
    "| kernel | timings | at least | memory | computation | held out: median, p90, worst |\n|---|---|---|---|---|---|"
)


def figures(time: KernelTime) -> str:
    """As a YAML mapping; what is neutral is left out."""
    parts = [f"fixed_s: {time.fixed_s * 1e6:.3g}us", f"bytes_per_s: {time.bytes_per_s / 1e12:.3g}TB/s"]
    if time.flops_per_s < math.inf:
        parts += [f"flops_per_s: {time.flops_per_s / 1e12:.4g}TFLOP/s", f"power: {time.power:g}"]
    if time.length_s:
        parts += [f"length_s: {time.length_s * 1e6:.3g}us", f"exponent: {time.exponent:g}"]
    for name in ("resident", "cached", "tile", "parts", "start", "extra_rows"):
        if getattr(time, name) != NEUTRAL[name]:
            parts.append(f"{name}: {getattr(time, name):.3g}")
    return "{" + ", ".join(parts) + "}"


def origin_lines(origin: Origin) -> str:
    files = " and ".join(path.name for path in RESULTS)
    return f'    device: "{origin.device}"\n    source: "benchmarks/results: {files}, commit {origin.commit}"'


def block(fits: Mapping[str, Fit]) -> str:
    """The lines of conf/cost/calibrated.yaml."""
    return "\n".join(f"      {name}: {figures(fit.time)}" for name, fit in fits.items())


def table(fits: Mapping[str, Fit], origin: Origin) -> str:
    """The accuracy page's table and its summary."""
    errors = [error for fit in fits.values() for error in fit.held_out]
    sizes = [error for fit in fits.values() for error in fit.sizes_held_out]
    count = sum(len(fit.names) for fit in fits.values())
    within = sum(abs(error) <= FAR for error in errors)
    return "\n\n".join(
        [
            f"{count} timings of {len(fits)} kernels on an {origin.device}, commit {origin.commit}. Held out, "
            f"{len(errors)} of them: median error {median(errors):.1%}, nine of ten within {p90(errors):.0%}, "
            f"{within / len(errors):.0%} within 15 %. Products whose number of rows was held out, all of them at once: "
            f"{median(sizes):.1%} and {p90(sizes):.0%} of {len(sizes)}.",
            "\n".join([HEAD, *(_row(name, fit) for name, fit in fits.items())]),
            "\n".join([FAR_HEAD, *(row for name, fit in fits.items() if (row := _far(name, fit)))]),
        ]
    )


def _far(name: str, fit: Fit) -> str:
    """The row of a kernel with cases that are far off; empty where it has none."""
    cases = [f"{case} {error:+.0%}" for case, error in zip(fit.names, fit.held_out) if abs(error) > FAR]
    return f"| `{name}` | {'; '.join(cases)} | {LEFT_OUT[name]} |" if cases else ""


def _row(name: str, fit: Fit) -> str:
    time = fit.time
    least = f"{time.fixed_s * 1e6:.1f} µs"
    if time.length_s:
        least += f" + {time.length_s * 1e9:.3g} ns × {'√' * (time.exponent == 0.5)}length"
    computation = f"{time.flops_per_s / 1e12:.0f} TFLOP/s" if time.flops_per_s < math.inf else ""
    told = "two timings, none held out"
    if fit.held_out:
        worst, case = fit.worst
        told = f"{median(fit.held_out):.0%}, {p90(fit.held_out):.0%}, {worst:+.0%} ({case})"
    return f"| `{name}` | {len(fit.names)} | {least} | {time.bytes_per_s / 1e12:.2f} TB/s | {computation} | {told} |"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the results into conf/cost/calibrated.yaml and docs/costs.md"
    )
    args = parser.parse_args()
    lines = read()
    cases, origin = cases_of(lines), origin_of(lines)
    fits = {name: fit(cases[name]) for name in track(cases, description="fitting")}
    text = table(fits, origin)
    print(f"{text}\n\nmultiprocessors {MULTIPROCESSORS}\n{block(fits)}")
    if args.write:
        conf = put_lines(CONF.read_text(), BEGIN, END, block(fits))
        CONF.write_text(put_lines(conf, ORIGIN_BEGIN, ORIGIN_END, origin_lines(origin)))
        DOCS.write_text(put_between(DOCS.read_text(), TABLE_BEGIN, TABLE_END, text))


if __name__ == "__main__":
    main()
