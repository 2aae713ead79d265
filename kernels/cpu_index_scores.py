"""Index scores of every visible entry, keys unpacked on the way. float32, bit-equal to the torch twin.

Keys are laid out dim by dim, so that the loop over entries is the vector loop and each score keeps the twin's order of sums.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels.cpu_fp4_rows import INDEX_GROUP
from deepinfer.kernels.cpu_fp8_rows import POWERS
from deepinfer.kernels.cpu_read_rows import BOTH, unpack_fp4

TILE = 128  # entries at a time: their keys stay in the second-level cache
ZERO = np.float32(0)
LOWEST = np.float32(-np.inf)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _load(store, packed, table, first, count, both, powers, row, keys):  # type: ignore[no-untyped-def]
    """Keys of entries first … first + count - 1 into keys[dim, entry]."""
    per_block = store.shape[1]
    for j in range(count):
        place = store[table[(first + j) // per_block], (first + j) % per_block]
        if packed:
            unpack_fp4(place, INDEX_GROUP, both, powers, row)
        else:
            numbers = place.view(np.float32)
            for k in range(len(row)):
                row[k] = numbers[k]
        for k in range(len(row)):
            keys[k, j] = row[k]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _score(q, weight, keys, count, dots, out):  # type: ignore[no-untyped-def]
    for head in range(q.shape[0]):
        for j in range(count):
            dots[j] = ZERO
        for k in range(q.shape[1]):
            factor = q[head, k]
            for j in range(count):
                dots[j] += factor * keys[k, j]
        factor = weight[head]
        if head == 0:
            for j in range(count):
                out[j] = (ZERO if dots[j] < ZERO else dots[j]) * factor
        else:
            for j in range(count):
                out[j] += (ZERO if dots[j] < ZERO else dots[j]) * factor


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _scores(q, weight, store, packed, tables, sequence, visible, both, powers, out):  # type: ignore[no-untyped-def]
    width = q.shape[2]
    row, dots = np.empty(width, np.float32), np.empty(TILE, np.float32)
    keys = np.empty((width, TILE), np.float32)
    rows, begin = q.shape[0], 0
    while begin < rows:
        end, longest = begin, 0
        while end < rows and sequence[end] == sequence[begin]:
            longest = max(longest, visible[end])
            for j in range(visible[end], out.shape[1]):
                out[end, j] = LOWEST
            end += 1
        for first in range(0, longest, TILE):
            _load(store, packed, tables[sequence[begin]], first, min(TILE, longest - first), both, powers, row, keys)
            for t in range(begin, end):
                count = min(TILE, visible[t] - first)
                if count > 0:
                    _score(q[t], weight[t], keys, count, dots, out[t, first:])
        begin = end


def index_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    kind: str,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
) -> Tensor:
    """[T, J]; see the twin. float32, rows of a sequence adjacent, `kind` "index" or "plain"."""
    assert q_TIK.dtype == weight_TI.dtype == torch.float32 and store_ABR.stride(2) == 1
    store = store_ABR if kind == "index" else store_ABR.view(torch.uint8)
    scores_TJ = torch.empty(len(q_TIK), int(visible_T.max()))
    _scores(
        q_TIK.contiguous().numpy(),
        weight_TI.contiguous().numpy(),
        store.numpy(),
        kind == "index",
        tables_SB.numpy(),
        sequence_T.numpy(),
        visible_T.numpy(),
        BOTH,
        POWERS,
        scores_TJ.numpy(),
    )
    return scores_TJ
