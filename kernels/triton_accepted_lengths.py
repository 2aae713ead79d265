"""How many tokens coupled verification gives each sequence, without a way back to the host.

Legend: S sequences · D drafts · T rows of samples.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # sequences of a program


def accepted_lengths(token_T: Tensor, draft_SD: Tensor, start_X: Tensor) -> Tensor:
    """See `deepinfer.ops.sampling_rows.accepted_lengths`; everything int32."""
    num_sequences, depth = draft_SD.shape
    assert token_T.dtype == draft_SD.dtype == start_X.dtype == torch.int32, "tokens, drafts and starts are int32"
    assert draft_SD.stride(1) == 1 or depth <= 1, "drafts of a sequence are adjacent"
    assert token_T.is_contiguous() and start_X.is_contiguous() and len(start_X) == num_sequences + 1
    length_S = torch.empty(num_sequences, dtype=torch.int32, device=token_T.device)
    if num_sequences:
        _lengths[(triton.cdiv(num_sequences, BLOCK),)](
            token_T, draft_SD, start_X, length_S, num_sequences, depth, draft_SD.stride(0), BLOCK, num_warps=1
        )
    return length_S


@triton.jit
def _lengths(tokens, drafts, starts, lengths, num_sequences, depth, stride, BLOCK: tl.constexpr):
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = s < num_sequences
    start = tl.load(starts + s, mask=there, other=0)
    rows = tl.load(starts + s + 1, mask=there, other=0) - start
    going = there
    length = tl.zeros((BLOCK,), tl.int32)
    for d in range(depth + 1):
        going = going & (d < rows)
        token = tl.load(tokens + start + d, mask=going, other=-1)
        going = going & (token >= 0)
        length += going.to(tl.int32)
        draft = tl.load(drafts + s * stride + d, mask=going & (d + s * 0 < depth), other=-1)
        going = going & (token == draft)
    tl.store(lengths + s, length, mask=there)
