"""Measured steps of one rank beside their floors, the modelled time of its links, and the rates that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer.cli.bench_slice_floors import Exchange, Floor, Rates, exchange_of, floor_of
from deepinfer.plan.cost.acceptance import Yield
from deepinfer.plan.cost.links import Group
from deepinfer.plan.cost.shape import Shape
from deepinfer.plan.cost.types import Calibration, Work
from deepinfer.plan.cost.work import Prompt, decode_work, prefill_work
from deepinfer.plan.frozen import Frozen

if TYPE_CHECKING:
    from deepinfer.engine.rank_slice.measure import DecodeTime, PrefillTime


class Point(Frozen, frozen=True, kw_only=True):
    """What all steps have. Milliseconds; `share` is floor over time. Links are modelled, and the measured time has none."""

    routing: str
    load: float  # pairs of the rank's experts over those that its own rows make
    ms: float
    least_ms: float
    most_ms: float
    runs: int
    floor_ms: float
    floor_parts_ms: dict[str, float]
    share: float
    fp8_share: float  # with FP8 products at the FP8 peak, which this chip's exact products cannot use
    links_ms: dict[str, float]
    exchange_ms: float  # of all links and latencies, one after the other


class DecodePoint(Point, frozen=True, kw_only=True):
    """A step of `rows` rows. Rates: tokens/s of this GPU without links, with links hidden behind the rest, with links added."""

    sequences: int
    rows_each: int
    rows: int
    context: int
    drafting_ms: float | None  # part of `ms`
    tokens_each: float  # that a sequence gets of a step
    tokens_per_s: float
    tokens_per_s_links_hidden: float
    tokens_per_s_links_added: float
    tokens_per_s_per_user: float  # without links


class PrefillPoint(Point, frozen=True, kw_only=True):
    """A whole prompt, `chunk_tokens` at a time; rates as for `DecodePoint`."""

    tokens: int
    chunk_tokens: int
    keep: int | None  # rows that pass the later layers (replay=compact); null: all
    tokens_per_s: float
    tokens_per_s_links_hidden: float
    tokens_per_s_links_added: float


@dataclass(frozen=True, kw_only=True)
class Reckoning:
    """What floors and links of a role are reckoned from; `drafting` is the shape with its draft module."""

    trunk: Shape
    drafting: Shape
    group: Group
    rates: Rates
    calibration: Calibration
    yields: Yield

    def decode(self, time: DecodeTime) -> DecodePoint:
        drafts = time.rows_each - 1
        work = decode_work(
            self.drafting if drafts else self.trunk,
            self.group,
            time.sequences,
            time.context,
            rows_each=time.rows_each,
            drafts=drafts,
            accepted=self.yields.accepted if drafts else 1,
        )
        each = self.yields.accepted if drafts else 1.0
        read = {"experts": time.touched, "draft_experts": time.touched_drafts}
        common = self._common(time, self._floor(work, time.load, read), exchange_of(work, self.calibration))
        hidden_ms = max(common["ms"], common["exchange_ms"])
        made = 1e3 * time.sequences * each
        return DecodePoint(
            **common,
            sequences=time.sequences,
            rows_each=time.rows_each,
            rows=time.sequences * time.rows_each,
            context=time.context,
            drafting_ms=None if time.drafting is None else time.drafting.median_ms,
            tokens_each=each,
            tokens_per_s=made / common["ms"],
            tokens_per_s_links_hidden=made / hidden_ms,
            tokens_per_s_links_added=made / (common["ms"] + common["exchange_ms"]),
            tokens_per_s_per_user=1e3 * each / common["ms"],
        )

    def prefill(self, time: PrefillTime) -> PrefillPoint:
        prompt, chunk = Prompt(tokens=time.tokens, keep=time.keep), min(time.chunk_tokens, time.tokens)
        steps = time.tokens / chunk
        work = prefill_work(self.trunk, self.group, prompt, chunk / time.tokens)
        floor = self._floor(work, time.load, {"experts": time.touched})
        exchange = exchange_of(work, self.calibration)
        common = self._common(time, _times(floor, steps), _repeated(exchange, steps))
        hidden_ms = max(common["ms"], common["exchange_ms"])
        return PrefillPoint(
            **common,
            tokens=time.tokens,
            chunk_tokens=chunk,
            keep=time.keep,
            tokens_per_s=1e3 * time.tokens / common["ms"],
            tokens_per_s_links_hidden=1e3 * time.tokens / hidden_ms,
            tokens_per_s_links_added=1e3 * time.tokens / (common["ms"] + common["exchange_ms"]),
        )

    def _floor(self, work: Work, load: float, touched: dict[str, int]) -> Floor:
        """With the experts' weights that the measured step really reads."""
        held = dict.fromkeys(touched, 0.0)
        for experts in self.drafting.experts:
            held[experts.part] = held.get(experts.part, 0.0) + experts.num_bytes * experts.layers * touched.get(
                experts.part, 0
            )
        return floor_of(work, self.group.chip, self.rates, load, held)

    def _common(self, time: DecodeTime | PrefillTime, floor: Floor, exchange: Exchange) -> dict[str, Any]:
        took = time.took
        return {
            "routing": time.routing,
            "load": time.load,
            "ms": took.median_ms,
            "least_ms": took.least_ms,
            "most_ms": took.most_ms,
            "runs": took.runs,
            "floor_ms": floor.ms,
            "floor_parts_ms": floor.parts_ms,
            "share": floor.ms / took.median_ms,
            "fp8_share": floor.fp8_ms / took.median_ms,
            "links_ms": exchange.by_link_ms,
            "exchange_ms": exchange.ms,
        }


def _times(floor: Floor, steps: float) -> Floor:
    parts = {part: ms * steps for part, ms in floor.parts_ms.items()}
    return Floor(parts_ms=parts, ms=floor.ms * steps, fp8_ms=floor.fp8_ms * steps)


def _repeated(exchange: Exchange, steps: float) -> Exchange:
    links = {link: ms * steps for link, ms in exchange.by_link_ms.items()}
    return Exchange(by_link_ms=links, latency_ms=exchange.latency_ms * steps)
