"""The sampler on a GPU: logits [R, V] are read from device memory once, whatever the rows ask for.

A cluster of eight blocks keeps a row in its shared memory; see cuda_sample_rows.cu. Every row's bits depend on that row alone.
"""

import ctypes
from dataclasses import fields
from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of
from torch import Tensor

from deepinfer.ops.sampling_rows import SampledRows, SamplingRows

THREADS, RESIDENT = 256, 3  # of a block; blocks on one multiprocessor
BLOCKS = 8  # a row's
MAX_VOCABULARY = 1 << 17
_STATE_BYTES = 12032  # of shared memory, beside the logits; the source asserts that it suffices
WIDE = ("seed_R", "position_R")  # int64
FINE = ("temperature_R", "top_p_R", "min_p_R", "repetition_R", "frequency_R", "presence_R", "edit_biases_E")  # float64
_FIELDS = tuple(  # name, dtype, whether it has a number for every row
    (name, torch.int64 if name in WIDE else torch.float64 if name in FINE else torch.int32, name.endswith("_R"))
    for name in (field.name for field in fields(SamplingRows))
)


def sample_rows(
    logits_RV: Tensor,
    rows: SamplingRows,
    *,
    stream: int = 0,
    columns: int = 0,
    chosen_R: Tensor | None = None,
    kept_XV: Tensor | None = None,
    kept_row_R: Tensor | None = None,
) -> SampledRows:
    """`deepinfer.ops.sampling_rows.sample_rows`, edited logits rounded to float32. float32 or bfloat16 logits.

    Tokens are compared in float64: they are the twin's. Filters see float32 logits: top-k and min-p keep what the twin keeps,
    top-p may differ by tokens before which the running weight is within 2^-15 of the total of p.
    """
    num_rows, vocabulary = logits_RV.shape
    assert logits_RV.dtype in (torch.float32, torch.bfloat16), "logits are float32 or bfloat16"
    assert logits_RV.stride(1) == 1 and logits_RV.data_ptr() % 16 == 0, (
        "rows of logits are contiguous and aligned to 16 bytes"
    )
    assert logits_RV.stride(0) * logits_RV.itemsize % 16 == 0, "rows of logits begin at multiples of 16 bytes"
    assert vocabulary % 32 == 0 and 2048 <= vocabulary <= MAX_VOCABULARY, (
        "a vocabulary of 2,048 to 131,072, a multiple of 32"
    )
    assert 0 <= columns <= 129, "at most 128 log probabilities beside the chosen token's"
    assert rows.masks_MW.shape[1] == vocabulary // 32, "a mask has a bit for every token"
    _check_rows(num_rows, rows)
    _check_kept(num_rows, vocabulary, kept_XV, chosen_R, kept_row_R)
    out = _result(num_rows, columns, logits_RV.device)
    if num_rows:
        shared_bytes = _STATE_BYTES + -(-vocabulary // (8 * BLOCKS)) * 8 * 4
        _kernel(device_of(logits_RV), logits_RV.dtype == torch.bfloat16, shared_bytes)(
            (BLOCKS * num_rows,), logits_RV, logits_RV.stride(0) * logits_RV.itemsize, vocabulary, stream,
            rows.seed_R, rows.position_R, rows.temperature_R, rows.top_p_R, rows.min_p_R, rows.repetition_R,
            rows.frequency_R, rows.presence_R, rows.top_k_R, rows.num_logprobs_R, rows.processed_R, rows.mask_row_R,
            rows.masks_MW, rows.edit_starts_X, rows.edit_ids_E, rows.edit_biases_E, rows.edit_counts_E, columns,
            chosen_R, kept_XV, kept_row_R, *out,
        )  # fmt: skip
    return out


def _check_rows(num_rows: int, rows: SamplingRows) -> None:
    for name, dtype, each_row in _FIELDS:
        tensor = getattr(rows, name)
        assert tensor.dtype == dtype and tensor.is_contiguous(), f"{name} is contiguous {dtype}"
        assert not each_row or tensor.shape[0] == num_rows, f"{name} has a number for every row"
    assert rows.edit_starts_X.shape[0] == num_rows + 1, "edit_starts_X has a number for every row and the end"


def _check_kept(num_rows: int, vocabulary: int, kept_XV: Tensor | None, *whole: Tensor | None) -> None:
    for one in whole:
        fine = one is None or (one.dtype == torch.int32 and one.is_contiguous() and one.shape == (num_rows,))
        assert fine, "chosen tokens and numbers of kept rows are contiguous int32, one a row"
    if kept_XV is not None:
        assert kept_XV.dtype == torch.float32 and kept_XV.is_contiguous(), "kept logits are contiguous float32"
        assert kept_XV.shape[1] == vocabulary, "kept logits have the rows' vocabulary"


def noise_bits(seed: int, position: int, stream: int, first: int, count: int, device: torch.device | str) -> Tensor:
    """int64 [count]: the 52 bits of noise of tokens `first` … at a sequence's position."""
    bits = torch.empty(count, dtype=torch.int64, device=device)
    wide = (ctypes.c_uint64(seed), ctypes.c_uint64(position))
    _program(False).kernel("draw_noise", threads=256)((132,), *wide, stream, first, count, bits)
    return bits


def _result(num_rows: int, columns: int, device: torch.device) -> SampledRows:
    """One piece of memory."""
    wide = num_rows * columns
    numbers = torch.empty(4 * num_rows + 2 * wide, dtype=torch.int32, device=device)
    *ints, ids, logprobs = numbers.split([num_rows] * 4 + [wide] * 2)
    shape = num_rows, columns
    return SampledRows(*ints[:3], ids.view(shape), logprobs.view(torch.float32).view(shape), ints[3])


@cache
def _program(bfloat16: bool) -> CudaProgram:
    macros = {"THREADS": THREADS, "RESIDENT": RESIDENT, "STATE_BYTES": _STATE_BYTES, "BF16": int(bfloat16)}
    return CudaProgram("cuda_sample_rows.cu", macros)


@cache
def _kernel(device: int, bfloat16: bool, shared_bytes: int) -> Launch:
    program = _program(bfloat16)
    return program.kernel("sample_rows", threads=THREADS, shared_bytes=shared_bytes, cluster=(BLOCKS, 1, 1))
