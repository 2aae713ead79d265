"""What a device's sampler found, as the result of a verification: on the host, once it is there.

Shapes: S sequences · D rows of a sequence · T rows · N columns of log probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.interfaces import TokenLogprobs, Verified
from deepinfer.model.fused.glue import to_host

if TYPE_CHECKING:
    from deepinfer.interfaces import VerifyRows
    from deepinfer.ops.sampling_rows import SampledRows


class HostResults(NamedTuple):
    """Of each row."""

    token_T: np.ndarray  # int32; -1 where there is a fault
    fault_T: np.ndarray  # int32
    rank_T: np.ndarray  # int32; this and the next two say nothing where nobody asked
    id_TN: np.ndarray  # int32
    logprob_TN: np.ndarray  # float32


def size_of(num_rows: int, columns: int) -> int:
    """int32 numbers of so many rows' results."""
    return num_rows * (4 + 2 * columns)


def fetch(sampled: SampledRows, into: Tensor | None = None) -> Tensor:
    """int32, on the host as soon as the device's stream is there."""
    return to_host(_in_one_piece(sampled), into)


def _in_one_piece(sampled: SampledRows) -> Tensor:
    """Tokens, faults, numbers of tokens kept, ranks, ids, log probabilities: int32. They may lie that way already."""
    first, (rows, columns) = sampled.token_R, sampled.id_RN.shape
    parts = first, sampled.fault_R, sampled.kept_R, sampled.rank_R, sampled.id_RN, sampled.logprob_RN
    place, number = first.data_ptr(), size_of(rows, columns)
    if first.untyped_storage().nbytes() == 4 * number:
        for part in parts:
            if part.data_ptr() != place and part.numel():
                break
            place += 4 * part.numel()
        else:
            return first.as_strided((number,), (1,))
    return torch.cat([part.view(torch.int32).view(-1) for part in parts])


def split(fetched: Tensor, num_rows: int, columns: int) -> HostResults:
    """The parts of what `fetch` brought, of the first rows."""
    numbers, every = fetched.numpy(), len(fetched) // size_of(1, columns)
    token_T, fault_T, _, rank_T = numbers[: 4 * every].reshape(4, every)[:, :num_rows]
    ids, logprobs = numbers[4 * every :].reshape(2, every, columns)[:, :num_rows]
    return HostResults(token_T, fault_T, rank_T, ids, logprobs.view(np.float32))


class Accepted(NamedTuple):
    """Tokens of sequences, as far as they are the drafts, and one more."""

    token_SD: np.ndarray  # int64; beyond the counts anything
    count_S: np.ndarray  # int64
    failed_S: np.ndarray  # bool: the row behind these tokens gave none


def accepted(token_T: np.ndarray, rows: VerifyRows) -> Accepted:
    """As `CoupledVerifier.verify` takes them. A sequence with fewer masks than rows ends with the last of them."""
    starts, num_rows_S = rows.row_starts[:-1], np.diff(rows.row_starts)
    if rows.masks:
        masked = np.fromiter(rows.masks, np.int64, len(rows.masks))
        num_masks = np.array([len(masks) for masks in rows.masks.values()])
        assert num_masks.all(), f"sequence {masked[num_masks.argmin()]} has a grammar and no mask for its first row"
        num_rows_S[masked] = np.minimum(num_rows_S[masked], num_masks)
    if len(token_T) == len(starts):
        count_S = (token_T >= 0).astype(np.int64)
        return Accepted(token_T.astype(np.int64)[:, None], count_S, count_S == 0)
    depth_D = np.arange(num_rows_S.max(initial=1))
    there_SD = depth_D < num_rows_S[:, None]
    token_SD = np.full(there_SD.shape, -1, np.int64)
    token_SD[there_SD] = token_T[(starts[:, None] + depth_D)[there_SD]]
    reached_SD = there_SD.copy()
    reached_SD[:, 1:] &= token_SD[:, :-1] == rows.drafts[:, : len(depth_D) - 1]
    going_SD = (reached_SD & (token_SD >= 0)).cumprod(axis=1)
    count_S = going_SD.sum(axis=1)
    behind_S = np.minimum(count_S, len(depth_D) - 1)
    numbers_S = np.arange(len(count_S))
    failed_S = (count_S < num_rows_S) & reached_SD[numbers_S, behind_S] & (token_SD[numbers_S, behind_S] < 0)
    return Accepted(token_SD, count_S, failed_S)


def verified(
    found: HostResults, got: Accepted, rows: VerifyRows, num_logprobs_S: np.ndarray, failures: dict[int, str]
) -> Verified:
    """All of it, sequence after sequence."""
    starts_S, token_SD = np.cumsum(got.count_S) - got.count_S, got.token_SD
    logprobs = {}
    if found.id_TN.shape[1]:
        alone = found._replace(id_TN=found.id_TN.astype(np.int64), logprob_TN=found.logprob_TN.copy())
        for r in np.flatnonzero(num_logprobs_S >= 0).tolist():
            row, start, wanted = int(rows.row_starts[r]), int(starts_S[r]), int(num_logprobs_S[r])
            for depth in range(int(got.count_S[r])):
                logprobs[start + depth] = _logprobs(alone, row + depth, wanted)
    return Verified(
        token_ids=token_SD[np.arange(token_SD.shape[1]) < got.count_S[:, None]],
        counts=got.count_S,
        failed=got.failed_S,
        failures=failures,
        logprobs=logprobs,
    )


def _logprobs(found: HostResults, row: int, wanted: int) -> TokenLogprobs:
    """A vocabulary may have fewer tokens than are asked for."""
    num = wanted + 1
    if found.id_TN[row, wanted] < 0:
        num = int((found.id_TN[row] >= 0).sum())
    return TokenLogprobs(found.id_TN[row, :num], found.logprob_TN[row, :num], int(found.rank_T[row]))
