"""Times of one rank's steps: decode against sequences and context, prefill against the length of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.engine.rank_slice.clock import Clock, Took
from deepinfer.engine.rank_slice.decode import Decoder
from deepinfer.engine.rank_slice.experts import Routing
from deepinfer.engine.rank_slice.inputs import prompt_step
from deepinfer.engine.rank_slice.model import SliceModel
from deepinfer.engine.rank_slice.steps import prompt_call
from deepinfer.model.cache_storage import ModelCache


@dataclass(frozen=True, kw_only=True)
class DecodeTime:
    """A step of `sequences` × `rows_each` rows at `context` tokens each; `drafting` is its part that drafts."""

    sequences: int
    rows_each: int
    context: int
    routing: Routing
    load: float  # pairs of the rank over those that its own rows make
    touched: int  # experts of a layer that get any of them
    touched_drafts: int  # the same of a draft layer
    took: Took
    drafting: Took | None


@dataclass(frozen=True, kw_only=True)
class PrefillTime:
    """A prompt of `tokens`, computed `chunk_tokens` at a time; `took` is the sum of its chunks."""

    tokens: int
    chunk_tokens: int
    keep: int | None
    routing: Routing
    load: float
    touched: int
    took: Took


def time_decode(
    decoder: Decoder, clock: Clock, sequences: int, rows_each: int, context: int, routing: Routing
) -> DecodeTime:
    routed, config = decoder.share.route(routing), decoder.share.config
    calls = decoder.prepare(sequences, rows_each, context)
    took = clock.time(calls.step)
    return DecodeTime(
        sequences=sequences,
        rows_each=rows_each,
        context=context,
        routing=routing,
        load=routed.trunk.load,
        touched=routed.trunk.touched(sequences * rows_each),
        touched_drafts=routed.drafts.touched(sequences * config.dspark_block_size),
        took=took,
        drafting=None if calls.drafting is None else clock.time(calls.drafting),
    )


def time_prefill(
    share: SliceModel,
    cache: ModelCache,
    clock: Clock,
    tokens: int,
    chunk_tokens: int,
    keep: int | None,
    routing: Routing,
) -> PrefillTime:
    """`keep`: the last rows of the prompt that pass the later layers (replay=compact); None: all do."""
    pairs, model, times = share.route(routing).trunk, share.model, []
    model.compact = model.rows.compact = keep is not None
    for start in range(0, tokens, chunk_tokens):
        stop = min(tokens, start + chunk_tokens)
        step = prompt_step(share.config, tokens, start, stop, model.layout.block_tokens, keep)
        times.append(clock.time(clock.replayed(prompt_call(model, cache, step))))
    took = Took(
        median_ms=sum(each.median_ms for each in times),
        least_ms=sum(each.least_ms for each in times),
        most_ms=sum(each.most_ms for each in times),
        runs=min(each.runs for each in times),
    )
    touched = pairs.touched(min(tokens, chunk_tokens))
    sizes = {"tokens": tokens, "chunk_tokens": chunk_tokens, "touched": touched}
    return PrefillTime(**sizes, keep=keep, routing=routing, load=pairs.load, took=took)
