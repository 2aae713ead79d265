"""What single ops must give, worked out by hand or by a property."""

import math

import torch

from deepinfer.ops import native, reference
from deepinfer.ops.hyper import sinkhorn


def test_equal_scores_go_to_the_lowest_index() -> None:
    scores = torch.zeros(3, 50)
    scores[1, 40:] = 1.0
    scores[2, 7:] = -torch.inf
    for ops in (native(), reference()):
        best = ops.best_entries(scores, 12)
        assert best[0].tolist() == list(range(12))
        assert best[1].tolist() == [0, 1, *range(40, 50)]
        assert best[2].tolist() == [*range(7), -1, -1, -1, -1, -1]
        picks, _ = ops.choose_experts(torch.ones(1, 8), torch.zeros(8), 3, 1.5)
        assert picks.tolist() == [[0, 1, 2]]


def test_swiglu_clamps_the_gate_from_above_and_the_other_half_on_both_sides() -> None:
    h = torch.tensor([[30.0, -30.0, 1.0, 40.0, -40.0, 2.0]])
    silu = lambda x: x / (1 + math.exp(-x))  # noqa: E731
    wanted = torch.tensor([[silu(10) * 10, silu(-30) * -10, silu(1) * 2]]) * 0.5
    for ops in (native(), reference()):
        assert torch.allclose(ops.swiglu(h, torch.tensor([0.5]), 10.0), wanted, rtol=1e-6)


def test_routing_weights_come_from_the_unbiased_scores_and_add_up() -> None:
    scores, bias = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([9.0, 0.0, 0.0, 0.0])
    for ops in (native(), reference()):
        picks, weights = ops.choose_experts(scores, bias, 2, 1.5)
        assert picks.tolist() == [[0, 3]]
        assert torch.allclose(weights, torch.tensor([[0.3, 1.2]]))


def test_rotation_undoes_itself_and_leaves_the_first_dims_alone() -> None:
    x = torch.randn(5, 3, 32, generator=torch.Generator().manual_seed(1))
    angle = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
    rope = torch.stack((angle.cos(), angle.sin()), 1)
    for ops in (native(), reference()):
        turned = ops.rotate(x, rope)
        assert torch.equal(turned[..., :24], x[..., :24])
        assert torch.allclose(ops.rotate(turned, rope, True), x, atol=1e-6)
        first = x[0, 0, 24] * angle[0, 0].cos() - x[0, 0, 25] * angle[0, 0].sin()
        assert torch.allclose(turned[0, 0, 24], first, atol=1e-6)


def test_attention_with_everything_hidden_is_zero() -> None:
    q, keys = torch.randn(2, 3, 32), torch.zeros(2, 8, 32)
    hidden = torch.zeros(2, 8, dtype=torch.bool)
    assert (reference().attention(q, keys, hidden, None, None, torch.zeros(3), 1.0) == 0).all()


def test_attention_equals_a_softmax_with_one_more_logit() -> None:
    q, window, chosen = torch.randn(4, 3, 32), torch.randn(4, 8, 32), torch.randn(4, 5, 32)
    sink = torch.tensor([0.5, -1.0, 2.0])
    keys = torch.cat((window, chosen), 1)
    logits = torch.cat((torch.einsum("thk,tjk->thj", q, keys) * 0.2, sink.view(1, 3, 1).expand(4, 3, 1)), -1)
    wanted = torch.einsum("thj,tjk->thk", logits.softmax(-1)[..., :-1], keys)
    seen = [torch.ones(4, n, dtype=torch.bool) for n in (8, 5)]
    found = reference().attention(q, window, seen[0], chosen, seen[1], sink, 0.2)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_nan_row_stays_alone_and_stays_nan() -> None:
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(6))
    x[4, 17] = torch.nan
    weight = torch.randn(96, 256, generator=torch.Generator().manual_seed(7))
    for ops in (native(), reference()):
        for result in (
            ops.linear(x, weight),
            ops.rms_norm(x, weight[0], 1e-20),
            ops.quantise_activation(x),
            ops.swiglu(x.clone(), None, 10.0),
        ):
            hurt = result.isnan().any(1)
            assert hurt[4] and hurt.sum() == 1


def test_mixing_is_doubly_stochastic() -> None:
    logits = torch.randn(20, 4, 4, generator=torch.Generator().manual_seed(8))
    mixing = sinkhorn(logits, 1e-6, 20)
    assert (mixing.sum(1) - 1).abs().max() < 1e-5
    assert (mixing.sum(2) - 1).abs().max() < 1e-3
