"""The two training kernels against plain torch: Sinkhorn with its gradient, and the exact top-k mask."""

import pytest
import torch

from examples.tiny_model.sinkhorn import sinkhorn, sinkhorn_plain
from examples.tiny_model.topk import candidate_mask, index_scores, topk_mask

ROUNDS = 20


def test_plain_sinkhorn_is_doubly_stochastic_and_ends_on_columns():
    x = torch.rand(50, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.05
    y = sinkhorn_plain(x, ROUNDS)
    assert (y.sum(-2) - 1).abs().max() < 2e-6
    assert (y.sum(-1) - 1).abs().max() < 1e-3
    assert torch.equal(sinkhorn(x.float(), ROUNDS), sinkhorn_plain(x.float(), ROUNDS))


@pytest.mark.gpu
def test_sinkhorn_kernel_equals_autograd():
    x = torch.rand(1000, 4, 4, device="cuda", requires_grad=True)
    y, plain = sinkhorn(x, ROUNDS), sinkhorn_plain(x, ROUNDS)
    slope = torch.rand_like(y)
    (ours,) = torch.autograd.grad(y, x, slope)
    (theirs,) = torch.autograd.grad(plain, x, slope)
    assert (y - plain).abs().max() < 1e-5
    assert (ours - theirs).abs().max() < 1e-4


def test_ties_go_to_the_lowest_index_and_forbidden_entries_are_never_chosen():
    scores = torch.tensor([[1.0, 5.0, 5.0, 5.0, -2.0], [0.0, 0.0, 0.0, 9.0, 0.0]])
    allowed = torch.tensor([[True, False, True, True, True], [True, True, True, False, True]])
    chosen = topk_mask(scores, allowed, 2)
    assert chosen.tolist() == [[False, False, True, True, False], [True, True, False, False, False]]
    assert topk_mask(scores, allowed, 5).equal(allowed)


def test_candidates_are_the_best_blocks_and_the_newest():
    scores = torch.zeros(1, 32)
    scores[0, 9], scores[0, 20] = 3.0, 2.0
    visible = torch.arange(32).unsqueeze(0) < 30
    mask = candidate_mask(scores, visible, torch.tensor([29]), block_size=8, num_blocks=2)
    assert mask[0].nonzero().flatten().tolist() == [*range(8, 16), *range(24, 32)]


@pytest.mark.gpu
def test_topk_kernel_equals_plain():
    dots = torch.randint(-3, 4, (64, 4, 1000), device="cuda").to(torch.bfloat16)
    weights = torch.randint(-2, 3, (64, 4), device="cuda").float()
    allowed = torch.rand(64, 1000, device="cuda") < torch.linspace(0, 1, 64, device="cuda").unsqueeze(1)
    scores, plain = index_scores(dots, weights), index_scores(dots.cpu(), weights.cpu())
    assert torch.equal(scores.cpu(), plain)
    assert torch.equal(topk_mask(scores, allowed, 128).cpu(), topk_mask(plain, allowed.cpu(), 128))
