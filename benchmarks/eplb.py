"""How even the ranks' loads are under deepinfer's expert placement and under others'; what planning and moving cost.

    python benchmarks/eplb.py [--loads zipf bursty topics] [--ranks 8 …] [--spare 0 …] [--layers 40] [--record] [--draw]

V4.1-Flash's 384 experts, loads of benchmarks/eplb_loads.py. `max_over_mean` is the load of the busiest rank, summed over steps
and layers, over that of a rank on average: 1 is perfect. `held_out` is the same for the window after the one that the placement
was made for. `ours_full` looks at every step and searches far longer: what the condensed window and the short search cost.
`plan_ms`: one core's time for all layers of a window of 100 steps, the fastest of a few (numba, compiled before); of the peers
too, which are plain numpy. `replan_ms`, `moved`, `moved_gb`: the placement for the next window with the first one in use, which
experts change ranks (share of all slots), and their bytes a rank (packed FP4, all layers); `unaware` is without regard to it.
`modelled_gain`: decode throughput over experts in order where experts take half of a step whose ranks are even.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from eplb_loads import LOADS, drawn
from eplb_peers import PEERS
from record import options, record

from deepinfer.parallel.eplb.policy import balance, peak_and_mean

EXPERTS, STEPS = 384, 100
EXPERT_BYTES = 288_777_830_400 // 40 // EXPERTS  # packed, of the released checkpoint
EXPERT_SHARE = 0.5  # of the time of a step whose ranks are even
FULL_WORK = 5_000_000
REPEATS = 3
PICTURE = Path(__file__).parents[1] / "docs" / "eplb.png"


def fastest(plan: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """ms of this thread, and the result."""
    times, found = [], plan()
    for _ in range(REPEATS):
        started = time.thread_time()
        found = plan()
        times.append(time.thread_time() - started)
    return min(times) * 1e3, found


def by_layer(load_WLE: np.ndarray, peer: Callable[..., np.ndarray], ranks: int, spare: int) -> np.ndarray:
    return np.array([peer(load_WLE[:, layer], ranks, spare) for layer in range(load_WLE.shape[1])])


def ratio(load_WLE: np.ndarray, expert_LP: np.ndarray, ranks: int) -> float:
    peak, mean = peak_and_mean(load_WLE, expert_LP, ranks)
    return peak / mean


def arrivals(old_LP: np.ndarray, new_LP: np.ndarray, ranks: int) -> int:
    """Experts that ranks get from others, all layers together."""
    count = 0
    for old, new in zip(old_LP.reshape(len(old_LP), ranks, -1), new_LP.reshape(len(new_LP), ranks, -1)):
        count += sum(len(set(b) - set(a)) for a, b in zip(old.tolist(), new.tolist()))
    return count


def measure(name: str, ranks: int, spare: int, layers: int) -> dict[str, object]:
    load_WLE = drawn(name, 2 * STEPS, layers, EXPERTS, seed=ranks + spare)
    now, later = load_WLE[:STEPS], load_WLE[STEPS:]
    plan_ms, ours = fastest(lambda: balance(now, ranks, spare))
    placements = {"ours": ours, "ours_full": balance(now, ranks, spare, most_steps=STEPS, work=FULL_WORK)}
    peer_ms = {}
    for peer, place in PEERS.items():
        started = time.thread_time()
        placements[peer] = by_layer(now, place, ranks, spare)
        peer_ms[peer] = round((time.thread_time() - started) * 1e3, 1)
    even = {peer: ratio(now, found, ranks) for peer, found in placements.items()}
    replan_ms, new = fastest(lambda: balance(later, ranks, spare, keep_LP=ours))
    unaware = balance(later, ranks, spare)
    best = min(even[peer] for peer in PEERS)
    moved, slots = arrivals(ours, new, ranks), layers * (EXPERTS + spare)
    return {
        "load": name,
        "ranks": ranks,
        "spare": spare,
        "layers": layers,
        "max_over_mean": {peer: round(value, 4) for peer, value in even.items()},
        "over_best_peer": round(even["ours"] / best - 1, 4),
        "held_out": {peer: round(ratio(later, found, ranks), 4) for peer, found in placements.items()},
        "replanned": {"ours": round(ratio(later, new, ranks), 4), "unaware": round(ratio(later, unaware, ranks), 4)},
        "plan_ms": round(plan_ms, 1),
        "peer_ms": peer_ms,
        "replan_ms": round(replan_ms, 1),
        "moved": round(moved / slots, 3),
        "moved_unaware": round(arrivals(ours, unaware, ranks) / slots, 3),
        "moved_gb": round(moved * EXPERT_BYTES / ranks / 1e9, 2),
        "modelled_gain": round(modelled(even["in_order"]) / modelled(even["ours"]) - 1, 3),
    }


def modelled(max_over_mean: float) -> float:
    """Time of a step in units of one whose ranks are even."""
    return 1 - EXPERT_SHARE + EXPERT_SHARE * max_over_mean


def shapes(all_ranks: list[int], spares: list[int]) -> list[tuple[int, int]]:
    return [(ranks, spare) for ranks in all_ranks for spare in spares if (EXPERTS + spare) % ranks == 0]


def draw(lines: list[dict[str, object]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(str(line["load"]) for line in lines))
    figure, panes = pyplot.subplots(1, len(names), figsize=(5 * len(names), 4), squeeze=False)
    for pane, name in zip(panes[0], names):
        mine = [line for line in lines if line["load"] == name]
        for peer in ("in_order", "global_greedy", "step_peaks", "ours"):
            pane.plot([line["max_over_mean"][peer] for line in mine], marker="o", label=peer)  # type: ignore[index]
        pane.set_xticks(range(len(mine)), [f"{line['ranks']}+{line['spare']}" for line in mine], rotation=90)
        pane.set(title=name, yscale="log", xlabel="ranks + spare slots", ylabel="busiest rank over average")
        pane.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=80)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 16, 32, 64, 128])
    parser.add_argument("--spare", nargs="+", type=int, default=[0, 32, 64, 128])
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--draw", action="store_true", help=f"also draw {PICTURE.name}; needs matplotlib")
    asked = parser.parse_args()
    lines = [
        record("eplb", steps=STEPS, experts=EXPERTS, **measure(name, ranks, spare, asked.layers))
        for name in asked.loads
        for ranks, spare in shapes(asked.ranks, asked.spare)
    ]
    worst = max(float(line["over_best_peer"]) for line in lines)
    slowest = max(float(line["plan_ms"]) for line in lines)
    print(f"at most {worst:+.2%} over the best peer, at most {slowest:.1f} ms to plan", file=sys.stderr)
    if asked.draw:
        draw(lines)


if __name__ == "__main__":
    main()
