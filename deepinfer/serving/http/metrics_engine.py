"""An engine's counters for Prometheus: totals that go on where an engine was started again, and what is so now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from deepinfer.engine.stats import EngineStats, PrefixStats

Labels = dict[str, str]
# name without prefix and "_total", what it counts, where it stands
TOTALS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("num_preemptions", "Sequences that lost their place to others and were computed again.", lambda s: s.preemptions),
    ("recomputed_tokens", "Tokens computed again after a preemption.", lambda s: s.recomputed_tokens),
    ("engine_steps", "Steps of the engine.", lambda s: s.steps),
    ("engine_steps_ahead", "Steps submitted while the one before was in flight.", lambda s: s.steps_ahead),
    ("engine_lost_steps", "Steps for which the device's memory did not suffice.", lambda s: s.lost_steps),
    ("engine_prefill_rows", "Rows of prompts computed; tokens found in a cache are none.", lambda s: s.prefill_rows),
    ("engine_decode_rows", "Rows of running answers computed, drafts among them.", lambda s: s.decode_rows),
    ("engine_step_seconds", "Seconds that steps took.", lambda s: s.step_s),
    ("spec_decode_num_drafts", "Rounds in which drafts were checked.", lambda s: s.verify_rounds),
    ("spec_decode_num_draft_tokens", "Drafted tokens that were checked.", lambda s: sum(s.checked_at)),
    ("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", lambda s: sum(s.accepted_at)),
)
PREFIX_TOTALS: tuple[tuple[str, str, Callable[[PrefixStats], float]], ...] = (
    ("prefix_cache_queries", "Tokens of prompts that were looked up in the prefix cache.", lambda p: p.query_tokens),
    ("prefix_cache_hits", "Of those, tokens that had not to be computed.", lambda p: p.saved_tokens),
    ("prefix_cache_request_queries", "Requests whose prompts were looked up.", lambda p: p.queries),
    ("prefix_cache_request_hits", "Of those, requests that found something.", lambda p: p.hits),
    ("prefix_cache_evicted_blocks", "Cached blocks that made room for others.", lambda p: p.evicted_blocks),
)
PARTS = ("model", "sampling", "drafting")
NOW: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("kv_cache_usage_perc", "Share of the cache's blocks that running sequences hold, 0 to 1.", lambda s: usage(s)),
    ("kv_cache_blocks_used", "Blocks that running sequences hold.", lambda s: s.blocks_used),
    ("kv_cache_blocks_peak", "The most that were held at once.", lambda s: s.blocks_peak),
    ("kv_cache_blocks", "Blocks of the cache.", lambda s: s.blocks_total),
    ("state_slots_used", "Places for sequences that are taken.", lambda s: s.slots_used),
    ("state_slots", "Places for sequences.", lambda s: s.slots_total),
    ("num_requests_prefilling", "Answers whose prompts are being computed.", lambda s: s.prefilling),
    ("num_requests_decoding", "Answers that are being written.", lambda s: s.decoding),
    ("num_grammars_compiling", "Answers that wait for their grammar.", lambda s: s.compiling),
    ("prefix_cache_blocks", "Blocks that the prefix cache knows.", lambda s: s.prefix.cached_blocks if s.prefix else 0),
    (
        "prefix_cache_idle_blocks",
        "Of those, the ones that no sequence holds.",
        lambda s: s.prefix.idle_blocks if s.prefix else 0,
    ),
)


def usage(stats: EngineStats) -> float:
    return stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0


def flat(stats: EngineStats) -> dict[str, float]:
    """All totals by name; those of drafts by position from 0, those of parts by part."""
    found: dict[str, float] = {name: read(stats) for name, _, read in TOTALS}
    found |= {name: read(stats.prefix) if stats.prefix else 0 for name, _, read in PREFIX_TOTALS}
    found |= {f"accepted_at {index}": count for index, count in enumerate(stats.accepted_at)}
    return found | {f"seconds {part}": getattr(stats, f"{part}_s") for part in PARTS}


class EngineTotals:
    """Totals that never fall: an engine that was started again counts from zero, and what came before is kept."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.num_restarts = 0
        self._kept: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def take(self, stats: EngineStats) -> None:
        """The engine's newest counters."""
        if stats is self.stats:
            return
        found = flat(stats)
        if any(found.get(name, 0) < value for name, value in self._last.items()):
            self.num_restarts += 1
            self._kept = {name: self._kept.get(name, 0) + value for name, value in self._last.items()}
        self.stats, self._last = stats, found

    def __getitem__(self, name: str) -> float:
        return self._kept.get(name, 0) + self._last.get(name, 0)

    def depth(self) -> int:
        """Of drafts."""
        return len(self.stats.accepted_at) if self.stats is not None else 0

    def families(self, prefix: str, labels: Labels) -> Iterator[Metric]:
        """What Prometheus is told; the gauges only once the engine has counted."""
        names, values = list(labels), list(labels.values())
        for name, about, _ in (*TOTALS, *PREFIX_TOTALS):
            yield _one(CounterMetricFamily(prefix + name, about, labels=names), values, self[name])
        about = "Drafted tokens that were accepted, by their position in the draft from 0."
        family = CounterMetricFamily(
            f"{prefix}spec_decode_num_accepted_tokens_per_pos", about, labels=[*names, "position"]
        )
        for index in range(self.depth()):
            family.add_metric([*values, str(index)], self[f"accepted_at {index}"])
        yield family
        about = "Seconds of steps in the model, the sampler with its verifier, and the drafter."
        family = CounterMetricFamily(f"{prefix}engine_part_seconds", about, labels=[*names, "part"])
        for part in PARTS:
            family.add_metric([*values, part], self[f"seconds {part}"])
        yield family
        about = "Times that the engine was started again."
        yield _one(CounterMetricFamily(f"{prefix}engine_restarts", about, labels=names), values, self.num_restarts)
        for name, about, read in NOW:
            if self.stats is not None:
                yield _one(GaugeMetricFamily(prefix + name, about, labels=names), values, read(self.stats))


def _one(family: CounterMetricFamily | GaugeMetricFamily, values: list[str], value: float) -> Metric:
    family.add_metric(values, value)
    return family
