"""Mean of the residual streams: what the draft module sees of a layer's input.

Legend: T rows · N streams · D hidden.
"""

from torch import Tensor

from deepinfer.ops.arithmetic import working


def stream_mean(x_TND: Tensor, out_TD: Tensor) -> Tensor:
    """Into out [T, D] of x's dtype, shares of streams added from first to last in float32 (or float64); rounded once."""
    share_TND = working(x_TND) / x_TND.shape[1]
    total_TD = share_TND[:, 0]
    for stream in range(1, x_TND.shape[1]):
        total_TD = total_TD + share_TND[:, stream]
    return out_TD.copy_(total_TD)
