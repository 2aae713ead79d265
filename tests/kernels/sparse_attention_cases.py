"""Random problems of sparse attention, what is expected of them, and the peers' view of the same numbers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer import formats
from deepinfer.ops.rotate import rotate
from deepinfer.ops.sparse_attention import sparse_attention as twin


@dataclass(frozen=True)
class Case:
    """Shape of a random problem: `queries` rows of each sequence at consecutive positions, whose rings hold their windows.

    entries: selected rows that a sequence has · visible: how many a row may see, row after row in turn · hidden: share of
    window slots hidden.
    """

    sequences: int = 1
    queries: int = 1
    heads: int = 64
    head_dim: int = 512
    window: int = 128
    selected: int = 512
    window_kind: str = "window"
    selected_kind: str | None = "main"
    entries: int = 1024
    visible: tuple[int, ...] = ()
    hidden: float = 0.0

    @property
    def rows(self) -> int:
        return self.sequences * self.queries

    @property
    def flops(self) -> float:
        return 4.0 * self.rows * self.heads * self.head_dim * (self.window + self.selected)


def store(kind: str, blocks: int, inner: int, head_dim: int, rows_TJ: Tensor) -> Tensor:
    """Random rows [blocks, inner, R] in padded blocks: any code, scales that make keys near 1. Unlisted rows: NaN bytes."""
    codes, scales, low, high = {
        "window": (head_dim, head_dim // 32, 117, 122),
        "main": (head_dim // 2, head_dim // 16, 0x18, 0x30),
        "plain": (2 * head_dim, 0, 0, 1),
    }[kind]
    row_bytes, device = codes + scales, rows_TJ.device
    block_bytes = -(-inner * row_bytes // 16) * 16 + 48
    whole = torch.randint(0, 256, (blocks, block_bytes), dtype=torch.uint8, device=device)
    view = whole[:, : inner * row_bytes].view(blocks, inner, row_bytes)
    view[..., codes:] = torch.randint(low, high, (blocks, inner, scales), dtype=torch.uint8, device=device)
    if kind == "window":
        view[..., :codes][view[..., :codes] & 0x7F == 0x7F] = 0
    elif kind == "plain":
        view.copy_(torch.randn(blocks, inner, head_dim, device=device).bfloat16().view(torch.uint8))
    unlisted = torch.ones(blocks * inner, dtype=torch.bool, device=device)
    unlisted[rows_TJ[rows_TJ >= 0].long()] = False
    view[unlisted.view(blocks, inner)] = 0xFF
    whole[:, inner * row_bytes :] = 0xFF
    return view.view(torch.bfloat16) if kind == "plain" else view


def problem(case: Case, device: str, seed: int = 0) -> dict:
    """Arguments of sparse_attention."""
    torch.manual_seed(seed)
    ring = case.window + case.queries + 5
    row = torch.arange(case.rows, device=device).unsqueeze(1)
    sequence, query = row // case.queries, row % case.queries
    start = torch.randint(0, ring, (case.sequences, 1), device=device)[sequence.squeeze(1)]
    window_rows_TW = sequence * ring + (start + query + torch.arange(case.window, device=device)) % ring
    window_rows_TW[torch.rand(window_rows_TW.shape, device=device) < case.hidden] = -1
    angle_TF = torch.rand(case.rows, 32, device=device) * 6.28
    arguments = {
        "q_THK": torch.randn(case.rows, case.heads, case.head_dim, device=device).bfloat16(),
        "window_ABR": store(case.window_kind, case.sequences, ring, case.head_dim, window_rows_TW),
        "window_rows_TW": window_rows_TW.int(),
        "selected_ABR": None,
        "selected_rows_TS": None,
        "sink_H": torch.randn(case.heads, device=device),
        "scale": case.head_dim**-0.5,
        "rope_T2F": torch.stack((angle_TF.cos(), angle_TF.sin()), 1).contiguous(),
    }
    if case.selected_kind:
        draws = [torch.rand(min(256, case.rows - at), case.entries, device=device).topk(case.selected).indices.sort(-1)[0]
                 for at in range(0, case.rows, 256)]  # fmt: skip
        selected_rows_TS = torch.cat(draws) + sequence * case.entries
        visible = torch.tensor(case.visible or (case.selected,), device=device)
        visible_T1 = visible[row % len(visible)]
        selected_rows_TS[torch.arange(case.selected, device=device) >= visible_T1] = -1
        blocks = case.sequences * case.entries // 64
        arguments["selected_rows_TS"] = selected_rows_TS.int()
        arguments["selected_ABR"] = store(case.selected_kind, blocks, 64, case.head_dim, selected_rows_TS)
    return arguments


def expected(arguments: dict) -> Tensor:
    """The twin in float64, a few rows at a time."""
    wide = dict(arguments)
    for name in ("window_ABR", "selected_ABR"):
        if wide[name] is not None and wide[name].dtype == torch.bfloat16:
            wide[name] = wide[name].double()
    wide["sink_H"] = wide["sink_H"].double()
    parts = []
    for at in range(0, len(arguments["q_THK"]), 32):
        part = rows_of(wide, slice(at, at + 32))
        parts.append(twin(**part | {name: part[name].double() for name in ("q_THK", "rope_T2F")}))
    return torch.cat(parts)


def rows_of(arguments: dict, rows: slice | Tensor) -> dict:
    """The same problem for some of its rows."""
    by_row = {
        name: value for name, value in arguments.items() if name.split("_")[-1].startswith("T") and value is not None
    }
    return arguments | {name: value[rows].contiguous() for name, value in by_row.items()}


def check(out: Tensor, reference: Tensor, bound: float = 4e-3) -> None:
    """bf16 queries, weights and results are rounded to 2^-9 of their size; errors of many weights average out."""
    error = out.double() - reference
    assert error.norm() <= bound * reference.norm()
    assert (
        error.abs() <= 2 * bound * reference.abs() + 15 * bound * reference.square().mean(-1, keepdim=True).sqrt()
    ).all()


def moved_bytes(arguments: dict) -> float:
    """Queries, result, lists, and every listed row once."""
    total = 2.0 * arguments["q_THK"].nbytes
    for store_name, rows_name in (("window_ABR", "window_rows_TW"), ("selected_ABR", "selected_rows_TS")):
        rows_TJ, store_ABR = arguments[rows_name], arguments[store_name]
        num_rows = rows_TJ[rows_TJ >= 0].unique().numel()
        total += rows_TJ.nbytes + num_rows * store_ABR.shape[2] * store_ABR.element_size()
    return total


def decoded(store_ABR: Tensor) -> Tensor:
    """All rows of a store as bf16 numbers [A·B, K]; unlisted ones zeros."""
    if store_ABR.dtype == torch.bfloat16:
        return store_ABR.flatten(0, 1).nan_to_num(0.0)
    unpack = formats.unpack_window if store_ABR.shape[2] == 528 else formats.unpack_main
    return torch.cat([unpack(part).bfloat16().nan_to_num(0.0) for part in store_ABR.flatten(0, 1).split(1 << 16)])


def decode_peers(inputs: list[dict], case: Case) -> dict:
    from kernel_peers import decode_attention

    keys = ("window_rows_TW", "selected_rows_TS", "sink_H", "scale")
    return decode_attention(
        [
            (rotate(one["q_THK"], one["rope_T2F"]), decoded(one["window_ABR"]), one[keys[0]], decoded(one["selected_ABR"]),
             *(one[key] for key in keys[1:]), case.queries)
            for one in inputs
        ]
    )  # fmt: skip


def prefill_peers(inputs: list[dict]) -> dict:
    from kernel_peers import prefill_attention

    copies = []
    for one in inputs:
        window_JK, selected_JK = decoded(one["window_ABR"]), decoded(one["selected_ABR"])
        rows_TS = torch.cat((one["window_rows_TW"], one["selected_rows_TS"] + len(window_JK)), 1)
        keys_JK = torch.cat((window_JK, selected_JK))
        copies.append((rotate(one["q_THK"], one["rope_T2F"]), keys_JK, rows_TS, one["sink_H"], one["scale"]))
    return prefill_attention(copies)
