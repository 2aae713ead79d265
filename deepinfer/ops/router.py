"""The router: which experts a row goes to, and with what weight.

Legend: T rows · E experts · X chosen experts of a row.
"""

import torch
from torch import Tensor

from deepinfer.ops.arithmetic import softplus


def router_scores(logits_TE: Tensor) -> Tensor:
    """sqrt(softplus(logit)), elementwise."""
    return torch.sqrt(softplus(logits_TE))


def choose_experts(scores_TE: Tensor, bias_E: Tensor, chosen: int, factor: float) -> tuple[Tensor, Tensor]:
    """Ids int64 [T, X], best first, lowest id first among equals, and weights [T, X] that add up to `factor`.

    The bias takes part in the choice only.
    """
    biased_TE = scores_TE + bias_E
    picks_TX = biased_TE.sort(dim=-1, descending=True, stable=True).indices[:, :chosen]
    weights_TX = scores_TE.gather(1, picks_TX)
    total = weights_TX[:, 0]
    for slot in range(1, chosen):
        total = total + weights_TX[:, slot]
    return picks_TX, weights_TX * factor / (total + 1e-20).unsqueeze(1)


def route(logits_TE: Tensor, bias_E: Tensor, chosen: int, factor: float) -> tuple[Tensor, Tensor]:
    """Ids int32 [T, X] and weights [T, X] from the router's float32 logits: scores and choice in one op."""
    picks_TX, weights_TX = choose_experts(router_scores(logits_TE), bias_E, chosen, factor)
    return picks_TX.int(), weights_TX
