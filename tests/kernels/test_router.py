"""The router against its twin. GPU only, as CUDA C++ has no interpreter; without one, what its caller must keep to.

Its exp, log1p and square root have other last bits than torch's: against float64, picks may differ between experts that lie
within 2e-6 of each other.
"""

import pytest
import torch
from deepinfer.kernels.cuda_router import router
from row_cases import assert_same_rows, num_copies, plain_copy, rotating
from torch import Tensor

from deepinfer.ops.router import choose_experts, router_scores

CASES = [(384, 6), (128, 3), (256, 8)]
FACTOR, CLOSE = 1.5, 2e-6
TARGET = "≥ 70 % of copy bandwidth at ≥ 4 K tokens"


def twin(logits_TE: Tensor, bias_E: Tensor, chosen: int) -> tuple[Tensor, Tensor]:
    return choose_experts(router_scores(logits_TE), bias_E, chosen, FACTOR)


def inputs(experts: int, rows: int, seed: int = 0, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """Logits, some far out, and a bias of the size that separates experts."""
    generator = torch.Generator(device).manual_seed(seed)
    logits_TE = torch.randn(rows, experts, device=device, generator=generator) * 3
    logits_TE[rows // 2] *= 30
    return logits_TE, torch.randn(experts, device=device, generator=generator) * 0.2


@pytest.mark.parametrize("experts, stride, chosen", [(96, 96, 6), (128, 130, 6), (128, 128, 9)])
def test_layouts_that_it_refuses(experts: int, stride: int, chosen: int) -> None:
    logits_TE = torch.zeros(4, stride)[:, :experts]
    with pytest.raises(AssertionError):
        router(logits_TE, torch.zeros(experts), chosen, FACTOR)


@pytest.mark.gpu
@pytest.mark.parametrize("experts, chosen", CASES)
@pytest.mark.parametrize("spread", (1.0, 1e-3, 8.0))
def test_values(experts: int, chosen: int, spread: float) -> None:
    """With a small spread hundreds of experts reach the bound, and all are ranked."""
    logits_TE, bias_E = inputs(experts, 4099)
    logits_TE, bias_E = logits_TE * spread - 2, bias_E * spread
    picks_TX, weights_TX = router(logits_TE, bias_E, chosen, FACTOR)
    exact = router_scores(logits_TE.double())
    biased = exact + bias_E
    wanted, _ = twin(logits_TE.double(), bias_E.double(), chosen)
    gap = biased.gather(1, wanted) - biased.gather(1, picks_TX.long())
    assert (gap.abs() <= CLOSE * biased.abs().amax(1, keepdim=True)).all()
    assert (picks_TX != wanted).float().mean() < (1e-4 if spread >= 1 else 1e-2)
    assert (picks_TX.sort(1).values.diff(dim=1) > 0).all(), "an expert is chosen once"
    scores_TX = exact.gather(1, picks_TX.long())
    weights = scores_TX * FACTOR / (scores_TX.sum(1, keepdim=True) + 1e-20)
    assert ((weights_TX - weights).abs() <= 2e-6 * weights).all()


@pytest.mark.gpu
@pytest.mark.parametrize("experts, chosen", CASES)
def test_ties_go_to_the_lowest(experts: int, chosen: int) -> None:
    logits_TE, _ = inputs(experts, 512)
    logits_TE = (logits_TE / 3).round()
    logits_TE[0] = 0.5
    picks_TX, weights_TX = router(logits_TE, torch.zeros(experts, device="cuda"), chosen, FACTOR)
    assert torch.equal(picks_TX.long(), twin(logits_TE, torch.zeros(experts, device="cuda"), chosen)[0])
    assert picks_TX[0].tolist() == list(range(chosen))
    assert torch.allclose(weights_TX[0], torch.full_like(weights_TX[0], FACTOR / chosen))


@pytest.mark.gpu
@pytest.mark.parametrize("low, high", [(-80, 80), (-40, -5), (-17, -14), (20, 2000)])
def test_scores_of_all_sizes(low: float, high: float) -> None:
    """From logits that round to nothing to ones that softplus leaves alone; estimates are least exact near -15."""
    logits_TE = torch.linspace(low, high, 128 * 128, device="cuda")
    logits_TE = logits_TE[torch.randperm(len(logits_TE), device="cuda")].view(128, 128)
    picks_TX, weights_TX = router(logits_TE, torch.zeros(128, device="cuda"), 8, 1.0)
    exact, wanted = router_scores(logits_TE.double()).sort(1, descending=True)
    assert torch.equal(picks_TX.long(), wanted[:, :8])
    exact = exact[:, :8] / (exact[:, :8].sum(1, keepdim=True) + 1e-20)
    assert ((weights_TX - exact).abs() <= 2e-5 * exact).all()


@pytest.mark.gpu
def test_rows_are_invariant() -> None:
    logits_TE, bias_E = inputs(384, 300)
    logits_TE[2], logits_TE[5], logits_TE[9, 77] = torch.nan, torch.inf, torch.nan
    assert_same_rows(lambda rows: router(logits_TE[rows], bias_E, 6, FACTOR), len(logits_TE), "cuda")
    picks_TX, _ = router(logits_TE, bias_E, 6, FACTOR)
    assert ((picks_TX >= 0) & (picks_TX < 384)).all(), "a row with NaN is routed somewhere"
    assert (picks_TX.sort(1).values.diff(dim=1) > 0).all(), "an expert is chosen once"


def by_topk(logits_TE: Tensor, bias_E: Tensor, chosen: int) -> tuple[Tensor, Tensor]:
    """The peer that everybody has: torch's own operations one by one. Among equals it takes any."""
    scores_TE = torch.nn.functional.softplus(logits_TE).sqrt()
    picks_TX = (scores_TE + bias_E).topk(chosen).indices
    weights_TX = scores_TE.gather(1, picks_TX)
    return picks_TX, weights_TX * FACTOR / (weights_TX.sum(1, keepdim=True) + 1e-20)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "experts, chosen, tokens", [(384, 6, 4096), (384, 6, 32768), (384, 6, 131072), (128, 3, 131072)]
)
def test_speed(experts: int, chosen: int, tokens: int, timed) -> None:
    moved = tokens * (4 * experts + 8 * chosen)
    logits = [inputs(experts, tokens, seed=i)[0] for i in range(num_copies(moved))]
    _, bias_E = inputs(experts, 1)
    found, wanted = router(logits[0], bias_E, chosen, FACTOR), twin(logits[0], bias_E, chosen)
    assert (found[0] != wanted[0]).float().mean() < 1e-4 and (found[1] - wanted[1]).abs().mean() < 1e-5
    timed(
        "router", f"{tokens} x {experts}, {chosen} chosen",
        rotating(len(logits), lambda i: router(logits[i], bias_E, chosen, FACTOR)),
        moved_bytes=moved, variant="invariant", target=TARGET,
        peers={"torch": rotating(len(logits), lambda i: by_topk(logits[i], bias_E, chosen))} | plain_copy(moved),
    )  # fmt: skip
