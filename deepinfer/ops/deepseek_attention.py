"""FlashMLA behind our sparse attention: 528-byte window rows, 288-byte main rows, on Blackwell and Ascend 950.

Written against deepinfer-flashmla 1.0.0; not run here. `fused_attention` is the form with norm, both rotations and the FP8
coding of its output in one kernel (Blackwell only); the weights around it are permuted once, at load.

Legend: T rows · H heads · K head dim · F rope frequencies · W window slots · S selected slots · A blocks of a store ·
B rows of a block · R bytes of a row · G output groups.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.ops.deepseek_gemm import Coded
from deepinfer.ops.deepseek_packages import package
from deepinfer.ops.rotate import rotate

HEAD_DIM, ROPE_DIM = 512, 64
SLOTS = 64  # lists are a whole number of these long
WINDOW_BYTES, MAIN_BYTES = 528, 288
ALIGNMENT = 16  # bytes, of a block


def sparse_attention(
    q_THK: Tensor,
    window_ABR: Tensor,
    window_rows_TW: Tensor,
    selected_ABR: Tensor | None,
    selected_rows_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
    rope_T2F: Tensor,
) -> Tensor:
    """[T, H, K], as our twin of that name. To the package each row is a sequence of one query, with lists of its own."""
    flash = package("flash_mla")
    q_THK = rotate(q_THK, rope_T2F).contiguous()
    schedule, _ = flash.get_mla_metadata()
    out_T1HK, _ = flash.flash_mla_with_kvcache(
        q_THK.unsqueeze(1),
        _store(window_ABR, WINDOW_BYTES),
        None,
        None,
        HEAD_DIM,
        schedule,
        softmax_scale=scale,
        indices=_list(window_rows_TW).unsqueeze(1),
        attn_sink=sink_H.float().contiguous(),
        extra_k_cache=None if selected_ABR is None else _store(selected_ABR, MAIN_BYTES, WINDOW_BYTES),
        extra_indices_in_kvcache=None if selected_rows_TS is None else _list(selected_rows_TS).unsqueeze(1),
        enable_batch_invariant=True,
    )
    return rotate(out_T1HK.squeeze(1), rope_T2F, inverse=True)


@dataclass(frozen=True)
class Around:
    """The projections before and behind the fused kernel, permuted for it; the products themselves are `deepseek_gemm`'s."""

    up: Coded  # wq_b
    out: Coded  # wo_a, [G, N, K]


def prepare_around(up: Coded, out: Coded, heads: int, groups: int) -> Around:
    """`up`: codes [H · K, rank]; `out`: codes [G · N, H / G · K]."""
    fused = package("flash_mla").fused_norm_rope_attn_rope_cast
    grouped = (out.codes.unflatten(0, (groups, -1)), out.scales.unflatten(0, (groups, -1)))
    return Around(
        Coded(*fused.permute_q_b_proj(up.pair, heads, HEAD_DIM)),
        Coded(*fused.permute_wv_proj(grouped, heads // groups, HEAD_DIM)),
    )


def fused_attention(
    q_THK: Tensor,
    window_ABR: Tensor,
    window_rows_TW: Tensor,
    selected_ABR: Tensor | None,
    selected_rows_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
    positions_T: Tensor,
    rope_PR: Tensor,
    groups: int,
) -> Coded:
    """Attention whose queries come from the permuted up-projection and whose output goes into the permuted grouped projection.

    `rope_PR`: float32 [positions, 64], cosines then sines. Result: codes float8_e4m3fn [T, G, H / G · K] and packed scales.
    V4.1's queries have no norm of their own, so the kernel's is off.
    """
    assert q_THK.shape[2] == HEAD_DIM and rope_PR.shape[1] == ROPE_DIM and rope_PR.dtype == torch.float32, (
        "sizes of V4.1"
    )
    window_rows_TW = _list(window_rows_TW)
    assert window_rows_TW.shape[1] % 8 == 0, "a multiple of 8 window slots in front of FP4 rows"
    codes, scales, _ = package("flash_mla").fused_norm_rope_attn_rope_cast.decode(
        *(False, 0.0, positions_T.int(), False, ROPE_DIM, rope_PR.contiguous()),
        *(groups, 32, True, True, True),
        *(q_THK.contiguous(), _store(window_ABR, WINDOW_BYTES), window_rows_TW, scale),
        attn_sink=sink_H.float().contiguous(),
        extra_k_cache=None if selected_ABR is None else _store(selected_ABR, MAIN_BYTES, WINDOW_BYTES),
        extra_indices_in_kvcache=None if selected_rows_TS is None else _list(selected_rows_TS),
    )
    return Coded(codes, scales)


def _store(store_ABR: Tensor, *row_bytes: int) -> Tensor:
    """A view [A, B, 1, R] of packed rows, as it lies: the rows of a block adjacent, blocks 16-byte aligned."""
    assert store_ABR.dtype == torch.uint8 and store_ABR.shape[2] in row_bytes, f"rows of {row_bytes} bytes"
    assert store_ABR.stride()[1:] == (store_ABR.shape[2], 1), "the rows of a block are adjacent"
    assert store_ABR.stride(0) % ALIGNMENT == 0 and store_ABR.data_ptr() % ALIGNMENT == 0, "blocks begin at 16 bytes"
    return store_ABR.unsqueeze(2)


def _list(rows_TS: Tensor) -> Tensor:
    """Row numbers int32, -1 where hidden, padded with -1 to a whole number of slots."""
    assert rows_TS.dtype == torch.int32, "lists are int32 row numbers"
    return F.pad(rows_TS, (0, -rows_TS.shape[1] % SLOTS), value=-1).contiguous()
