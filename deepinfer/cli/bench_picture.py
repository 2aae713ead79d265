"""What clients of a server saw, as a picture: latencies as shares of requests, and the load over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.cli.out_folder import naming

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "bench_serve.png"


def draw(result: Mapping[str, Any], path: Path) -> bool:
    """Write the picture; False where matplotlib is not installed or nothing was answered."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    if not result["ttfts"]:
        return False
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    (left, right), (below, last) = figure.subplots(2, 2)
    _shares(left, np.array(result["ttfts"]) * 1e3, "time to first token, ms")
    _shares(right, np.concatenate([np.array(gaps) for gaps in result["itls"]]) * 1e3, "between arrivals of tokens, ms")
    _tokens(below, result)
    _under_way(last, result)
    rate = result["request_rate"]
    load = f"{rate} requests/s" if rate != "inf" else f"{result['max_concurrency']} at once"
    figure.suptitle(f"{result['served_model']}: {result['num_prompts']:,} requests, {load}")
    with naming(path):
        figure.savefig(path, dpi=130)
    return True


def _shares(axes: Axes, values_ms: np.ndarray, label: str) -> None:
    """A cumulative curve with its median and 99th percentile."""
    axes.set(xlabel=label, ylabel="share at most that long", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    if not len(values_ms):
        return
    ordered = np.sort(values_ms)
    axes.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), drawstyle="steps-post")
    for percent, style in ((50, "--"), (99, ":")):
        at = float(np.percentile(ordered, percent))
        axes.axvline(at, color="grey", ls=style, lw=1, label=f"p{percent} {at:,.1f} ms")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)


def _ends(result: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    starts, ttfts = np.array(result["start_times"]), np.array(result["ttfts"])
    ends = starts + ttfts + np.array([sum(gaps) for gaps in result["itls"]])
    return starts, ends, float(starts.min())


def _tokens(axes: Axes, result: Mapping[str, Any]) -> None:
    """Output tokens of each second."""
    starts, _, zero = _ends(result)
    pieces, weights = [], []
    for start, ttft, gaps, count in zip(starts, result["ttfts"], result["itls"], result["output_lens"]):
        pieces.append(start + ttft + np.concatenate([[0.0], np.cumsum(gaps)]) - zero)
        weights.append(np.full(len(gaps) + 1, count / (len(gaps) + 1)))
    news_s = np.concatenate(pieces)
    width_s = max(float(news_s.max()) / 60, 1e-3)
    counts = np.bincount((news_s / width_s).astype(np.int64), weights=np.concatenate(weights)) / width_s
    axes.step(np.arange(len(counts)) * width_s, counts, where="post")
    axes.set(xlabel="s", ylabel="output tokens/s")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)


def _under_way(axes: Axes, result: Mapping[str, Any]) -> None:
    starts, ends, zero = _ends(result)
    times = np.concatenate([starts, ends]) - zero
    steps = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.argsort(times, kind="stable")
    axes.step(times[order], np.cumsum(steps[order]), where="post")
    axes.set(xlabel="s", ylabel="requests under way")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
