"""The border between two hyper-connection sites in one launch, CUDA C++ for Hopper. Twin: deepinfer/ops/hyper_border.py.

Legend: T rows · N streams · D hidden · C coefficients · X = N · D · U units of 32 columns · P bf16 parts of fn.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from deepinfer.kernels.cuda_program import CudaProgram
from torch import Tensor

from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights

STREAMS, OUTPUTS, PARTS, UNIT = 4, 24, 3, 32
SLICES = 16  # of the columns
WIDE_ROWS, NARROW_ROWS, SUMS = 64, 16, 28  # rows of a tile; places of a row of sums
UNIT_BYTES = STREAMS * PARTS * OUTPUTS * UNIT * 2
NARROW_LIMIT = 128  # most rows for the schedule that spreads few rows over many blocks


class PreparedSite(NamedTuple):
    """A site's weights as the kernel reads them: fn as three bf16 numbers that add up to it, in fragment order."""

    parts: Tensor  # bf16 [U, N, P · C / 8, 32 lanes, 8]
    base_C: Tensor
    scale_3: Tensor


def prepare_hyper_site(site: SiteWeights) -> PreparedSite:
    """Re-lays fn_CX f32 once at load. Lane 4g + q of tile t holds columns 8q to 8q + 7 of output 8t + g, part by part."""
    fn_CX = site.fn_CX
    assert fn_CX.dtype == torch.float32 and fn_CX.shape[0] == OUTPUTS, "fn is f32 of 24 outputs: four streams"
    high = fn_CX.bfloat16()
    middle = (fn_CX - high.float()).bfloat16()
    low = (fn_CX - high.float() - middle.float()).bfloat16()
    by_part = torch.stack((high, middle, low)).view(PARTS * OUTPUTS // 8, 8, STREAMS, -1, 4, 8)  # t, g, n, u, q, column
    parts = by_part.permute(3, 2, 0, 1, 4, 5).reshape(by_part.shape[3], STREAMS, PARTS * OUTPUTS // 8, 32, 8)
    return PreparedSite(parts.contiguous(), site.base_C.float().contiguous(), site.scale_3.float().contiguous())


def hyper_border(
    x_TND: Tensor,
    out_TD: Tensor | None,
    ended: Coefficients,
    begun: PreparedSite | None,
    norm_D: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
    *,
    quantise: bool = True,
    collapsed: bool = False,
    narrow: bool | None = None,
) -> Border:
    """As the twin, in bf16 with f32 coefficients. Launches on one device must follow one another: they share counters.

    Two schedules give the same bits for every row, whatever the other rows; `narrow` chooses one (None: by the number of rows).
    `quantised_TD` and `collapsed_TD` are empty unless asked for; without `begun` the mixed streams are not written either.
    """
    rows, _, hidden = x_TND.shape
    _check(x_TND, out_TD, ended, begun, norm_D)
    new_x_TND = torch.empty_like(x_TND) if out_TD is not None and begun is not None else x_TND
    normed_TD = torch.empty_like(x_TND[:, 0], memory_format=torch.contiguous_format)
    quantised_TD = torch.empty_like(normed_TD) if quantise else normed_TD.new_empty(0, hidden)
    collapsed_TD = torch.empty_like(normed_TD) if collapsed else normed_TD.new_empty(0, hidden)
    coefficients = None
    if begun is not None:
        coefficients = Coefficients(*(torch.empty_like(value) for value in ended))
    border = Border(new_x_TND, collapsed_TD, normed_TD, quantised_TD, coefficients)
    if rows == 0:
        return border
    arguments = (
        *(x_TND, out_TD, *ended),
        *((None, None, None) if begun is None else begun),
        *(norm_D, new_x_TND if new_x_TND is not x_TND else None),
        *(collapsed_TD if collapsed else None, normed_TD, quantised_TD if quantise else None),
        *((None, None, None) if coefficients is None else coefficients),
        *(rows, float(norm_eps), float(eps), int(iterations)),
    )
    _launch(out_TD is not None, begun is not None, rows <= NARROW_LIMIT if narrow is None else narrow, x_TND, arguments)
    return border


def _launch(mix: bool, coefficients: bool, narrow: bool, x_TND: Tensor, arguments: tuple[Any, ...]) -> None:
    rows, _, hidden = x_TND.shape
    wide_launch, narrow_launch = _launches(hidden, mix, coefficients, x_TND.device.index)
    launch, tile, blocks, places = wide_launch, WIDE_ROWS, SLICES, SLICES
    if narrow:
        launch, tile, blocks, places = narrow_launch, NARROW_ROWS, hidden // (2 * UNIT), hidden // UNIT
    tiles = -(-rows // tile)
    meeting = torch.empty(tiles * tile * SUMS * places, device=x_TND.device)  # for the sums of a tile's blocks
    launch((blocks, tiles), *arguments, meeting, _arrivals(x_TND.device, blocks, -(-tiles // 64) * 64))


def _check(
    x_TND: Tensor, out_TD: Tensor | None, ended: Coefficients, begun: PreparedSite | None, norm_D: Tensor
) -> None:
    rows, streams, hidden = x_TND.shape
    assert streams == STREAMS and hidden % 1024 == 0 and hidden <= 5120, (
        "four streams of 1,024 to 5,120 columns, a multiple of 1,024"
    )
    for tensor in (x_TND, norm_D, *(() if out_TD is None else (out_TD,))):
        assert tensor.dtype == torch.bfloat16 and tensor.is_contiguous(), (
            "streams, outputs and norm weights are bf16, contiguous"
        )
        assert tensor.data_ptr() % 16 == 0, "rows begin at multiples of 16 bytes"
    assert norm_D.shape == (hidden,) and (out_TD is None or out_TD.shape == (rows, hidden)), "one row of output per row"
    for tensor, shape in zip(ended, ((rows, 4), (rows, 4, 4), (rows, 4))):
        assert tensor.dtype == torch.float32 and tensor.shape == shape and tensor.is_contiguous(), (
            "coefficients are f32"
        )
    if begun is not None:
        assert begun.parts.nbytes == hidden // UNIT * UNIT_BYTES, "fn was prepared for another width"


@cache
def _launches(hidden: int, mix: bool, coefficients: bool, device: int | None) -> tuple[Any, Any]:
    macros = {"HIDDEN": hidden, "MIX": int(mix), "COEFFICIENTS": int(coefficients)}
    program = CudaProgram("cuda_hyper_border.cu", macros)
    wide_bytes = WIDE_ROWS * (hidden // SLICES * 2 + 2 * 5 * 64) + 3 * UNIT_BYTES // 2  # collapsed, inputs, weights
    wide_bytes += 4 * (WIDE_ROWS + WIDE_ROWS // SLICES * SUMS + 28) + 40  # norms, sums, constants, barriers
    wide = program.kernel("hyper_border_wide", threads=128, shared_bytes=wide_bytes)
    return wide, program.kernel("hyper_border_narrow", threads=256, shared_bytes=2 * UNIT_BYTES)


@cache
def _arrivals(device: torch.device, blocks: int, count: int) -> Tensor:
    """Counters that every launch leaves ready for the next; launches that overlap in time must not share them."""
    return torch.zeros(count, dtype=torch.int32, device=device)
