"""Streams, coefficients and site weights of hyper-connections, for the tests and the timings of their border."""

import functools

import torch
from torch import Tensor

from deepinfer.ops.hyper_border import Coefficients, SiteWeights

SETTINGS = (1e-20, 1e-6, 20)  # norm_eps, eps, iterations
HIDDEN = 5120


def site_weights(hidden: int, generator: torch.Generator) -> SiteWeights:
    """fn gives raw coefficients of about unit size; scales from 0.5 to 1.5."""
    random = functools.partial(torch.randn, device=generator.device, generator=generator)
    scale_3 = torch.rand(3, device=generator.device, generator=generator) + 0.5
    return SiteWeights(random(24, 4 * hidden) * (4 * hidden) ** -0.5, random(24) * 0.5, scale_3)


def streams(rows: int, hidden: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Coefficients]:
    """Streams whose size varies from row to row, a sublayer's output, and the coefficients of the site that ends."""
    random = functools.partial(torch.randn, device=generator.device, generator=generator)
    x_TND = (random(rows, 4, hidden) * torch.exp(random(rows, 1, 1))).bfloat16()
    mixing_TMN = torch.softmax(random(rows, 4, 4), -1)
    ended = Coefficients(torch.sigmoid(random(rows, 4)), mixing_TMN, 2 * torch.sigmoid(random(rows, 4)))
    return x_TND, random(rows, hidden).bfloat16(), ended


def norm_weights(hidden: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(hidden, device=generator.device, generator=generator) + 0.5).bfloat16()


def assert_near(found: Tensor, expected: Tensor, bound: float) -> None:
    """In norm within the bound; each number within eight bounds of its own size or of its row's mean size."""
    error, size = (found.double() - expected).abs(), expected.square().mean(-1, keepdim=True).sqrt()
    assert error.norm() <= bound * expected.norm(), f"{error.norm() / expected.norm():.2e} in norm"
    worst = (error / torch.maximum(expected.abs(), size)).max()
    assert worst <= 8 * bound, f"one number is off by {worst:.2e}"
