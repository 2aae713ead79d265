"""What a step leaves in what is known of its sequences: new tokens at their ends, drafts behind those.

Legend: S, R sequences · T tokens · X starts · K drafts · M tokens of a sequence at most.
"""

import torch
from torch import Tensor

from deepinfer.ops.decode_rows import SequenceTensors, put_behind


def append_tokens(
    sequences: SequenceTensors, pad: int, slots_R: Tensor, token_T: Tensor, starts_X: Tensor, counts_R: Tensor
) -> None:
    """`counts_R` (0 … K + 1) tokens from `token_T`[`starts_X`[r]] on go to the end of each sequence; its drafts are gone.

    X is R or R + 1. Sequences differ, but for one that gets no tokens.
    """
    slots_R = slots_R.long()
    ahead_M = torch.arange(sequences.drafts_NK.shape[1] + 1, device=slots_R.device)
    from_RM = (starts_X[: len(slots_R)].unsqueeze(1) + ahead_M).clamp(max=len(token_T) - 1)
    put_behind(sequences, pad, slots_R, token_T[from_RM], counts_R)
    sequences.num_tokens_N.index_add_(0, slots_R, counts_R.to(torch.int32))
    sequences.drafts_NK.index_fill_(0, slots_R, -1)


def keep_drafts(sequences: SequenceTensors, slots_S: Tensor, tokens_SK: Tensor, confidence_SK: Tensor) -> None:
    """What the next step may check. Sequences differ, but for those that are given the same."""
    slots_S = slots_S.long()
    sequences.drafts_NK[slots_S] = tokens_SK.to(torch.int32)
    sequences.confidence_NK[slots_S] = confidence_SK.to(torch.float32)
