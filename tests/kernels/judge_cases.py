"""Random drafts with what they were drawn from, and rows of a target that judges them."""

from itertools import pairwise
from typing import NamedTuple

import torch
from sampling_cases import random_rows
from torch import Tensor

from deepinfer.ops.sampling_rows import SamplingRows, sample_rows


class Drafted(NamedTuple):
    """The arguments of `judge_drafts`."""

    token_T: Tensor
    kept_TV: Tensor
    rows: SamplingRows
    draft_SK: Tensor
    start_X: Tensor
    slot_S: Tensor
    proposed_MV: Tensor | None


def random_drafts(sequences: int, depth: int, vocabulary: int, seed: int, device: str = "cpu") -> Drafted:
    """Sequences with 0 … `depth` drafts; some rows are greedy, some masked, some without a token."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, vocabulary, generator=generator, device=device) * 2

    def whole(high: int, *size: int) -> Tensor:
        return torch.randint(0, high, size, generator=generator, device=device).int()

    counts_S = whole(depth + 1, sequences)
    counts_S[0] = depth
    start_X = torch.cat([whole(1, 1), (counts_S + 1).cumsum(0).int()])
    num_rows, slot_S = (
        int(start_X[-1]),
        torch.randperm(sequences + 3, generator=generator, device=device)[:sequences].int(),
    )
    features = ("temperature", "top_k", "top_p", "min_p", "mask")
    rows = random_rows(num_rows, vocabulary, features, generator, share=0.8)
    for s in range(sequences):  # a sequence has one temperature and one seed
        first, end = start_X[s : s + 2].tolist()
        rows.temperature_R[first:end], rows.seed_R[first:end] = (
            rows.temperature_R[first].clone(),
            rows.seed_R[first].clone(),
        )
    proposed_MV = normal((sequences + 3) * depth)
    kept_TV = normal(num_rows)
    for s in range(sequences):
        for d in range(int(counts_S[s])):  # near what judges it, so that some are accepted
            kept_TV[start_X[s] + d] = proposed_MV[slot_S[s] * depth + d] + 0.2 * kept_TV[start_X[s] + d]
    proposed_MV[:, ::3] = -torch.inf
    scores = proposed_MV - torch.log(-torch.log(torch.rand(proposed_MV.shape, generator=generator, device=device)))
    draft_SK = scores.view(-1, depth, vocabulary)[slot_S.long()].argmax(2).int()
    sampled = sample_rows(kept_TV, rows, kept_XV=kept_TV, rounded=True)
    return Drafted(sampled.token_R, kept_TV, rows, draft_SK, start_X, slot_S, proposed_MV)


def judged_rows(start_X: Tensor) -> list[int]:
    """Rows that a draft hangs on."""
    starts = start_X.tolist()
    return [row for first, end in pairwise(starts) for row in range(first, end - 1)]
