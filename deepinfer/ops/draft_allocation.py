"""Which drafts a budget checks, worked out on a device: bit for bit what `deepinfer.speculation.allocation` gives.

S sequences · K drafts of each at most. A place is a depth and a sequence.
"""

import torch
from torch import Tensor


def allocate(confidence_SK: Tensor, available_S: Tensor, budget: Tensor) -> Tensor:
    """Drafts that each sequence has checked, int32 [S], of a budget that only the device needs to know (int32 []).

    `confidence_SK` float32, `available_S` int32. Ranks are taken by a stable sort, so that of equal places the shallower wins,
    then that of the lower sequence.
    """
    sequences, depth = confidence_SK.shape
    survival_KS = torch.where(_numbers(depth, confidence_SK).unsqueeze(1) < available_S, survival(confidence_SK), -1.0)
    order = survival_KS.flatten().sort(descending=True, stable=True).indices
    won = torch.zeros_like(order).scatter_(0, order, (_numbers(len(order), order) < budget).to(order.dtype))
    return torch.minimum(won.view(depth, sequences).sum(0).to(torch.int32), available_S)


def survival(confidence_SK: Tensor) -> Tensor:
    """Chance that each draft and all before it are accepted, float32 [K, S]; NaN counts as 0.

    Products are rounded one after the other: a cumulative product of torch may hold more bits in between.
    """
    kept_KS = torch.where(confidence_SK > 0, confidence_SK, 0.0).clamp(max=1).T
    rows = [kept_KS[0]]
    for row_S in kept_KS[1:]:
        rows.append(rows[-1] * row_S)
    return torch.stack(rows)


def _numbers(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=like.device)
