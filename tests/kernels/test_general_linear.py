"""Products of any width against float64, and a row's bits in any company."""

import pytest
import torch
from deepinfer.kernels import general_linear as kernel
from row_cases import DEVICES, assert_same_rows, relative_error
from torch import Tensor

from deepinfer.formats import fake_fp8_rows
from deepinfer.ops import bf16_linear as plain_twin
from deepinfer.ops import fp8_linear as twin
from deepinfer.ops.fp8_linear import Fp8Weight

NORM_ERROR = 2.5e-3  # of bfloat16 results: rounding alone gives 1.7e-3
WIDTHS = [(576, 256), (2048, 64), (128, 128), (256, 96), (1280, 256), (32, 768)]  # outputs × inputs


def weight(outputs: int, inputs: int, device: str) -> Fp8Weight:
    """Every finite code, and scales from 2^-17 to 2^-4."""
    draw = torch.Generator(device).manual_seed(1)
    codes = torch.randint(0, 256, (outputs, inputs), generator=draw, device=device, dtype=torch.uint8)
    codes = torch.where((codes & 0x7F) == 0x7F, codes - 1, codes)
    scale = torch.randint(110, 124, (outputs // 32, inputs // 32), generator=draw, device=device)
    return Fp8Weight(codes.view(torch.float8_e4m3fn), scale.to(torch.uint8))


def rows_of(rows: int, inputs: int, device: str, seed: int = 0) -> Tensor:
    draw = torch.Generator(device).manual_seed(seed)
    return fake_fp8_rows(torch.randn(rows, inputs, generator=draw, device=device).bfloat16())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs, inputs", WIDTHS)
def test_fp8_values(outputs: int, inputs: int, device: str) -> None:
    stored = weight(outputs, inputs, device)
    x_TK = rows_of(3 if device == "cpu" else 77, inputs + 32, device)[:, :inputs]  # rows with something between them
    found = kernel.fp8_linear(x_TK, kernel.prepare_fp8_weight(stored))
    assert relative_error(found, twin.fp8_linear(x_TK.double(), stored)) < NORM_ERROR


@pytest.mark.parametrize("device", DEVICES)
def test_groups_meet_their_own_outputs(device: str) -> None:
    stored, rows = weight(128, 96, device), 5 if device == "cpu" else 130
    x_TGK = rows_of(rows * 4, 96, device).view(rows, 4, 96)
    found = kernel.fp8_grouped_linear(x_TGK, kernel.prepare_fp8_weight(stored))
    assert relative_error(found, twin.fp8_grouped_linear(x_TGK.double(), stored)) < NORM_ERROR


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs, inputs", [(8, 256), (1, 288), (35, 40)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bfloat16_values(outputs: int, inputs: int, dtype: torch.dtype, device: str) -> None:
    x_TK, weight_NK = rows_of(19, 320, device)[:, :inputs], rows_of(outputs, 320, device, 1)[:, :inputs].contiguous()
    found = kernel.bf16_linear(x_TK, weight_NK, dtype)
    wanted = plain_twin.bf16_linear(x_TK.double(), weight_NK.double(), torch.float64)
    assert found.dtype == dtype and relative_error(found, wanted) < (NORM_ERROR if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_invariant(device: str) -> None:
    prepared, x_TK = (
        kernel.prepare_fp8_weight(weight(64, 160, device)),
        rows_of(300 if device == "cuda" else 40, 160, device),
    )
    x_TK[2], x_TK[5, 7] = torch.nan, torch.inf
    groups = x_TK.view(len(x_TK), 2, 80)
    other = kernel.prepare_fp8_weight(
        Fp8Weight(
            *(
                part[:, : part.shape[1] // 2]
                for part in (weight(64, 192, device).codes_NK, weight(64, 192, device).scale)
            )
        )
    )
    assert_same_rows(lambda rows: (kernel.fp8_linear(x_TK[rows], prepared),), len(x_TK), device)
    padded = torch.nn.functional.pad(groups, (0, 16))
    assert_same_rows(lambda rows: (kernel.fp8_grouped_linear(padded[rows].contiguous(), other),), len(x_TK), device)


def test_what_it_is_not_made_for_is_refused() -> None:
    stored = weight(64, 64, "cpu")
    with pytest.raises(AssertionError, match="prepare_fp8_weight"):
        kernel.fp8_linear(rows_of(2, 64, "cpu"), stored)
    with pytest.raises(AssertionError, match="one K"):
        kernel.fp8_linear(rows_of(2, 32, "cpu"), kernel.prepare_fp8_weight(stored))
    with pytest.raises(AssertionError, match="bfloat16 or float32"):
        kernel.bf16_linear(rows_of(2, 64, "cpu"), rows_of(2, 64, "cpu"), torch.float64)
