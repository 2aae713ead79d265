"""How far the cost model is from measured steps of one rank: decode, prompts, and kernel by kernel inside a step.

    python benchmarks/step_accuracy.py [--lines FILE] [--write]

Reads what `python benchmarks/rank_slice.py --record` measured and predicts the same steps from the figures of single kernels in
conf/cost/calibrated.yaml. One figure is taken from a step: what torch's own small operations take in a layer is what the
decode step of fewest rows takes beyond its kernels, divided by the layers. All other steps are predictions. Links are in
neither. `--write` puts that figure into conf/cost/calibrated.yaml and the table into docs/costs.md.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import rank_slice
from kernel_fit import median, p90
from markers import put_between, put_lines
from msgspec import Struct, structs
from record import RESULTS, options
from result_lines import Line

from deepinfer.cli.bench_slice import reckoning_of
from deepinfer.cli.bench_slice_points import Reckoning
from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.plan.cost.kernel_steps import launch_seconds
from deepinfer.plan.cost.own_kernels import with_own_kernels
from deepinfer.plan.cost.timing import step_time
from deepinfer.plan.cost.types import Calibration, Work
from deepinfer.plan.cost.work import Prompt, decode_work, prefill_work
from deepinfer.plan.resolve import resolve

ROOT = Path(__file__).parents[1]
DOCS, CONF = ROOT / "docs" / "costs.md", ROOT / "conf" / "cost" / "calibrated.yaml"
BEGIN, END = "<!-- steps: begin -->", "<!-- steps: end -->"
CONF_BEGIN, CONF_END = "# steps: begin", "# steps: end"
HEAD = "| step | routing | measured, ms | modelled, ms | error |\n|---|---|---:|---:|---:|"
OPS_HEAD = "| kernel | calls | measured, ms | modelled, ms | error |\n|---|---:|---:|---:|---:|"
NAMES = {  # operation as a rank's profile calls it → kernel as the cost model does
    "paged_index_scores": "index_scores",
    "fp4_grouped_linear": "fp4_experts_down",
}


class Step(Struct, frozen=True, kw_only=True):
    """One measured step or prompt, and what the model says of it."""

    name: str
    routing: str
    measured_ms: float
    modelled_ms: float

    @property
    def error(self) -> float:
        """(modelled - measured) / measured."""
        return self.modelled_ms / self.measured_ms - 1


class Model:
    """The cost model of one recorded run, planned by what was typed for it."""

    def __init__(self, run: str, lines: Sequence[Line], layer_latency_s: float = 0.0) -> None:
        (share,) = (line for line in lines if line["what"] == "share" and line["run"] == run)
        spec = load(*dict.fromkeys(["task=bench", *share["overrides"]]))
        facts = probe(spec)
        plan = resolve(spec, facts)
        role = plan.layout.roles[0]
        self.reckoning: Reckoning = reckoning_of(plan, spec, facts, role)
        chip = self.reckoning.group.chip
        own = with_own_kernels(self.reckoning.calibration, spec.cost, chip, role.ops, plan.model.config)
        assert own.kernels, f"no figures of kernels for {chip.name}"
        self.calibration: Calibration = structs.replace(own, layer_latency_s=layer_latency_s)

    def step(self, point: Line) -> Step:
        if "context" in point:
            name = f"{point['sequences']:,} × {point['rows_each']} rows at {point['context']:,}"
            steps, work = 1.0, self.decode(point["sequences"], point["rows_each"], point["context"])
        else:
            kept = "" if point["keep"] is None else ", replay=compact"
            name = f"prompt of {point['tokens']:,}, {point['chunk_tokens']:,} at a time{kept}"
            steps, work = point["tokens"] / point["chunk_tokens"], self.prompt(point)
        routed = as_routed(work, point["load"], even=point["routing"] == "balanced")
        seconds = steps * self._time_s(routed)
        return Step(name=name, routing=point["routing"], measured_ms=point["ms"], modelled_ms=1e3 * seconds)

    def decode(self, sequences: int, rows_each: int, context: int) -> Work:
        drafts, reckoning = rows_each - 1, self.reckoning
        shape = reckoning.drafting if drafts else reckoning.trunk
        accepted = reckoning.yields.accepted if drafts else 1
        return decode_work(
            shape, reckoning.group, sequences, context, rows_each=rows_each, drafts=drafts, accepted=accepted
        )

    def prompt(self, point: Line) -> Work:
        prompt = Prompt(tokens=point["tokens"], keep=point["keep"])
        return prefill_work(self.reckoning.trunk, self.reckoning.group, prompt, point["chunk_tokens"] / point["tokens"])

    def ops_ms(self, work: Work) -> dict[str, float]:
        """Kernel → milliseconds of a step without its drafting, which profiles leave out."""
        found: dict[str, float] = {}
        for launch in work.launches:
            if launch.part.startswith("draft"):
                continue
            found[launch.op] = found.get(launch.op, 0.0) + 1e3 * launch_seconds(launch, self.calibration)
        return found

    def _time_s(self, work: Work) -> float:
        return step_time(structs.replace(work, links=()), self.reckoning.group.chip, self.calibration).time_s


def as_routed(work: Work, load: float, even: bool) -> Work:
    """The work of a rank whose routed experts get `load` times as many pairs as they would evenly; `even`: as many each."""
    launches = (
        structs.replace(launch, flops=launch.flops * load, rows=launch.rows * load, ragged=not even)
        if launch.op.startswith("fp4_experts")
        else launch
        for launch in work.launches
    )
    return structs.replace(work, launches=tuple(launches))


class Fitted(Struct, frozen=True, kw_only=True):
    """What was taken from a step, and from which."""

    layer_latency_s: float
    step: str


def fitted(lines: Sequence[Line]) -> Fitted:
    """From the decode step of fewest rows."""
    point = min(
        (line for line in lines if line["what"] == "decode"),
        key=lambda line: (line["rows"], line["context"], line["ms"]),
    )
    model = Model(point["run"], lines)
    step = model.step(point)
    beyond_s = 1e-3 * max(0.0, step.measured_ms - step.modelled_ms)
    return Fitted(layer_latency_s=beyond_s / model.reckoning.trunk.layers, step=step.name)


def steps_of(lines: Sequence[Line], layer_latency_s: float) -> dict[str, list[Step]]:
    """Run and phase → its steps."""
    found: dict[str, list[Step]] = {}
    models: dict[str, Model] = {}
    for line in lines:
        if line["what"] in ("decode", "prefill"):
            if line["run"] not in models:
                models[line["run"]] = Model(line["run"], lines, layer_latency_s)
            found.setdefault(f"{line['what']}, {line['layout']}", []).append(models[line["run"]].step(line))
    return found


def summary(steps: Sequence[Step]) -> str:
    errors = [step.error for step in steps]
    worst = max(steps, key=lambda step: abs(step.error))
    within = sum(abs(error) <= 0.15 for error in errors) / len(errors)
    return (
        f"{len(errors)} steps: median error {median(errors):.0%}, nine of ten within {p90(errors):.0%}, "
        f"{within:.0%} within 15 %, worst {worst.error:+.0%} ({worst.name}, {worst.routing})"
    )


def report(lines: Sequence[Line], fit: Fitted) -> str:
    parts = [
        f"Of torch's small operations {fit.layer_latency_s * 1e6:.0f} µs a layer, from the step {fit.step}; every other step "
        f"is a prediction. Commit {', '.join(sorted({line['commit'] for line in lines if line['what'] != 'ops'}))}."
    ]
    for name, steps in steps_of(lines, fit.layer_latency_s).items():
        rows = (
            f"| {step.name} | {step.routing} | {step.measured_ms:.2f} | {step.modelled_ms:.2f} | {step.error:+.0%} |"
            for step in steps
        )
        parts += [f"**{name}**. {summary(steps)}.", "\n".join([HEAD, *rows])]
    for line in lines:
        if line["what"] == "ops" and line["commit"] == lines[0]["commit"]:  # of the same kernels as the steps
            parts += [
                f"Kernel by kernel: {line['step']}, {line['layout']}.",
                "\n".join([OPS_HEAD, *ops_rows(line, lines)]),
            ]
    return "\n\n".join(parts)


def ops_rows(line: Line, lines: Sequence[Line]) -> Iterator[str]:
    """Kernels of one profiled step. What the model does not reckon with has no modelled time."""
    model, work = Model(line["run"], lines), None
    for point in lines:
        if point["what"] == "decode" and point["run"] == line["run"] and line["step"] == profiled(point):
            work = model.decode(point["sequences"], point["rows_each"], point["context"])
    if work is None and line["step"].startswith("prefill"):
        tokens = int(line["step"].removeprefix("prefill of ").removesuffix(" tokens").replace(",", ""))
        work = model.prompt({"tokens": tokens, "chunk_tokens": tokens, "keep": None})
    modelled = {} if work is None else model.ops_ms(as_routed(work, 1.0, even=True))  # as a profile routes
    measured: dict[str, tuple[int, float]] = {}
    for entry in line["entries"]:
        name = NAMES.get(entry["op"], entry["op"])
        calls, ms = measured.get(name, (0, 0.0))
        measured[name] = (calls + entry["calls"], ms + entry["ms"])
    for name, (calls, ms) in sorted(measured.items(), key=lambda item: -item[1][1]):
        told = f"{modelled[name]:.3f} | {modelled[name] / ms - 1:+.0%}" if name in modelled and ms else " | "
        yield f"| `{name}` | {calls} | {ms:.3f} | {told} |"


def latency(fit: Fitted, lines: Sequence[Line]) -> str:
    """The line of conf/cost/calibrated.yaml."""
    source = (
        f"benchmarks/results/rank_slice.jsonl, commit {lines[0]['commit']}: what {fit.step} take beyond their kernels"
    )
    date = min(line["measured_at"] for line in lines)[:10]
    return f'    layer_latency_s: {{value: {fit.layer_latency_s * 1e6:.3g}us, source: "{source}", date: "{date}"}}'


def profiled(point: Line) -> str:
    """How a profile of this step is called."""
    return f"decode {point['sequences']} × {point['rows_each']} rows at {point['context']:,} tokens"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--lines", type=Path, default=RESULTS / "rank_slice.jsonl")
    parser.add_argument("--write", action="store_true", help="put the table into docs/costs.md, between its markers")
    args = parser.parse_args()
    lines = rank_slice.latest(args.lines)
    if not lines:
        raise SystemExit(f"{args.lines} has no steps yet; on an H200 type: python benchmarks/rank_slice.py --record")
    fit = fitted(lines)
    text = report(lines, fit)
    print(text)
    if args.write:
        CONF.write_text(put_lines(CONF.read_text("utf-8"), CONF_BEGIN, CONF_END, latency(fit, lines)), "utf-8")
        DOCS.write_text(put_between(DOCS.read_text("utf-8"), BEGIN, END, text), "utf-8")


if __name__ == "__main__":
    main()
