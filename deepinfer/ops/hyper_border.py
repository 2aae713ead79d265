"""The border between two hyper-connection sites: one pass over the streams from a sublayer's output to the next one's input.

Legend: T rows · N streams · D hidden · C = N · (2 + N) coefficients (read, write, mixing) · X = N · D · M source stream.
"""

from typing import NamedTuple

from torch import Tensor

from deepinfer.ops.arithmetic import working
from deepinfer.ops.hyper import hyper_coefficients, hyper_collapse, hyper_mix
from deepinfer.ops.linear import linear
from deepinfer.ops.norm import quantise_activation, rms_norm


class Coefficients(NamedTuple):
    """Of one site: how the next site reads [T, N], how the streams mix [T, source, destination], how to write [T, N]."""

    read_TN: Tensor
    mixing_TMN: Tensor
    write_TN: Tensor


class SiteWeights(NamedTuple):
    """What a site makes its coefficients from."""

    fn_CX: Tensor
    base_C: Tensor
    scale_3: Tensor


class Border(NamedTuple):
    """What the next site starts from. `coefficients` is None where no site begins; without a norm the rows are empty."""

    x_TND: Tensor
    collapsed_TD: Tensor  # before the norm
    normed_TD: Tensor
    quantised_TD: Tensor  # on the FP8 grid
    coefficients: Coefficients | None


def hyper_border(
    x_TND: Tensor,
    out_TD: Tensor | None,
    ended: Coefficients,
    begun: SiteWeights | None,
    norm_D: Tensor | None,
    norm_eps: float,
    eps: float,
    iterations: int,
    *,
    quantise: bool = True,
    collapsed: bool = False,
    narrow: bool | None = None,
) -> Border:
    """Ends a site whose sublayer gave `out_TD` and begins the next: mix, coefficients, collapse with the ended site's A, norm.

    Without `out_TD` the streams stay as they are (the first site; after an engram). Without `begun` nothing follows but a norm
    (the last site); without `norm_D` either, the streams are mixed and nothing else (before an engram).
    A kernel leaves out what `quantise` and `collapsed` do not ask for and follows `narrow`; the twin gives all.
    """
    if out_TD is not None:
        x_TND = hyper_mix(x_TND, out_TD, ended.mixing_TMN, ended.write_TN)
    if norm_D is None:
        assert begun is None, "where a site begins there is a norm"
        empty_TD = x_TND.new_empty(0, x_TND.shape[2])
        return Border(x_TND, empty_TD, empty_TD, empty_TD, None)
    collapsed_TD = hyper_collapse(x_TND, ended.read_TN)
    normed_TD = rms_norm(collapsed_TD, norm_D, norm_eps)
    coefficients = None if begun is None else site_coefficients(x_TND, begun, norm_eps, eps, iterations)
    return Border(x_TND, collapsed_TD, normed_TD, quantise_activation(normed_TD), coefficients)


def site_coefficients(x_TND: Tensor, site: SiteWeights, norm_eps: float, eps: float, iterations: int) -> Coefficients:
    """The coefficients of a site from the streams at its beginning."""
    raw_TC = linear(working(x_TND.flatten(1)), site.fn_CX)
    return Coefficients(*hyper_coefficients(x_TND, raw_TC, site.base_C, site.scale_3, norm_eps, eps, iterations))
