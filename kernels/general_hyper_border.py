"""The border between two hyper-connection sites for any width, in plain Triton. Twin: deepinfer/ops/hyper_border.py.

A program takes one row: it mixes the streams piece by piece of columns, keeps them, and adds up the site's raw coefficients
and the collapsed row on the way. The norm and the quantiser behind it are `triton_norm_quantise`.

Legend: T rows · N streams, M source stream · D hidden · C coefficients · P columns of a piece.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import as_bf16
from deepinfer.kernels.triton_norm_quantise import norm_quantise
from torch import Tensor

from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights

PIECE, WARPS = 256, 2  # measured on an H200 at 256 columns


def prepare_hyper_site(site: SiteWeights) -> SiteWeights:
    """As stored, contiguous float32."""
    return SiteWeights(*(part.float().contiguous() for part in site))


def hyper_border(
    x_TND: Tensor,
    out_TD: Tensor | None,
    ended: Coefficients,
    begun: SiteWeights | None,
    norm_D: Tensor | None,
    norm_eps: float,
    eps: float,
    iterations: int,
    *,
    quantise: bool = True,
    collapsed: bool = False,
) -> Border:
    """As the twin, in bfloat16 with float32 coefficients. `quantised_TD` and `collapsed_TD` are empty unless asked for."""
    rows, streams, hidden = x_TND.shape
    _check(x_TND, out_TD, ended, begun, norm_D)
    empty_TD = x_TND.new_empty(0, hidden)
    if out_TD is None and norm_D is None:
        return Border(x_TND, empty_TD, empty_TD, empty_TD, None)
    new_x_TND = x_TND if out_TD is None else torch.empty_like(x_TND)
    collapsed_TD = empty_TD if norm_D is None else x_TND.new_empty(rows, hidden)
    coefficients = None if begun is None else Coefficients(*map(torch.empty_like, ended))
    if rows:
        piece = min(PIECE, triton.next_power_of_2(hidden))
        _border[(rows,)](
            x_TND, out_TD, *ended, *((None,) * 3 if begun is None else begun), new_x_TND, collapsed_TD,
            *((None,) * 3 if coefficients is None else coefficients), norm_eps, eps, iterations,
            N=streams, S=triton.next_power_of_2(streams), D=hidden, P=piece, MIX=out_TD is not None,
            BEGUN=begun is not None, COLLAPSE=norm_D is not None, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    if norm_D is None:
        return Border(new_x_TND, empty_TD, empty_TD, empty_TD, None)
    normed = norm_quantise(collapsed_TD, norm_D, norm_eps, normed=True, grid=quantise)
    assert normed.normed_TD is not None
    quantised_TD = empty_TD if normed.grid_TD is None else normed.grid_TD
    return Border(new_x_TND, collapsed_TD if collapsed else empty_TD, normed.normed_TD, quantised_TD, coefficients)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _mixed(
    x_ptr, out_ptr, mixing_ptr, write_ptr, row, stream, column_P, inside_P,
    N: tl.constexpr, D: tl.constexpr, MIX: tl.constexpr,
):  # fmt: skip
    """A piece of one stream of the new row, rounded to bfloat16: write · out + Σ_m mixing[m] · x_m, in that order."""
    if MIX:
        out_P = tl.load(out_ptr + row * D + column_P, mask=inside_P, other=0.0).to(tl.float32)
        total_P = tl.load(write_ptr + row * N + stream) * out_P
        for m in tl.static_range(N):
            x_P = tl.load(x_ptr + (row * N + m) * D + column_P, mask=inside_P, other=0.0).to(tl.float32)
            total_P += tl.load(mixing_ptr + (row * N + m) * N + stream) * x_P
        new_P = as_bf16(total_P)
    else:
        new_P = tl.load(x_ptr + (row * N + stream) * D + column_P, mask=inside_P, other=0.0)
    return new_P


@triton.jit
def _doubly_stochastic(logits_MN, real_MN, eps, iterations):
    """Softmax over destinations, then columns and rows in turn, ending on columns; padding stays 0."""
    logits_MN = tl.where(real_MN, logits_MN, float("-inf"))
    peak_M = tl.max(logits_MN, 1)
    peak_M = tl.where(peak_M == float("-inf"), 0.0, peak_M)
    grown_MN = tl.exp(logits_MN - peak_M[:, None])
    mixing_MN = tl.where(real_MN, grown_MN / tl.sum(grown_MN, 1)[:, None] + eps, 0.0)
    mixing_MN = mixing_MN / (tl.sum(mixing_MN, 0)[None, :] + eps)
    for _ in range(iterations - 1):
        mixing_MN = mixing_MN / (tl.sum(mixing_MN, 1)[:, None] + eps)
        mixing_MN = mixing_MN / (tl.sum(mixing_MN, 0)[None, :] + eps)
    return mixing_MN


@triton.jit
def _add_products(
    sums, fn_ptr, wide_P, column_P, inside_P, stream, N: tl.constexpr, S: tl.constexpr, D: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """Sums behind a piece of one stream: its squares, and its products with fn by mixing pair, read and write weight."""
    squares_P, mixing_QP, read_SP, write_SP = sums
    pair_Q1, kind_S1, at_1P = tl.arange(0, S * S)[:, None], tl.arange(0, S)[:, None], (stream * D + column_P)[None, :]
    source_Q1, target_Q1 = pair_Q1 // S, pair_Q1 % S
    there_QP = (source_Q1 < N) & (target_Q1 < N) & inside_P[None, :]
    there_SP = (kind_S1 < N) & inside_P[None, :]
    mixing_fn = fn_ptr + (2 * N + source_Q1 * N + target_Q1) * (N * D)
    fn_QP = tl.load(mixing_fn + at_1P, mask=there_QP, other=0.0)
    read_fn_SP = tl.load(fn_ptr + kind_S1 * (N * D) + at_1P, mask=there_SP, other=0.0)
    write_fn_SP = tl.load(fn_ptr + (N + kind_S1) * (N * D) + at_1P, mask=there_SP, other=0.0)
    wide_QP, wide_SP = tl.broadcast_to(wide_P[None, :], (S * S, P)), tl.broadcast_to(wide_P[None, :], (S, P))
    return (
        squares_P + wide_P * wide_P, tl.fma(fn_QP, wide_QP, mixing_QP), tl.fma(read_fn_SP, wide_SP, read_SP),
        tl.fma(write_fn_SP, wide_SP, write_SP),
    )  # fmt: skip


@triton.jit
def _bases(base_ptr, scale_ptr, N: tl.constexpr, S: tl.constexpr):
    """Bases of read and write weights and of mixing, and their three scales."""
    kind_S = tl.arange(0, S)
    source_S1, target_1S = kind_S[:, None], kind_S[None, :]
    real_MN = (source_S1 < N) & (target_1S < N)
    return (
        tl.load(base_ptr + kind_S, mask=kind_S < N, other=0.0),
        tl.load(base_ptr + N + kind_S, mask=kind_S < N, other=0.0),
        tl.load(base_ptr + 2 * N + source_S1 * N + target_1S, mask=real_MN, other=0.0),
        tl.load(scale_ptr),
        tl.load(scale_ptr + 1),
        tl.load(scale_ptr + 2),
    )


@triton.jit
def _store_coefficients(
    sums, bases, read_ptr, mixing_ptr, write_ptr, row, norm_eps, eps, iterations,
    N: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    squares_P, mixing_QP, read_SP, write_SP = sums
    read_base_S, write_base_S, base_MN, read_scale, write_scale, mixing_scale = bases
    kind_S = tl.arange(0, S)
    source_S1, target_1S, real_S = kind_S[:, None], kind_S[None, :], kind_S < N
    real_MN = (source_S1 < N) & (target_1S < N)
    scale = 1.0 / tl.sqrt_rn(tl.sum(squares_P, 0) / (N * D) + norm_eps)
    read_S = _sigmoid(tl.sum(read_SP, 1) * scale * read_scale + read_base_S) + eps
    tl.store(read_ptr + row * N + kind_S, read_S, mask=real_S)
    write_S = 2.0 * _sigmoid(tl.sum(write_SP, 1) * scale * write_scale + write_base_S)
    tl.store(write_ptr + row * N + kind_S, write_S, mask=real_S)
    logits_MN = tl.reshape(tl.sum(mixing_QP, 1), (S, S)) * scale * mixing_scale + base_MN
    mixing_MN = _doubly_stochastic(logits_MN, real_MN, eps, iterations)
    tl.store(mixing_ptr + (row * N + source_S1) * N + target_1S, mixing_MN, mask=real_MN)


@triton.jit
def _border(
    x_ptr, out_ptr, read_ptr, mixing_ptr, write_ptr, fn_ptr, base_ptr, scale_ptr, new_ptr, collapsed_ptr,
    new_read_ptr, new_mixing_ptr, new_write_ptr, norm_eps, eps, iterations,
    N: tl.constexpr, S: tl.constexpr, D: tl.constexpr, P: tl.constexpr, MIX: tl.constexpr, BEGUN: tl.constexpr,
    COLLAPSE: tl.constexpr,
):  # fmt: skip
    """Everything is loaded before anything that depends on it is stored: loads wait for the stores before them."""
    row = tl.program_id(0).to(tl.int64)
    if BEGUN:
        bases = _bases(base_ptr, scale_ptr, N, S)
    squares_P, mixing_QP = tl.zeros((P,), tl.float32), tl.zeros((S * S, P), tl.float32)
    read_SP, write_SP = tl.zeros((S, P), tl.float32), tl.zeros((S, P), tl.float32)
    for first in range(0, D, P):
        column_P = first + tl.arange(0, P)
        inside_P = column_P < D
        collapsed_P = tl.zeros((P,), tl.float32)
        streams = ()
        for stream in tl.static_range(N):
            new_P = _mixed(x_ptr, out_ptr, mixing_ptr, write_ptr, row, stream, column_P, inside_P, N, D, MIX)
            streams += (new_P,)
            wide_P = new_P.to(tl.float32)
            if COLLAPSE:
                part_P = tl.load(read_ptr + row * N + stream) * wide_P
                collapsed_P = part_P if stream == 0 else collapsed_P + part_P
            if BEGUN:
                sums = (squares_P, mixing_QP, read_SP, write_SP)
                sums = _add_products(sums, fn_ptr, wide_P, column_P, inside_P, stream, N, S, D, P)
                squares_P, mixing_QP, read_SP, write_SP = sums
        for stream in tl.static_range(N if MIX else 0):
            tl.store(new_ptr + (row * N + stream) * D + column_P, streams[stream], mask=inside_P)
        if COLLAPSE:
            tl.store(collapsed_ptr + row * D + column_P, as_bf16(collapsed_P), mask=inside_P)
    if BEGUN:
        sums = (squares_P, mixing_QP, read_SP, write_SP)
        _store_coefficients(
            sums, bases, new_read_ptr, new_mixing_ptr, new_write_ptr, row, norm_eps, eps, iterations, N, S, D
        )


def _check(
    x_TND: Tensor, out_TD: Tensor | None, ended: Coefficients, begun: SiteWeights | None, norm_D: Tensor | None
) -> None:
    rows, streams, hidden = x_TND.shape
    for tensor in (tensor for tensor in (x_TND, out_TD, norm_D) if tensor is not None):
        assert tensor.dtype == torch.bfloat16 and tensor.is_contiguous(), (
            "streams, outputs and norm weights are bfloat16, contiguous"
        )
    assert norm_D is None or norm_D.shape == (hidden,), "the norm has a weight for every column"
    assert out_TD is None or out_TD.shape == (rows, hidden), "one row of output per row"
    for tensor, shape in zip(ended, ((rows, streams), (rows, streams, streams), (rows, streams))):
        assert tensor.dtype == torch.float32 and tensor.shape == shape and tensor.is_contiguous(), (
            "coefficients are float32, contiguous"
        )
    if begun is not None:
        count = streams * (2 + streams)
        assert norm_D is not None, "where a site begins there is a norm"
        assert begun.fn_CX.shape == (count, streams * hidden) and begun.fn_CX.dtype == torch.float32, (
            f"fn is float32 of {count} outputs and {streams * hidden} inputs"
        )
