"""One call of every op on forty random rows, for tests that compare rows, widths and implementations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.ops import Ops

ROWS = 40
Case = Callable[[Ops, slice], Tensor]


@dataclass(frozen=True)
class Inputs:
    """Random rows of one dtype; every attribute asked for by name keeps its first value."""

    dtype: torch.dtype

    def __call__(self, seed: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(self.dtype)


def cases(x: Inputs) -> dict[str, Case]:
    """One per op: results of the rows in a slice, flattened to [rows, …]."""
    wide, narrow = x(1, ROWS, 256), x(2, ROWS, 96)
    streams, raw = x(3, ROWS, 4, 64), x(4, ROWS, 24)
    base, scale3 = x(5, 24), x(6, 3)
    mix, mixing = x(7, ROWS, 4), x(8, ROWS, 4, 4).abs()
    rope = torch.stack((x(9, ROWS, 8).cos(), x(9, ROWS, 8).sin()), 1)
    queries, window, selected = x(10, ROWS, 4, 64), x(11, ROWS, 32, 64), x(12, ROWS, 16, 64)
    window_mask, selected_mask = x(13, ROWS, 32) > -1, x(14, ROWS, 16) > 0
    window, selected = window * window_mask.unsqueeze(-1), selected * selected_mask.unsqueeze(-1)
    bias = x(15, 8)
    scores = x(16, ROWS, 8).abs()
    experts13, experts2 = [x(20 + e, 192, 256) for e in range(8)], [x(40 + e, 256, 96) for e in range(8)]
    picks, weights = x(17, ROWS, 8).sort(dim=1).indices[:, :3], x(18, ROWS, 3)
    entry_scores = x(19, ROWS, 50).round()  # many ties
    visible = torch.arange(ROWS) + 11
    entry_scores = entry_scores.masked_fill(torch.arange(50) >= visible.unsqueeze(1), -torch.inf)
    q_index, w_index, store = x(60, ROWS, 4, 32), x(61, ROWS, 4), x(62, 5 * ROWS, 16, 32)
    tables = torch.arange(5 * ROWS).view(ROWS, 5)
    matrix = x(63, 320, 256)
    grouped = x(64, 2, 48, 128)
    classes = torch.arange(ROWS).unsqueeze(1) * torch.tensor([7, 11, 13])
    constants = torch.tensor([3, 2**40 + 1, 9]), torch.tensor([[101, 103], [107, 109]]), torch.tensor([[0, 5], [9, 7]])

    def index(ops: Ops, s: slice) -> Tensor:
        rows = torch.arange(ROWS)[s]
        found = ops.index_scores(q_index[s], w_index[s], "plain", store, tables, rows, visible[s])
        return torch.nn.functional.pad(found, (0, 60 - found.shape[1]), value=-torch.inf)

    def routed(ops: Ops, s: slice) -> Tensor:
        activate = lambda h, w: ops.swiglu(h, w, 10.0)  # noqa: E731
        return ops.routed_experts(wide[s], picks[s], weights[s], experts13, experts2, activate)

    def joined(parts: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([part.flatten(1) for part in parts], 1)

    return {
        "linear": lambda ops, s: ops.linear(wide[s], matrix),
        "grouped_linear": lambda ops, s: ops.grouped_linear(wide[s].unflatten(1, (2, 128)), grouped),
        "rms_norm": lambda ops, s: ops.rms_norm(narrow[s], x(65, 96), 1e-20),
        "quantise_activation": lambda ops, s: ops.quantise_activation(wide[s]),
        "quantise_index": lambda ops, s: ops.quantise_index(q_index[s]),
        "rotate": lambda ops, s: ops.rotate(queries[s], rope[s]),
        "rotate_back": lambda ops, s: ops.rotate(narrow[s], rope[s], True),
        "hyper_coefficients": lambda ops, s: joined(
            ops.hyper_coefficients(streams[s], raw[s], base, scale3, 1e-20, 1e-6, 20)
        ),
        "hyper_collapse": lambda ops, s: ops.hyper_collapse(streams[s], mix[s]),
        "hyper_mix": lambda ops, s: ops.hyper_mix(streams[s], wide[s, :64], mixing[s], mix[s]),
        "attention": lambda ops, s: ops.attention(
            queries[s], window[s], window_mask[s], selected[s], selected_mask[s], x(66, 4), 0.125
        ),
        "attention_window_only": lambda ops, s: ops.attention(
            queries[s], window[s], window_mask[s], None, None, x(66, 4), 0.125
        ),
        "pool_pairs": lambda ops, s: ops.pool_pairs(queries[s, :2], queries[s, 2:]),
        "index_scores": index,
        "best_entries": lambda ops, s: ops.best_entries(entry_scores[s], 16),
        "candidate_blocks": lambda ops, s: ops.candidate_blocks(entry_scores[s], visible[s], 4, 5),
        "router_scores": lambda ops, s: ops.router_scores(raw[s]),
        "choose_experts": lambda ops, s: joined(ops.choose_experts(scores[s], bias, 3, 1.5)),
        "swiglu": lambda ops, s: ops.swiglu(narrow[s] * 9, weights[s, 0], 10.0),
        "routed_experts": routed,
        "engram_rows": lambda ops, s: ops.engram_rows(classes[s], *constants),
        "engram_add": lambda ops, s: ops.engram_add(
            streams[s], streams[s] * mix[s].unsqueeze(-1), wide[s, :64], x(67, 4, 64), x(68, 4, 64), 1e-20
        ),
    }
