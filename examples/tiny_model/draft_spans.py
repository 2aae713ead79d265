"""Spans of anchors out of a pool of continuations, with the labels of their blocks.

Legend: G spans · A anchors of a span · Q slots · C context positions · N documents · S all spans of a pool.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from examples.tiny_model.draft_documents import Pool
from examples.tiny_model.draft_model import Spans

SPAN = 16  # consecutive anchors that share their context


class SpanTable(NamedTuple):
    """Every span of a pool: its document, the position of its first anchor and how many anchors it has."""

    document_S: Tensor
    first_S: Tensor
    count_S: Tensor


class Labelled(NamedTuple):
    """`exists_GAQ`: the token that a slot proposes is in the document; a contiguous prefix of each block. `at_GAQ`: where in
    the pool the token lies."""

    spans: Spans
    document_G: Tensor
    exists_GAQ: Tensor
    at_GAQ: Tensor


def span_table(pool: Pool) -> SpanTable:
    """Anchors are answer tokens that have a token after them."""
    anchors_N = (pool.lengths_N - 1 - pool.prompts_N).clamp_min(0)
    spans_N = (anchors_N + SPAN - 1) // SPAN
    document = torch.repeat_interleave(torch.arange(len(spans_N), device=spans_N.device), spans_N)
    number = torch.arange(len(document), device=spans_N.device) - (spans_N.cumsum(0) - spans_N)[document]
    count = (anchors_N[document] - number * SPAN).clamp_max(SPAN)
    return SpanTable(document, pool.prompts_N[document] + number * SPAN, count)


def labelled(pool: Pool, table: SpanTable, chosen_G: Tensor, window: int, slots: int) -> Labelled:
    """The spans numbered `chosen_G` of `table`."""
    device = chosen_G.device
    document, first = table.document_S[chosen_G], table.first_S[chosen_G].unsqueeze(1)
    start, length = pool.starts_N[document].unsqueeze(1), pool.lengths_N[document].unsqueeze(1)
    positions = first + torch.arange(SPAN, device=device)
    context = first + torch.arange(-window, SPAN - 1, device=device)
    inside = torch.minimum(context.clamp_min(0), length - 1)
    newest = pool.ids_P[start + torch.minimum(positions, length - 1)]
    spans = Spans(newest, positions, pool.features_PF[start + inside], context)
    proposed = positions.unsqueeze(2) + 1 + torch.arange(slots, device=device)
    exists = proposed < length.unsqueeze(2)
    at = start.unsqueeze(2) + torch.minimum(proposed, length.unsqueeze(2) - 1)
    return Labelled(spans, document, exists, at)
