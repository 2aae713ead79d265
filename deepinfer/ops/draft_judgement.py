"""Rejection sampling of drafts: which are accepted, and what stands in a rejected one's place.

A draft x that was drawn from q is accepted with probability min(1, p(x) / q(x)), p being what the target's token is drawn from;
else the token comes from max(p - q, 0), with noise of its own. See `deepinfer.speculation.rejection`.

Shapes: T rows · V vocabulary · S sequences · K drafts · X starts and the end · M proposals.
"""

from itertools import pairwise

import torch
from torch import Tensor

from deepinfer.ops.sampling_rows import GREEDY_BELOW, SamplingRows, best_of, gumbel, noise_bits, uniform

ACCEPT, RESIDUAL = 2, 3  # streams of noise, see `deepinfer.sampling.philox`


def judge_drafts(
    token_T: Tensor,
    kept_TV: Tensor,
    rows: SamplingRows,
    draft_SK: Tensor,
    start_X: Tensor,
    slot_S: Tensor,
    proposed_MV: Tensor | None,
) -> None:
    """Rewrites `token_T`, the target's own samples (int32, -1: none), in rows that a draft hangs on, unless they are greedy.

    Rows `start`[s] … `start`[s + 1] belong to sequence s; all but the last have a draft. `kept_TV` is what rows are drawn from
    and row `slot`[s] · K + d of `proposed_MV` what draft d was drawn from, both as `sample_rows` keeps them and at the row's
    temperature; without `proposed_MV` drafts were proposed for certain. Whole numbers are int32.
    """
    depth = draft_SK.shape[1]
    starts = start_X.tolist()
    for s, (first, end) in enumerate(pairwise(starts)):
        for d, row in enumerate(range(first, end - 1)):
            draft, temperature = int(draft_SK[s, d]), float(rows.temperature_R[row])
            if token_T[row] < 0 or draft < 0 or temperature < GREEDY_BELOW:
                continue
            p_V = torch.softmax(kept_TV[row].double() / temperature, 0)
            if proposed_MV is None:
                q_V = torch.zeros_like(p_V).index_fill_(0, draft_SK[s, d : d + 1].long(), 1.0)
            else:
                q_V = torch.softmax(proposed_MV[int(slot_S[s]) * depth + d].double() / temperature, 0)
            place = rows.seed_R[row], rows.position_R[row]
            accepted = bool(_coin(*place) < p_V[draft] / q_V[draft])
            token_T[row] = draft if accepted else _instead(p_V, q_V, *place)


def _coin(seed: Tensor, position: Tensor) -> Tensor:
    """float64 in (0, 1)."""
    return uniform(noise_bits(seed, position, torch.zeros_like(seed), ACCEPT))


def _instead(p_V: Tensor, q_V: Tensor, seed: Tensor, position: Tensor) -> int:
    """A token of max(p - q, 0), the lowest among equals; of p where rounding leaves nothing of that."""
    ids_V = torch.arange(len(p_V), device=p_V.device)
    noise_V = gumbel(noise_bits(seed, position, ids_V, RESIDUAL))
    rest_V = p_V - q_V
    rest_V = rest_V.clamp(min=0) if bool((rest_V > 0).any()) else p_V
    return best_of(torch.log(rest_V) + noise_V)
