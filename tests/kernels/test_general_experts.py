"""MXFP4 experts of widths that no tile divides, against float64."""

import pytest
import torch
from deepinfer.kernels.general_experts import fp4_experts_up, prepare_experts
from deepinfer.kernels.triton_fp4_grouped_linear import fp4_grouped_linear
from fp4_expert_cases import activations, check, random_experts, starts_of
from row_cases import DEVICES, assert_same_rows
from torch import Tensor

from deepinfer.ops import fp4_experts as twin
from deepinfer.ops.swiglu_quantise import swiglu_quantise


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs, columns", [(192, 256), (256, 96), (32, 32)])
def test_products(outputs: int, columns: int, device: str) -> None:
    torch.manual_seed(0)
    counts = [0, 1, 17, 0, 5] if device == "cpu" else [0, 1, 17, 130, 0, 5, 300]
    weight, starts_E1 = (
        prepare_experts(random_experts(len(counts), outputs, columns, device)),
        starts_of(counts, device),
    )
    x_TK, rows_P = activations(9, columns, device), torch.randint(0, 9, (sum(counts),), device=device).int()
    check(
        fp4_grouped_linear(x_TK, rows_P, starts_E1, weight),
        twin.fp4_grouped_linear(x_TK.double(), rows_P, starts_E1, weight),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_up_is_the_product_and_the_activation(device: str) -> None:
    torch.manual_seed(0)
    counts = [3, 0, 18]
    w13, starts_E1, weights_P = (
        random_experts(3, 192, 64, device, (117, 122)),
        starts_of(counts, device),
        torch.rand(21, device=device),
    )
    x_TK = activations(21, 64, device)
    act_PI = fp4_experts_up(x_TK, None, starts_E1, weights_P, prepare_experts(w13), 7.0)
    expected = swiglu_quantise(fp4_grouped_linear(x_TK, None, starts_E1, w13), weights_P, 7.0)
    assert (act_PI != expected).float().mean() <= 2e-3
    groups = expected.float().unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)
    assert ((act_PI.float() - expected.float()).unflatten(1, (-1, 32)).abs() <= groups / 8).all()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_invariant(device: str) -> None:
    """All of one expert, at any place among its rows."""
    torch.manual_seed(0)
    rows = 8 if device == "cpu" else 300
    weight, x_TK = random_experts(2, 96, 64, device), activations(rows, 64, device)
    x_TK[3] = torch.nan

    def product(chosen: Tensor) -> tuple[Tensor]:
        return (fp4_grouped_linear(x_TK, chosen.int(), starts_of([0, len(chosen)], device), weight),)

    assert_same_rows(product, rows, device)
