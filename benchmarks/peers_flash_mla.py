"""FlashMLA's Hopper kernels as peers (package sgl-flash-mla, which kept them when DeepSeek's own package dropped SM90).

It attends to rows that are rotated already and rotates nothing back: it does less than our op. Its caches hold V4's rows of 584
bytes, ours V4.1's of 528 and 288, so its numbers are those of the same keys quantised a second time.

Legend: T query rows · H heads · K head dim · J cache rows · W window slots · S selected slots.
"""

from types import ModuleType

import torch
from peers_call import Call, peer
from peers_layouts import v4_pages
from torch import Tensor

PACKAGE = "sgl-flash-mla"
PAGE = 64
V4_ROWS, BF16_ROWS = 0.06, 0.01


@peer("flash_mla", package=PACKAGE, tolerance=V4_ROWS)
def flash_mla_decode(
    flash_mla: ModuleType,
    q_THK: Tensor,
    window_JK: Tensor,
    window_rows_TW: Tensor,
    selected_JK: Tensor | None,
    selected_rows_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
    rows_each: int = 1,
) -> Call:
    """flash_mla_with_kvcache over two caches; -1 hides a slot. `rows_each`: adjacent query rows of one sequence."""
    sequences = q_THK.shape[0] // rows_each
    q = q_THK.unflatten(0, (sequences, rows_each))
    caches = {"k_cache": v4_pages(whole_pages(window_JK), PAGE)}
    lists = {"indices": window_rows_TW.unflatten(0, (sequences, rows_each)).contiguous()}
    if selected_JK is not None and selected_rows_TS is not None:
        caches["extra_k_cache"] = v4_pages(whole_pages(selected_JK), PAGE)
        selected = selected_rows_TS.unflatten(0, (sequences, rows_each)).contiguous()
        lists["extra_indices_in_kvcache"] = selected
    plan, _ = flash_mla.get_mla_metadata()
    options = {"softmax_scale": scale, "attn_sink": sink_H.float(), "is_fp8_kvcache": True, "use_legacy": True}

    def call() -> Tensor:
        out, _ = flash_mla.flash_mla_with_kvcache(
            q=q,
            block_table=None,
            cache_seqlens=None,
            head_dim_v=q.shape[-1],
            tile_scheduler_metadata=plan,
            **caches,
            **lists,
            **options,
        )
        return out.flatten(0, 1)

    return call


@peer("flash_mla", package=PACKAGE, tolerance=BF16_ROWS)
def flash_mla_prefill(
    flash_mla: ModuleType, q_THK: Tensor, keys_JK: Tensor, rows_TS: Tensor, sink_H: Tensor, scale: float
) -> Call:
    """flash_mla_sparse_fwd over bf16 rows, decoded beforehand: decoding costs it no time."""
    keys_J1K, rows_T1S = keys_JK.to(torch.bfloat16).unsqueeze(1).contiguous(), rows_TS.unsqueeze(1).contiguous()
    sink = sink_H.float()
    return lambda: flash_mla.flash_mla_sparse_fwd(q_THK, keys_J1K, rows_T1S, scale, attn_sink=sink, use_legacy=True)[0]


def whole_pages(keys_JK: Tensor) -> Tensor:
    """Zero rows at the end make whole pages."""
    return torch.nn.functional.pad(keys_JK, (0, 0, 0, -keys_JK.shape[0] % PAGE))
