"""What a whole model does between the fused operations, as plain torch: small, on any device, without waiting for it.

Nothing here looks at a number on the host, and every output's size follows from the inputs' sizes alone.

Legend: T rows · N streams · D hidden · V vocabulary · W window · M rows copied · [A, B, R] a store.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.formats.scales import working_dtype
from deepinfer.ops.hyper_border import Border, Coefficients

ALIGNED = 4  # int32 numbers in 16 bytes


def to_device(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """The arrays as int32 on the device, in one copy; each begins at a multiple of 16 bytes."""
    starts, total = {}, 0
    for name, array in arrays.items():
        starts[name], total = total, total + -(-array.size // ALIGNED) * ALIGNED
    host = torch.empty(total, dtype=torch.int32, pin_memory=device.type == "cuda")
    numbers = host.numpy()
    for name, array in arrays.items():
        numbers[starts[name] : starts[name] + array.size] = array.reshape(-1)
    whole = host.to(device, non_blocking=True)
    return {name: whole[starts[name] :][: array.size].view(array.shape) for name, array in arrays.items()}


def to_host(x: Tensor, into: Tensor | None = None) -> Tensor:
    """A copy in the host's memory, there as soon as the device's stream is; pinned, so that it moves at the bus's speed.

    `into`: where it goes, else new memory."""
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda) if into is None else into
    return host.copy_(x, non_blocking=True)


def embed_streams(embed_VD: Tensor, token_ids_T: Tensor, streams: int) -> Tensor:
    """[T, N, D]: a token's embedding in every stream."""
    return embed_VD.index_select(0, token_ids_T.long()).unsqueeze(1).repeat(1, streams, 1)


def first_coefficients(x_TND: Tensor) -> Coefficients:
    """What the first site reads with: stream 0 alone. Nothing was written yet, so that the other two are never used."""
    rows, streams = x_TND.shape[:2]
    numbers = x_TND.new_zeros(rows * streams * (streams + 2), dtype=working_dtype(x_TND.dtype))
    read, mixing, write = numbers.split([rows * streams, rows * streams * streams, rows * streams])
    read.view(rows, streams)[:, 0] = 1
    return Coefficients(read.view(rows, streams), mixing.view(rows, streams, streams), write.view(rows, streams))


def border_rows(border: Border, rows_T: Tensor) -> Border:
    """Some rows of a border at which a site begins."""
    assert border.coefficients is not None
    coefficients = Coefficients(*(part[rows_T] for part in border.coefficients))
    streams, normed, quantised = (part[rows_T] for part in (border.x_TND, border.normed_TD, border.quantised_TD))
    return Border(streams, normed[:0], normed, quantised, coefficients)


def spread_rows(x_TD: Tensor, rows_T: Tensor | None, total: int) -> Tensor:
    """[total, D]: row i of x at `rows_T`[i], zeros elsewhere. Without `rows_T` x is all rows already."""
    if rows_T is None:
        return x_TD
    return x_TD.new_zeros(total, x_TD.shape[1]).index_copy_(0, rows_T.long(), x_TD)


def window_rows(
    positions_T: Tensor,
    floor_T: Tensor,
    ring_T: Tensor,
    place_T: Tensor,
    window: int,
    ring_slots: int,
    first_T: Tensor | None = None,
) -> Tensor:
    """Row numbers int32 [T, W] of a row's window keys by position, -1 before its floor.

    In the ring whose first row is `ring_T`; where `place_T` is not negative in a row of that number instead, and older ones
    right before it, back to position `first_T` (None: all of them).
    """
    back_W = torch.arange(window - 1, -1, -1, dtype=torch.int32, device=positions_T.device)
    wanted_TW = positions_T.unsqueeze(1) - back_W
    in_ring_TW = ring_T.unsqueeze(1) + wanted_TW % ring_slots
    beside_TW = (place_T >= 0).unsqueeze(1)
    if first_T is not None:
        beside_TW = beside_TW & (wanted_TW >= first_T.unsqueeze(1))
    rows_TW = torch.where(beside_TW, place_T.unsqueeze(1) - back_W, in_ring_TW)
    return torch.where(wanted_TW >= floor_T.unsqueeze(1), rows_TW, -1)


def copy_rows(from_ABR: Tensor, from_M: Tensor, to_ABR: Tensor, to_M: Tensor) -> None:
    """Copy stored rows as they are, row number `from_M`[i] of one store to `to_M`[i] of another. No two share a target."""
    source, target = from_ABR.shape[1], to_ABR.shape[1]
    to_ABR[to_M // target, to_M % target] = from_ABR[from_M // source, from_M % source]


def border_constants(config: V41Config) -> tuple[float, float, int]:
    """What every border takes behind its weights: the norm's epsilon, the mixing's, and its iterations."""
    return config.rms_norm_eps, config.hc_eps, config.hc_sinkhorn_iters
