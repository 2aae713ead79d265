"""How many drafts to check: tokens per ms of fixed lengths, early stop, the scheduler, and the best that confidences allow.

    python benchmarks/verify_length.py [--log FILE.npz] [--curve FILE.json] [--record] [--plot FILE.png]

Replays a log of calibrated confidences and of what full verification accepted, R sequences at a time, against step times that
are staircases. Policies, all over the same rounds:

    fixed-0 … 5   as many drafts of every sequence; 0 drafts nothing and does not pay the drafter
    early stop    adds drafts by confidence until tokens per ms first fall (DSpark paper, Algorithm 1)
    scheduled     deepinfer.speculation: budget from confidences two steps old, handed out by this step's
    best          the budget with most expected tokens per ms by this step's own confidences: not lossless, so a limit, no rival

Step times are modelled: 8 ms + 20 µs a row in tiles of rows, and what the plan's calibrated cost model says of a rank of an
H200 and a GB200 layout, at the sizes that a device would capture. A drafter costs 3/43 of a step without drafts, as its
layers do, and sampling 0.2 ms + 1 µs a sequence. With --curve they are those that an engine measured and stored.

Two logs: the tracked one of the tiny model (or --log), whose drafter is nearly always right, and a modelled one with the 3.5
tokens a round that are published for the released model (plan/cost/acceptance.py). A sequence stays for 48 rounds; of a new one
nothing is known for two steps. `saturated`: a shorter fixed length gives more than fixed-5; drafts are no longer nearly free.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct
from record import options, record

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.plan.cost.acceptance import GOLDEN_TOKENS
from deepinfer.plan.resolve import resolve
from deepinfer.speculation.allocation import allocate, survival
from deepinfer.speculation.budget import ConfidenceBudget, best_budget
from deepinfer.speculation.cost_curve import CostCurve
from deepinfer.speculation.curve_store import TABLES

LOG = Path(__file__).parent / "data" / "draft_confidence.npz"
BATCHES = (1, 8, 32, 128, 256)
DEPTH = 5
ROUNDS, LEAST_STEPS, LIFE_STEPS = 8_000, 400, 48
MOST_ROWS = max(BATCHES) * (1 + DEPTH)
LAYOUTS = {"h200 ep8": ("hardware=h200", "parallel=ep8"), "gb200 ep4": ("hardware=gb200", "parallel=ep4")}


class Log(Struct, frozen=True):
    """N rounds in the order in which they came: calibrated chance of each draft given those before it, and accepted drafts."""

    confidence_NK: np.ndarray
    accepted_N: np.ndarray
    source: str


def read_log(path: Path) -> Log:
    with np.load(path, allow_pickle=False) as file:
        confidence_NK, accepted_N = file["confidence"].astype(np.float32), file["accepted"].astype(np.int64)
    if confidence_NK.shape != (len(accepted_N), DEPTH):
        raise SystemExit(
            f"{path}: confidence {confidence_NK.shape} and accepted {accepted_N.shape}; want [n, {DEPTH}], [n]"
        )
    return Log(confidence_NK, accepted_N, path.name)


def modelled_log(num_texts: int = 600, rounds_each: int = LIFE_STEPS) -> Log:
    """Texts of three kinds, each sure of itself to its own degree, rounds of a text alike; perfectly calibrated.

    The kinds are chosen to give GOLDEN_TOKENS a round.
    """
    rng = np.random.default_rng(0)
    sure, doubtful = np.array([[12, 1.2], [5.3, 1.8], [2.4, 1.9]]).T
    kinds = rng.integers(0, 3, num_texts)
    text = rng.beta(sure[kinds], doubtful[kinds])[:, None, None]
    spread = rng.beta(6 * text, 6 * (1 - text) + 0.05, (num_texts, rounds_each, DEPTH))
    confidence_NK = np.clip(spread, 0.005, 0.995).reshape(-1, DEPTH).astype(np.float32)
    accepted = rng.random(confidence_NK.shape) < confidence_NK
    log = Log(confidence_NK, np.cumprod(accepted, axis=1).sum(axis=1), "modelled")
    assert abs(1 + log.accepted_N.mean() - GOLDEN_TOKENS) < 0.05
    return log


def curve_of(sizes: np.ndarray, forward_s: np.ndarray) -> CostCurve:
    """A device that fills steps up to `sizes`, with the costs of drafting and sampling that the top of this file states."""
    counts = np.array(BATCHES)
    alone_s = forward_s[np.searchsorted(sizes, counts)]
    return CostCurve(sizes, forward_s, counts, 2e-4 + 1e-6 * counts, alone_s * 3 / 43, padded=True)


def tiled(tile: int) -> CostCurve:
    sizes = np.arange(tile, MOST_ROWS + tile, tile)
    return curve_of(sizes, 8e-3 + 20e-6 * sizes)


def planned(overrides: tuple[str, ...]) -> CostCurve:
    """Times of a rank by the plan's calibrated model, at 1, 2, 4, 8, 16, 24 … rows, each taken as a sequence."""
    spec = load(*overrides, "model.weights=dummy", "speculation=none", "scheduler.max_num_seqs=2048")
    plan = resolve(spec, probe(spec))
    assert plan.cost.decode is not None
    points = plan.cost.decode.curve
    sizes = np.array([1, 2, 4, *range(8, MOST_ROWS + 8, 8)])
    known, seconds = [point.sequences for point in points], [point.steps[-1].time_s for point in points]
    assert known[-1] >= MOST_ROWS, "the plan's curve ends too early"
    return curve_of(sizes, np.interp(sizes, known, seconds))


def stored(path: Path) -> CostCurve:
    """A curve that an engine left in the user's cache folder."""
    data = json.loads(path.read_text())
    return CostCurve(**{name: np.array(data[name]) for name in TABLES}, padded=data["padded"])


def rounds_of(log: Log, num_sequences: int) -> np.ndarray:
    """Which round of the log each sequence runs at each step, int64 [steps, R]: stretches of it, at random places."""
    rng = np.random.default_rng(num_sequences)
    steps = max(LEAST_STEPS, ROUNDS // num_sequences)
    ages = (np.arange(steps)[:, None] + rng.integers(0, LIFE_STEPS, num_sequences)) % LIFE_STEPS
    lives = np.cumsum(ages == 0, axis=0)
    starts = rng.integers(0, len(log.accepted_N) - LIFE_STEPS, (int(lives.max()) + 1, num_sequences))
    return starts[lives, np.arange(num_sequences)] + ages


def known_before(log: Log, rounds: np.ndarray, step: int) -> np.ndarray:
    """Confidences two steps old, float32 [R, K]; NaN of a sequence that was not there."""
    missing = np.full((rounds.shape[1], DEPTH), np.nan, dtype=np.float32)
    if step < 2:
        return missing
    same = rounds[step] - rounds[step - 2] == 2
    return np.where(same[:, None], log.confidence_NK[rounds[step - 2]], missing)


def early_stop(conditional_RK: np.ndarray, cost_s: np.ndarray) -> int:
    """Drafts after which one more first does not raise expected tokens per second."""
    highest = -np.sort(-survival(conditional_RK).ravel().astype(np.float64))
    rate = (len(conditional_RK) + np.concatenate(([0.0], np.cumsum(highest)))) / cost_s
    stops = np.flatnonzero(rate[1:] <= rate[:-1])
    return int(stops[0]) if len(stops) else len(highest)


def replay(log: Log, curve: CostCurve, num_sequences: int) -> dict[str, float]:
    """Policy → tokens per ms. For any curve: also one that an engine has measured (`curve_measurement.measure_curve`)."""
    rounds = rounds_of(log, num_sequences)
    scheduler, full = ConfidenceBudget(DEPTH, curve), np.full(num_sequences, DEPTH)
    rows = num_sequences + np.arange(num_sequences * DEPTH + 1)
    cost_s = curve.predict(rows, num_sequences)
    tokens, seconds = (
        dict.fromkeys(("early stop", "scheduled", "best"), 0),
        dict.fromkeys(("early stop", "scheduled", "best"), 0.0),
    )
    for step, now in enumerate(rounds):
        live, accepted = log.confidence_NK[now], log.accepted_N[now]
        budgets = {
            "early stop": early_stop(live, cost_s),
            "scheduled": scheduler.budget(known_before(log, rounds, step), 0)[0],
            "best": best_budget(survival(live), cost_s),
        }
        for name, budget in budgets.items():
            tokens[name] += num_sequences + int(np.minimum(allocate(live, full, budget), accepted).sum())
            seconds[name] += float(cost_s[budget])
    found = {name: tokens[name] / seconds[name] / 1e3 for name in tokens}
    for length in range(DEPTH + 1):
        given = num_sequences + np.minimum(log.accepted_N[rounds], length).sum(axis=1).mean()
        step_s = curve.predict(num_sequences * (1 + length), num_sequences, drafted=length > 0)
        found[f"fixed-{length}"] = float(given / step_s / 1e3)
    return found


def tell(cost: str, curve: CostCurve, log: Log, num_sequences: int) -> dict[str, float]:
    rate = replay(log, curve, num_sequences)
    best_fixed = max(rate[f"fixed-{length}"] for length in range(DEPTH + 1))
    figures = {
        "scheduled_over_best": rate["scheduled"] / rate["best"],
        "scheduled_over_fixed_5": rate["scheduled"] / rate["fixed-5"],
        "scheduled_over_best_fixed": rate["scheduled"] / best_fixed,
    }
    record(
        Path(__file__).stem,
        step_cost=cost,
        log=log.source,
        log_rounds=len(log.accepted_N),
        log_tokens_per_round=round(1 + float(log.accepted_N.mean()), 3),
        sequences=num_sequences,
        saturated=best_fixed > rate["fixed-5"],
        tokens_per_ms={name: round(value, 4) for name, value in sorted(rate.items())},
        **{name: round(value, 4) for name, value in figures.items()},
    )
    return {**rate, **figures, "saturated": best_fixed > rate["fixed-5"]}


def table(told: dict[tuple[str, int], dict[str, float]]) -> str:
    names = [*(f"fixed-{length}" for length in range(DEPTH + 1)), "early stop", "scheduled", "best"]
    lines = [f"{'tokens per ms':>19} {'R':>4} " + " ".join(f"{name:>10}" for name in names) + "  of best  over fixed-5"]
    for (cost, count), found in told.items():
        figures = " ".join(f"{found[name]:10.3f}" for name in names)
        full = "saturated" if found["saturated"] else ""
        shares = f"{found['scheduled_over_best']:9.1%} {found['scheduled_over_fixed_5'] - 1:+13.1%} {full}"
        lines.append(f"{cost:>19} {count:4} {figures} {shares}")
    return "\n".join(lines)


def plot(told: dict[tuple[str, int], dict[str, float]], path: Path) -> None:
    """Tokens per ms relative to the best, by R, one panel a step cost. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    costs = list(dict.fromkeys(cost for cost, _ in told))
    figure, grid = pyplot.subplots(1, len(costs), figsize=(4 * len(costs), 3.5), sharey=True, squeeze=False)
    panels = grid[0]
    for panel, cost in zip(panels, costs):
        counts = [count for of_cost, count in told if of_cost == cost]
        for name in ("fixed-0", "fixed-1", "fixed-3", "fixed-5", "early stop", "scheduled"):
            panel.plot(counts, [told[cost, count][name] / told[cost, count]["best"] for count in counts], label=name)
        panel.set(title=cost, xlabel="sequences", xscale="log")
    panels[0].set_ylabel("tokens per ms, share of the best")
    panels[-1].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--log", type=Path, help=f"confidence log, by default {LOG.name} of benchmarks/data")
    parser.add_argument("--curve", type=Path, help="cost_curve_….json of an engine, in place of modelled step times")
    parser.add_argument("--plot", type=Path, help="also draw PNGs, one a log (needs matplotlib)")
    asked = parser.parse_args()
    measured = [asked.log or LOG] if asked.log or LOG.is_file() else []
    logs = [*map(read_log, measured), modelled_log()]
    costs: dict[str, Callable[[], CostCurve]] = {}
    if asked.curve:
        costs["measured"] = lambda: stored(asked.curve)
    else:
        costs |= {f"tile {tile}, modelled": (lambda tile=tile: tiled(tile)) for tile in (8, 32, 64)}
        costs |= {f"{name}, modelled": (lambda layout=layout: planned(layout)) for name, layout in LAYOUTS.items()}
    curves = {cost: make() for cost, make in costs.items()}
    for log in logs:
        told = {
            (cost, count): tell(cost, curve, log, count)
            for cost, curve in curves.items()
            for count in BATCHES
            if count <= curve.sequences[-1]
        }
        print(f"{log.source}: {1 + log.accepted_N.mean():.2f} tokens a round\n{table(told)}")
        if asked.plot:
            plot(told, asked.plot.with_stem(f"{asked.plot.stem}_{Path(log.source).stem}"))


if __name__ == "__main__":
    main()
