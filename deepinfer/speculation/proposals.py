"""Drafts for rejection sampling on a device: drawn with noise of their own, and what they were drawn from is kept.

They are drawn as the target's tokens are, by temperature and filters. Penalties and grammars, which hang on tokens that the
host does not know yet, are left out: any proposal is right, and a worse one only costs acceptance.

Legend: S sequences · Q slots of a block · D hidden · K drafts · V vocabulary · M rows, K a slot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.model.fused.dspark import Block, FusedDSpark
from deepinfer.ops.markov import MarkovStep
from deepinfer.ops.sampling_rows import SamplingRows

DRAFT, STREAM_BITS = 1, 2  # of noise, see `deepinfer.sampling.philox`


@dataclass(frozen=True)
class Proposals:
    """`kept_MV`: row slot · K + k holds the logits that draft k of a slot was drawn from, -inf where filters leave nothing.

    `filters` says of slots [S] how they are served: top-p and min-p float64, top-k whole numbers.
    """

    kept_MV: Tensor
    filters: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


class Served(NamedTuple):
    """How the sequences of a round are served, on the device."""

    slots_S: Tensor  # int64
    seeds_S: Tensor  # int64
    position_S: Tensor  # int64; of the newest token
    temperature_S: Tensor  # float64, like the next two
    top_p_S: Tensor
    min_p_S: Tensor
    top_k_S: Tensor  # int32

    def rows(self, ahead: int, masks_MW: Tensor) -> SamplingRows:
        """What is asked of the draft `ahead` positions on; `masks_MW`: none."""
        ones, zeros = torch.ones_like(self.temperature_S), torch.zeros_like(self.temperature_S)
        none = torch.zeros_like(self.top_k_S)
        nothing = none[:0]
        return SamplingRows(
            seed_R=self.seeds_S, position_R=self.position_S + ahead, temperature_R=self.temperature_S,
            top_p_R=self.top_p_S, min_p_R=self.min_p_S, top_k_R=self.top_k_S,
            repetition_R=ones, frequency_R=zeros, presence_R=zeros,
            num_logprobs_R=none - 1, processed_R=none, mask_row_R=none - 1, masks_MW=masks_MW,
            edit_starts_X=torch.zeros(len(none) + 1, dtype=none.dtype, device=none.device),
            edit_ids_E=nothing, edit_biases_E=zeros[:0], edit_counts_E=nothing,
        )  # fmt: skip


def propose(
    model: FusedDSpark, block: Block, newest_S: Tensor, served: Served, depth: int, kept_MV: Tensor
) -> MarkovStep:
    """Tokens int32 [S, K] and their evidence float32. `newest_S` int32, -1: no drafts; drafts end with the first -1."""
    base_SKV = model.base_logits(block.normed_SQD, depth)
    masks_MW = newest_S.new_empty(0, -(-base_SKV.shape[2] // 32))
    previous = [newest_S]
    for number in range(depth):
        drawn = model.ops.sample_rows(
            model.biased(base_SKV[:, number], previous[-1]),
            served.rows(number + 1, masks_MW),
            stream=DRAFT | number << STREAM_BITS,
            kept_XV=kept_MV,
            kept_row_R=(served.slots_S * depth + number).int(),
        )
        previous.append(torch.where(previous[-1] < 0, -1, drawn.token_R))
    evidence_SK = model.evidence(block.hidden_SQD[:, :depth], torch.stack(previous[:-1], 1))
    return MarkovStep(torch.stack(previous[1:], 1), evidence_SK.float())
