"""The border between two hyper-connection sites in one launch, CUDA C++ for Hopper. Twin: deepinfer/ops/hyper_border.py.

Legend: T rows · N streams · D hidden · C coefficients · X = N · D · U units of 32 columns · P bf16 parts of fn.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from deepinfer.kernels.cuda_program import CudaProgram, device_of, num_multiprocessors
from deepinfer.kernels.tensor_map import box_map
from torch import Tensor

from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights

STREAMS, OUTPUTS, PARTS, UNIT = 4, 24, 3, 32
BAND = 16  # rows of a product
UNIT_BYTES = STREAMS * PARTS * OUTPUTS * UNIT * 2
SUMS = 28  # places of a row of sums
NARROW_LIMIT = 32  # most rows of the schedule that spreads few rows over many blocks: all its blocks fit at once
FEW_ROWS = 8  # most rows for which it is the faster one
GROUPS, SLOTS = 32, 12  # of the wide schedule: groups of columns, bands whose sums are kept
SLOT_FLOATS = BAND * GROUPS * (SUMS + 1)
WIDE_SHARED_BYTES = 227 << 10  # all that a block can have
ARRIVALS = NARROW_LIMIT // BAND + SLOTS * 8  # of the narrow schedule, then of the wide one


class PreparedSite(NamedTuple):
    """A site's weights as the kernel reads them: fn as three bf16 numbers that add up to it, in fragment order.

    `arrivals` are the counters by which the blocks of a launch wait for one another. Every launch leaves them ready for the
    next, so launches of one site must follow one another; launches of different sites may overlap.
    """

    parts: Tensor  # bf16 [U, N, P · C / 8, 32 lanes, 8]
    base_C: Tensor
    scale_3: Tensor
    arrivals: Tensor


def prepare_hyper_site(site: SiteWeights) -> PreparedSite:
    """Re-lays fn_CX f32 once at load. Lane 4g + q of tile t holds columns 8q to 8q + 7 of output 8t + g, part by part."""
    fn_CX = site.fn_CX
    assert fn_CX.dtype == torch.float32 and fn_CX.shape[0] == OUTPUTS, "fn is f32 of 24 outputs: four streams"
    assert site.base_C.shape == (OUTPUTS,) and site.scale_3.shape == (3,), "24 bases and three scales"
    high = fn_CX.bfloat16()
    middle = (fn_CX - high.float()).bfloat16()
    low = (fn_CX - high.float() - middle.float()).bfloat16()
    by_part = torch.stack((high, middle, low)).view(PARTS * OUTPUTS // 8, 8, STREAMS, -1, 4, 8)  # t, g, n, u, q, column
    parts = by_part.permute(3, 2, 0, 1, 4, 5).reshape(by_part.shape[3], STREAMS, PARTS * OUTPUTS // 8, 32, 8)
    base_C, scale_3 = site.base_C.float().contiguous(), site.scale_3.float().contiguous()
    arrivals = torch.zeros(ARRIVALS, dtype=torch.int32, device=fn_CX.device)
    return PreparedSite(parts.contiguous(), base_C, scale_3, arrivals)


def hyper_border(
    x_TND: Tensor,
    out_TD: Tensor | None,
    ended: Coefficients,
    begun: PreparedSite | None,
    norm_D: Tensor | None,
    norm_eps: float,
    eps: float,
    iterations: int,
    *,
    quantise: bool = True,
    collapsed: bool = False,
    narrow: bool | None = None,
) -> Border:
    """As the twin, in bf16 with f32 coefficients. Launches of one site must follow one another: they share its counters.

    Two schedules give the same bits for every row, whatever the other rows; `narrow` chooses one (None: by the number of rows).
    `quantised_TD` and `collapsed_TD` are empty unless asked for.
    """
    rows, _, hidden = x_TND.shape
    _check(x_TND, out_TD, ended, begun, norm_D)
    new_x_TND = x_TND if out_TD is None else torch.empty_like(x_TND)
    coefficients = None if begun is None else Coefficients(*map(torch.empty_like, ended))
    border = Border(new_x_TND, *_rows_to_fill(x_TND, norm_D is not None, collapsed, quantise), coefficients)
    if rows == 0 or (out_TD is None and norm_D is None):
        return border
    arguments = (
        *(x_TND, out_TD, *ended),
        *((None, None, None) if begun is None else begun[:3]),
        *(norm_D, None if out_TD is None else new_x_TND),
        *(value if value.numel() else None for value in border[1:4]),
        *((None, None, None) if coefficients is None else coefficients),
        *(rows, float(norm_eps), float(eps), int(iterations)),
    )
    launches = _launches(hidden, out_TD is not None, device_of(x_TND))
    if begun is None:
        launches.end((rows,), *arguments)
    elif rows <= FEW_ROWS if narrow is None else narrow:
        assert rows <= NARROW_LIMIT, f"the narrow schedule takes up to {NARROW_LIMIT} rows"
        _launch_narrow(launches.narrow, rows, hidden, arguments, begun.arrivals)
    else:
        _launch_wide(launches.wide, (x_TND, x_TND if out_TD is None else out_TD), arguments, begun.arrivals)
    return border


def _rows_to_fill(x_TND: Tensor, normed: bool, collapsed: bool, quantised: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Collapsed, normed and quantised rows, empty where they are not wanted."""
    empty_TD, like_TD = x_TND.new_empty(0, x_TND.shape[2]), x_TND[:, 0]

    def rows(wanted: bool) -> Tensor:
        return torch.empty_like(like_TD, memory_format=torch.contiguous_format) if wanted else empty_TD

    return rows(normed and collapsed), rows(normed), rows(normed and quantised)


def _launch_narrow(launch: Any, rows: int, hidden: int, arguments: tuple[Any, ...], arrivals: Tensor) -> None:
    bands, units = -(-rows // BAND), hidden // UNIT
    meeting = torch.empty(bands * BAND * SUMS * units, device=arrivals.device)  # for the sums of a band's blocks
    launch((units // 2, bands), *arguments, meeting, arrivals)


def _launch_wide(launch: Any, boxed: tuple[Tensor, ...], arguments: tuple[Any, ...], arrivals: Tensor) -> None:
    """A block a multiprocessor: as many bands at a time as have room for all groups of columns."""
    rows, columns = boxed[0].shape[0], boxed[0].shape[2] // GROUPS
    at_once = num_multiprocessors(device_of(arrivals)) // GROUPS
    bands = min(-(-rows // BAND), at_once)
    meeting = torch.empty(bands * SLOTS * SLOT_FLOATS, device=arrivals.device)
    maps = (box_map(value.flatten(1), BAND, columns) for value in boxed)
    launch((GROUPS, bands), *arguments, meeting, arrivals[NARROW_LIMIT // BAND :], *maps)


def _check(
    x_TND: Tensor, out_TD: Tensor | None, ended: Coefficients, begun: PreparedSite | None, norm_D: Tensor | None
) -> None:
    rows, streams, hidden = x_TND.shape
    assert streams == STREAMS and hidden % 1024 == 0 and hidden <= 5120, (
        "four streams of 1,024 to 5,120 columns, a multiple of 1,024"
    )
    for tensor in (tensor for tensor in (x_TND, out_TD, norm_D) if tensor is not None):
        assert tensor.dtype == torch.bfloat16 and tensor.is_contiguous(), (
            "streams, outputs and norm weights are bf16, contiguous"
        )
        assert tensor.data_ptr() % 16 == 0, "rows begin at multiples of 16 bytes"
    assert norm_D is None or norm_D.shape == (hidden,), "the norm has a weight for every column"
    assert out_TD is None or out_TD.shape == (rows, hidden), "one row of output per row"
    for tensor, shape in zip(ended, ((rows, 4), (rows, 4, 4), (rows, 4))):
        assert tensor.dtype == torch.float32 and tensor.shape == shape and tensor.is_contiguous(), (
            "coefficients are f32"
        )
        assert tensor.data_ptr() % 16 == 0, "coefficients begin at multiples of 16 bytes"
    if begun is not None:
        assert isinstance(begun, PreparedSite), "a site's weights go through prepare_hyper_site once, at load"
        assert norm_D is not None, "where a site begins there is a norm"
        assert begun.parts.nbytes == hidden // UNIT * UNIT_BYTES, "fn was prepared for another width"


class _Launches(NamedTuple):
    wide: Any
    narrow: Any
    end: Any


@cache
def _launches(hidden: int, mix: bool, device: int) -> _Launches:
    macros = {"HIDDEN": hidden, "MIX": int(mix), "WIDE_SHARED_BYTES": WIDE_SHARED_BYTES}
    program = CudaProgram("cuda_hyper_border.cu", macros)
    wide_threads = 32 * (2 * (hidden // UNIT // GROUPS) + 6)  # those that mix, and six others
    return _Launches(
        program.kernel(
            "hyper_border_wide", threads=wide_threads, shared_bytes=WIDE_SHARED_BYTES, overlap=True, cooperative=True
        ),
        program.kernel("hyper_border_narrow", threads=256, shared_bytes=2 * UNIT_BYTES, overlap=True, cooperative=True),
        program.kernel("hyper_border_end", threads=hidden // 8, overlap=True),
    )
