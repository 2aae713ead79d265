"""The Markov and confidence step for a bias of any rank: products of `general_linear`, and the sampler of logits.

The draws are the sampler's: float64 scores and the noise of (seed, position, token id, stream).

Legend: B sequences · V vocabulary · R rank of the bias · D hidden · X = D + R.
"""

import torch
from deepinfer.kernels.cuda_sample_rows import sample_rows
from deepinfer.kernels.general_linear import bf16_linear
from torch import Tensor

from deepinfer.ops.markov import MarkovStep
from deepinfer.ops.sampling_rows import SamplingRows

MAX_ROWS = 1024  # of a launch


class MarkovWork:
    """What a sampler wants to be told that a draft never asks for: no filters, no penalties, no masks."""

    def __init__(self, device: torch.device | str) -> None:
        def whole(value: int, size: int = MAX_ROWS) -> Tensor:
            return torch.full((size,), value, dtype=torch.int32, device=device)

        def fine(value: float, size: int = MAX_ROWS) -> Tensor:
            return torch.full((size,), value, dtype=torch.float64, device=device)

        self.off = {
            "top_p_R": fine(1), "min_p_R": fine(0), "repetition_R": fine(1), "frequency_R": fine(0), "presence_R": fine(0),
            "top_k_R": whole(0), "num_logprobs_R": whole(-1), "processed_R": whole(0), "mask_row_R": whole(-1),
        }  # fmt: skip
        self.edit_starts_X = whole(0, MAX_ROWS + 1)
        self.edits = {"edit_ids_E": whole(0, 0), "edit_biases_E": fine(0, 0), "edit_counts_E": whole(0, 0)}

    def rows(self, vocabulary: int, seed_R: Tensor, position_R: Tensor, temperature_R: Tensor) -> SamplingRows:
        """Draws by seed, position and temperature alone."""
        rows = len(seed_R)
        assert rows <= MAX_ROWS, f"markov_step was given {rows} sequences; it takes {MAX_ROWS} at a time"
        return SamplingRows(
            seed_R=seed_R, position_R=position_R, temperature_R=temperature_R,
            **{name: value[:rows] for name, value in self.off.items()},
            masks_MW=self.edit_starts_X.new_empty(0, vocabulary // 32), edit_starts_X=self.edit_starts_X[: rows + 1],
            **self.edits,
        )  # fmt: skip


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
    """See `deepinfer.ops.markov.markov_step`. Base logits float32 or bfloat16; weights and hidden states bfloat16."""
    embed_BR = embed_VR[previous_B.clamp(min=0)]
    logits_BV = base_BV.float() + bf16_linear(embed_BR, head_VR, torch.float32)
    rows = work.rows(logits_BV.shape[1], seed_B, position_B + ahead, temperature_B)
    token_B = sample_rows(logits_BV, rows, stream=stream).token_R
    token_B = torch.where(previous_B < 0, -1, token_B)
    evidence_B1 = bf16_linear(torch.cat((hidden_BD, embed_BR), 1), projection_X.unsqueeze(0), torch.float32)
    step = MarkovStep(token_B, evidence_B1.squeeze(1))
    return step if out is None else MarkovStep(*(kept.copy_(new) for kept, new in zip(out, step)))
