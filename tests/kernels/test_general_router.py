"""The router of any number of experts against its twin in float64, and a row's bits in any company."""

import pytest
import torch
from deepinfer.kernels.general_router import router
from row_cases import DEVICES, assert_same_rows
from torch import Tensor

from deepinfer.ops.router import choose_experts, router_scores

CASES = [(8, 2), (4, 2), (100, 6), (384, 6)]
FACTOR, CLOSE = 1.5, 2e-6


def inputs(experts: int, rows: int, device: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, some far out, and a bias of the size that separates experts."""
    generator = torch.Generator(device).manual_seed(seed)
    logits_TE = torch.randn(rows, experts, device=device, generator=generator) * 3
    logits_TE[rows // 2] *= 30
    return logits_TE, torch.randn(experts, device=device, generator=generator) * 0.2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("experts, chosen", CASES)
@pytest.mark.parametrize("spread", (1.0, 8.0))
def test_values(experts: int, chosen: int, spread: float, device: str) -> None:
    logits_TE, bias_E = inputs(experts, 9 if device == "cpu" else 1025, device)
    logits_TE, bias_E = logits_TE * spread - 2, bias_E * spread
    picks_TX, weights_TX = router(logits_TE, bias_E, chosen, FACTOR)
    exact = router_scores(logits_TE.double())
    biased = exact + bias_E
    wanted, _ = choose_experts(exact, bias_E.double(), chosen, FACTOR)
    gap = biased.gather(1, wanted) - biased.gather(1, picks_TX.long())
    assert (gap.abs() <= CLOSE * biased.abs().amax(1, keepdim=True)).all()
    assert (picks_TX != wanted).float().mean() < 1e-3
    assert (picks_TX.sort(1).values.diff(dim=1) > 0).all(), "an expert is chosen once"
    scores_TX = exact.gather(1, picks_TX.long())
    weights = scores_TX * FACTOR / (scores_TX.sum(1, keepdim=True) + 1e-20)
    assert ((weights_TX - weights).abs() <= 2e-6 * weights + 1e-30).all()


@pytest.mark.parametrize("device", DEVICES)
def test_ties_go_to_the_lowest_and_small_scores_keep_their_size(device: str) -> None:
    logits_TE = torch.full((3, 8), 0.5, device=device)
    logits_TE[1] = torch.linspace(-80, -10, 8, device=device)
    logits_TE[2] = torch.tensor([1, 3, 3, 1, 3, 1, 1, 3], device=device)
    picks_TX, weights_TX = router(logits_TE, torch.zeros(8, device=device), 4, 1.0)
    assert picks_TX.tolist() == [[0, 1, 2, 3], [7, 6, 5, 4], [1, 2, 4, 7]]
    exact = router_scores(logits_TE[1].double()).flip(0)[:4]
    assert ((weights_TX[1] - exact / exact.sum()).abs() <= 2e-5 * weights_TX[1]).all()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_invariant(device: str) -> None:
    logits_TE, bias_E = inputs(8, 10 if device == "cpu" else 300, device)
    logits_TE[2], logits_TE[5], logits_TE[9, 7] = torch.nan, torch.inf, torch.nan
    assert_same_rows(lambda rows: router(logits_TE[rows], bias_E, 3, FACTOR), len(logits_TE), device)
    picks_TX, _ = router(logits_TE, bias_E, 3, FACTOR)
    assert ((picks_TX >= 0) & (picks_TX < 8)).all(), "a row with NaN is routed somewhere"
    assert (picks_TX.sort(1).values.diff(dim=1) > 0).all(), "an expert is chosen once"
