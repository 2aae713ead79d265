"""Prefill and decode of one role: times, rates, and the point where the scheduler and the users' patience meet."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from deepinfer.plan.cost.acceptance import Yield
from deepinfer.plan.cost.links import Group, Route
from deepinfer.plan.cost.shape import Shape
from deepinfer.plan.cost.timing import step_time
from deepinfer.plan.cost.types import Calibration, DecodeCost, DecodePoint, LinkWork, PrefillCost, StepTime, Work
from deepinfer.plan.cost.work import Prompt, decode_work, prefill_work


class Side(Struct, frozen=True, kw_only=True):
    """One role: its model as it runs there, one of its replicas, and how its times are reckoned (roofline first)."""

    role: str
    shape: Shape
    group: Group
    calibrations: tuple[Calibration, ...]

    def times(self, work: Work) -> tuple[StepTime, ...]:
        """The time of a step, one for each calibration."""
        return tuple(step_time(work, self.group.chip, c, sharers=self.group.sharers) for c in self.calibrations)


def prefill_cost(side: Side, prompt: Prompt, chunk_tokens: int, transfer: Route | None = None) -> PrefillCost:
    """Full steps of `chunk_tokens` rows for each attention rank; `transfer` is the way to the decode ranks, if any.

    A step is filled with whole prompts and parts of prompts, as the scheduler does; only a prompt alone has a last step
    that is not full.
    """
    shape, group = side.shape, side.group
    num_steps = math.ceil(prompt.computed / chunk_tokens)
    requests = chunk_tokens / prompt.computed
    moved = shape.cache_token_bytes * prompt.tokens + shape.cache_sequence_bytes
    work = prefill_work(shape, group, prompt, requests)
    if transfer is not None:  # context ranks all hold the keys, so each sends its part
        sent = _transfer(transfer, moved * requests / group.context)
        work = structs.replace(work, links=(*work.links, sent))
    alone = prefill_work(shape, group, prompt, 1 / num_steps, alone=True)
    waits = moved / group.context / transfer.bytes_per_s if transfer is not None else 0.0
    steps = side.times(work)
    tokens = prompt.computed * requests
    return PrefillCost(
        role=side.role,
        chip=group.chip.name,
        prompt_tokens=prompt.tokens,
        computed_tokens=prompt.computed,
        step_tokens=tokens,
        flops={dtype: flops / work.rows for dtype, flops in work.flops().items()},
        weight_bytes=work.num_bytes("weights"),
        cache_bytes=work.num_bytes("cache"),
        link_bytes=_by_link(work),
        transfer_bytes=moved if transfer is not None else 0.0,
        parts=work.parts,
        steps=steps,
        tokens_per_s_per_gpu=tuple(tokens / step.time_s / group.context for step in steps),
        ttft_s=tuple(
            num_steps * step.time_s
            + waits / calibration.link_share.get(transfer.link if transfer else "", calibration.default_link_share)
            for step, calibration in zip(side.times(alone), side.calibrations, strict=True)
        ),
    )


def decode_cost(
    side: Side, context: int, most: int, asked: int, speculation: Yield, wanted: Callable[[DecodePoint], bool]
) -> DecodeCost:
    """The curve over 1, 2, 4, … `most` sequences, and the largest number of them that is `wanted`, else one.

    `asked` are the sequences that the scheduler may run; `most` of them fit into the cache.
    """
    group = side.group

    def point(sequences: int) -> DecodePoint:
        return decode_point(side, context, sequences, speculation)

    counts = [1 << power for power in range(most.bit_length()) if 1 << power < most] + [most]
    curve = tuple(point(count) for count in counts)
    chosen = largest_wanted(curve, point, wanted)
    work = _step(side, context, chosen.sequences, speculation)
    return DecodeCost(
        role=side.role,
        chip=group.chip.name,
        context_tokens=context,
        rows_each=speculation.rows_each,
        accepted_tokens=speculation.accepted,
        accepted_source=speculation.source,
        most_sequences=most,
        limit="user" if chosen.sequences < most else "cache" if most < asked else "scheduler",
        asked_sequences=asked,
        curve=tuple(_without_parts(entry) for entry in curve),
        point=chosen,
        parts=work.parts,
        link_bytes=_by_link(work),
    )


def largest_wanted(
    curve: Sequence[DecodePoint], point: Callable[[int], DecodePoint], wanted: Callable[[DecodePoint], bool]
) -> DecodePoint:
    """The `wanted` point of most sequences, between the points of `curve` too; the first one where none is wanted.

    A step never gets shorter with a sequence that is added, for no part of its work gets less; so a user's rate never
    rises, beside prompts even less, and halving the gap between a wanted and an unwanted number finds the last wanted.
    """
    chosen, missed = curve[0], None
    for entry in curve:
        if not wanted(entry):
            missed = entry.sequences
            break
        chosen = entry
    while missed is not None and missed - chosen.sequences > 1:
        tried = point((chosen.sequences + missed) // 2)
        if wanted(tried):
            chosen = tried
        else:
            missed = tried.sequences
    return chosen


def _step(side: Side, context: int, sequences: int, speculation: Yield) -> Work:
    return decode_work(
        side.shape,
        side.group,
        sequences,
        context,
        rows_each=speculation.rows_each,
        drafts=speculation.drafts,
        accepted=speculation.accepted,
    )


def decode_point(side: Side, context: int, sequences: int, speculation: Yield) -> DecodePoint:
    """A step that `sequences` of an attention rank share, each with `context` tokens."""
    steps = side.times(_step(side, context, sequences, speculation))
    users = tuple(speculation.accepted / step.time_s for step in steps)
    return DecodePoint(
        sequences=sequences,
        steps=steps,
        tokens_per_s_per_gpu=tuple(sequences * rate / side.group.context for rate in users),
        tokens_per_s_per_user=users,
    )


def _without_parts(point: DecodePoint) -> DecodePoint:
    """A point of the curve without the times of its parts, which only the chosen point tells."""
    return structs.replace(point, steps=tuple(structs.replace(step, parts=()) for step in point.steps))


def _by_link(work: Work) -> dict[str, float]:
    found: dict[str, float] = {}
    for link in work.links:
        found[link.link] = found.get(link.link, 0.0) + link.num_bytes
    return found


def _transfer(route: Route, num_bytes: float) -> LinkWork:
    return LinkWork(link=route.link, what="transfer", num_bytes=num_bytes, bytes_per_s=route.bytes_per_s, calls=1)
