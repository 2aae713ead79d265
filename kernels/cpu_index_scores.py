"""Index scores of every visible entry, keys unpacked on the way. float32, bit-equal to the torch twin.

Keys are laid out dim by dim, so that the loop over entries is the vector loop and each score keeps the twin's order of sums.
"""

import numba
import numpy as np
import torch
from deepinfer.kernels.cpu_fp4_rows import INDEX_GROUP
from deepinfer.kernels.cpu_fp8_rows import POWERS
from deepinfer.kernels.cpu_read_rows import PAIRS, flattened, unpack_fp4
from torch import Tensor

TILE = 64  # entries at a time: their keys stay in the first-level cache
ZERO = np.float32(0)
LOWEST = np.float32(-np.inf)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _load(flat, strides, per_block, packed, table, first, count, pairs, powers, row, keys):  # type: ignore[no-untyped-def]
    """Keys of entries first … first + count - 1 into keys[dim, entry]."""
    for j in range(count):
        block, inner = table[(first + j) // per_block], (first + j) % per_block
        start = strides[0] + block * strides[1] + inner * strides[2]
        if packed:
            unpack_fp4(flat, start, INDEX_GROUP, pairs, powers, row)
        else:
            for k in range(len(row)):
                row[k] = flat.view(np.float32)[start + k]
        for k in range(len(row)):
            keys[k, j] = row[k]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _score(q, weight, keys, dots, out):  # type: ignore[no-untyped-def]
    """Scores of a whole tile; what lies beyond its last key is computed from stale keys and not looked at."""
    for head in range(q.shape[0]):
        for j in range(TILE):
            dots[j] = ZERO
        for k in range(q.shape[1]):
            factor = q[head, k]
            for j in range(TILE):
                dots[j] += factor * keys[k, j]
        factor = weight[head]
        for j in range(TILE):
            part = (ZERO if dots[j] < ZERO else dots[j]) * factor
            out[j] = part if head == 0 else out[j] + part


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _scores(q, weight, flat, strides, per_block, packed, tables, sequence, visible, pairs, powers, out):  # type: ignore[no-untyped-def]
    width = q.shape[2]
    row, dots, found = np.empty(width, np.float32), np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    keys = np.zeros((width, TILE), np.float32)
    rows, begin = q.shape[0], 0
    while begin < rows:
        end, longest = begin, 0
        while end < rows and sequence[end] == sequence[begin]:
            longest = max(longest, visible[end])
            for j in range(visible[end], out.shape[1]):
                out[end, j] = LOWEST
            end += 1
        for first in range(0, longest, TILE):
            table, count = tables[sequence[begin]], min(TILE, longest - first)
            _load(flat, strides, per_block, packed, table, first, count, pairs, powers, row, keys)
            for t in range(begin, end):
                count = min(TILE, visible[t] - first)
                if count > 0:
                    _score(q[t], weight[t], keys, dots, found)
                    for j in range(count):
                        out[t, first + j] = found[j]
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
    assert q_TIK.dtype == weight_TI.dtype == torch.float32
    flat, strides = flattened(store_ABR)
    scores_TJ = torch.empty(q_TIK.shape[0], int(visible_T.max()))
    _scores(
        q_TIK.contiguous().numpy(),
        weight_TI.contiguous().numpy(),
        flat.view(np.uint8),
        strides,
        store_ABR.shape[1],
        kind == "index",
        tables_SB.numpy(),
        sequence_T.numpy(),
        visible_T.numpy(),
        PAIRS,
        POWERS,
        scores_TJ.numpy(),
    )
    return scores_TJ
