"""The Markov and confidence step of a block of drafts on a GPU: the bias weights are read once for all sequences.

Legend: B sequences · V vocabulary · R = 256 rank · D hidden · X = D + R.
"""

from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from torch import Tensor

from deepinfer.ops.markov import MarkovStep

THREADS = 512 + 128  # consumers and producers
MAX_ROWS = 256  # of a launch
RANK, TILE = 256, 32  # tokens
_SHARED_BYTES = 226 << 10  # of a multiprocessor, for one block
_STATE_BYTES = 11 << 10  # of them before the stages; the source asserts that it suffices
_MOST_STAGES = 8


class MarkovWork:
    """Eight bytes for each sequence and a counter, zero between launches. One for each stream that steps at a time."""

    def __init__(self, device: torch.device | str) -> None:
        self.best_B = torch.zeros(MAX_ROWS, dtype=torch.int64, device=device)
        self.finished = torch.zeros(1, dtype=torch.int32, device=device)


def markov_step(
    base_BV: Tensor,
    head_VR: Tensor,
    embed_VR: Tensor,
    previous_B: Tensor,
    hidden_BD: Tensor,
    projection_X: Tensor,
    seed_B: Tensor,
    position_B: Tensor,
    temperature_B: Tensor,
    *,
    work: MarkovWork,
    ahead: int = 0,
    stream: int = 0,
    out: MarkovStep | None = None,
) -> MarkovStep:
    """See `deepinfer.ops.markov.markov_step`. Base logits float32 or bfloat16; weights and hidden states bfloat16.

    Scores are float32: a token differs from the twin's only where another is within a few units in the last place. `base_BV`,
    `hidden_BD`, `previous_B` and `out` may be slices of tensors that hold all slots.
    """
    num_rows, vocabulary = base_BV.shape
    _check(base_BV, head_VR, embed_VR, hidden_BD, projection_X)
    _check_rows(num_rows, hidden_BD.shape[1], previous_B, projection_X, seed_B, position_B, temperature_B)
    if out is None:
        out = MarkovStep(previous_B.new_empty(num_rows), temperature_B.new_empty(num_rows, dtype=torch.float32))
    for at in (slice(first, first + MAX_ROWS) for first in range(0, num_rows, MAX_ROWS)):
        base, previous, hidden = base_BV[at], previous_B[at], hidden_BD[at]
        rows, (token, evidence) = len(base), (x[at] for x in out)
        row_blocks = 1 if rows <= 64 else 2 if rows <= 128 else 4
        kernel = _kernel(device_of(base), base.dtype == torch.bfloat16, row_blocks)
        kernel(
            (num_multiprocessors(device_of(base)),), base, base.stride(0), head_VR, embed_VR, previous, previous.stride(0),
            hidden, hidden.stride(0), hidden.shape[1], projection_X, seed_B[at], position_B[at], ahead, temperature_B[at],
            stream, rows, vocabulary, work.best_B, work.finished, token, token.stride(0), evidence, evidence.stride(0),
        )  # fmt: skip
    return out


def _check(base_BV: Tensor, head_VR: Tensor, embed_VR: Tensor, hidden_BD: Tensor, projection_X: Tensor) -> None:
    num_rows, vocabulary = base_BV.shape
    assert base_BV.dtype in (torch.float32, torch.bfloat16), "base logits are float32 or bfloat16"
    assert head_VR.shape == embed_VR.shape == (vocabulary, RANK), "the bias has rank 256"
    assert all(x.dtype == torch.bfloat16 for x in (head_VR, embed_VR, hidden_BD, projection_X)), "weights are bfloat16"
    assert head_VR.is_contiguous() and embed_VR.is_contiguous(), "weights are contiguous"
    assert vocabulary % TILE == 0 and vocabulary <= 1 << 17, "a vocabulary of at most 131,072, a multiple of 32"
    assert base_BV.stride(1) == hidden_BD.stride(1) == 1, "rows are contiguous"
    assert base_BV.stride(0) % 8 == hidden_BD.stride(0) % 8 == hidden_BD.shape[1] % 8 == 0, (
        "rows are multiples of 16 bytes"
    )
    assert all(x.data_ptr() % 16 == 0 for x in (base_BV, head_VR, embed_VR, hidden_BD, projection_X)), (
        "tensors are aligned to 16 bytes"
    )
    assert len(hidden_BD) == num_rows, (
        f"markov_step was given {num_rows} rows of logits and {len(hidden_BD)} hidden states: one a row"
    )


def _check_rows(
    num_rows: int,
    hidden: int,
    previous_B: Tensor,
    projection_X: Tensor,
    seed_B: Tensor,
    position_B: Tensor,
    temperature_B: Tensor,
) -> None:
    assert previous_B.dtype == torch.int32 and temperature_B.dtype == torch.float64, (
        "tokens int32, temperatures float64"
    )
    assert seed_B.dtype == position_B.dtype == torch.int64, "seeds and positions int64"
    assert all(len(x) == num_rows for x in (previous_B, seed_B, position_B, temperature_B)), "one of each a row"
    assert all(x.is_contiguous() for x in (seed_B, position_B, temperature_B, projection_X)), "they are contiguous"
    assert projection_X.numel() == hidden + RANK, "the projection reads the hidden state and the token's embedding"


@cache
def _kernel(device: int, bfloat16: bool, row_blocks: int) -> Launch:
    stage_bytes = TILE * (RANK * 2 + 64 * row_blocks * (2 if bfloat16 else 4))
    stages = min(_MOST_STAGES, (_SHARED_BYTES - _STATE_BYTES) // stage_bytes)
    macros = {"ROW_BLOCKS": row_blocks, "STAGES": stages, "STATE_BYTES": _STATE_BYTES, "BF16": int(bfloat16)}
    program = CudaProgram("cuda_markov_step.cu", macros)
    return program.kernel("markov_step", threads=THREADS, shared_bytes=_STATE_BYTES + stages * stage_bytes)
