"""How many tokens coupled verification gives each sequence, without a way back to the host.

Legend: S sequences · D drafts · T rows of samples.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

BLOCK = 32  # sequences of a program


def accepted_lengths(token_T: Tensor, draft_SD: Tensor, start_X: Tensor) -> Tensor:
    """See `deepinfer.ops.sampling_rows.accepted_lengths`; everything int32."""
    num_sequences, depth = draft_SD.shape
    assert token_T.dtype == draft_SD.dtype == start_X.dtype == torch.int32, "tokens, drafts and starts are int32"
    assert draft_SD.stride(1) == 1 or depth <= 1, "drafts of a sequence are adjacent"
    assert token_T.is_contiguous() and start_X.is_contiguous(), "tokens and starts are contiguous"
    assert len(start_X) == num_sequences + 1, "a start a sequence, and where the last one ends"
    length_S = torch.empty(num_sequences, dtype=torch.int32, device=token_T.device)
    if num_sequences:
        _lengths[(triton.cdiv(num_sequences, BLOCK),)](
            token_T, draft_SD, start_X, length_S, num_sequences, depth, draft_SD.stride(0),
            BLOCK=BLOCK, ROWS=triton.next_power_of_2(depth + 1), num_warps=1, **OVERLAP,
        )  # fmt: skip
    return length_S


@triton.jit(do_not_specialize=["num_sequences"])  # or steps of other sizes would wait for their own compilation
def _lengths(tokens, drafts, starts, lengths, num_sequences, depth, stride, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """A row d that is missing or has failed leaves d tokens, one whose token is not the next draft leaves d + 1."""
    wait_for_earlier_launches()
    s_S = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there_S = s_S < num_sequences
    start_S = tl.load(starts + s_S, mask=there_S, other=0)
    end_S = tl.load(starts + s_S + 1, mask=there_S, other=0)
    d_1D = tl.arange(0, ROWS)[None, :]
    drafted_SD = there_S[:, None] & (d_1D < depth)
    draft_SD = tl.load(drafts + s_S.to(tl.int64)[:, None] * stride + d_1D, mask=drafted_SD, other=-1)
    row_SD = start_S[:, None] + d_1D
    token_SD = tl.load(tokens + row_SD, mask=(row_SD < end_S[:, None]) & (d_1D <= depth), other=-1)
    left_SD = tl.where(token_SD < 0, d_1D, tl.where(token_SD != draft_SD, d_1D + 1, ROWS))
    tl.store(lengths + s_S, tl.min(left_SD, 1), mask=there_S)
