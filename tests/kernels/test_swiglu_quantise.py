"""SwiGLU and the quantiser behind it against the twin: about one number in a thousand becomes its bfloat16 neighbour before the
quantiser, as exp and division have other last bits; what follows is exact.
"""

import pytest
import torch
from deepinfer.kernels.triton_swiglu_quantise import swiglu_quantise
from row_cases import (
    DEVICES,
    assert_same_rows,
    bits,
    compiled,
    foreign,
    num_copies,
    plain_copy,
    random_rows,
    relative_error,
    rotating,
)
from row_cases import share_of_different as different
from torch import Tensor

from deepinfer.ops.experts import swiglu
from deepinfer.ops.norm import quantise_activation
from deepinfer.ops.swiglu_quantise import swiglu_quantise as twin

LIMIT = 10.0
INNER = (2304, 96)
TARGET = "≥ 70 % of copy bandwidth at ≥ 4 K tokens"  # of six experts each


def inputs(rows: int, inner: int, device: str) -> tuple[Tensor, Tensor]:
    """Gate and up in every range, beyond the limit too, and routing weights."""
    return random_rows(inner, rows, 2 * inner, device=device), torch.rand(rows, device=device) + 0.05


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("weighted", (True, False))
def test_values(inner: int, weighted: bool, device: str) -> None:
    h_PJ, weight_P = inputs(5 if device == "cpu" else 515, inner, device)
    weight = weight_P if weighted else None
    found, wanted = swiglu_quantise(h_PJ, weight, LIMIT), twin(h_PJ, weight, LIMIT)
    assert different(found, wanted) < 1e-3 and relative_error(found, wanted) < 2e-3
    assert torch.equal(bits(quantise_activation(found)), bits(found)), "on the grid"
    exact = swiglu(h_PJ.double(), weight_P.double() if weighted else None, LIMIT)
    error = relative_error(wanted, exact)
    assert error < 0.04 and relative_error(found, exact) < 1.01 * error


@pytest.mark.parametrize("device", DEVICES)
def test_unused_rows_are_left_alone(device: str) -> None:
    h_PJ, weight_P = inputs(23, 96, device)
    whole = swiglu_quantise(h_PJ, weight_P, LIMIT)
    h_PJ[17:], weight_P[17:] = torch.nan, torch.nan
    found = swiglu_quantise(h_PJ, weight_P, LIMIT, torch.tensor([17], dtype=torch.int32, device=device))
    assert torch.equal(bits(found[:17]), bits(whole[:17]))


@pytest.mark.parametrize("device", DEVICES)
def test_not_a_number_stays(device: str) -> None:
    h_PJ, weight_P = inputs(4, 96, device)
    h_PJ[1, 40], h_PJ[2, 96 + 64], h_PJ[3] = torch.nan, torch.nan, torch.inf
    found = swiglu_quantise(h_PJ, weight_P, LIMIT)
    assert found[1, 32:64].isnan().all() and found[2, 64:].isnan().all() and found[1, :32].isfinite().all()
    assert torch.equal(found[3], twin(h_PJ, weight_P, LIMIT)[3]), "infinity is limited"


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_invariant(device: str) -> None:
    h_PJ, weight_P = inputs(7 if device == "cpu" else 300, 2304, device)
    h_PJ[4] = torch.nan
    assert_same_rows(lambda rows: (swiglu_quantise(h_PJ[rows], weight_P[rows], LIMIT),), len(h_PJ), device)


@pytest.mark.gpu
@pytest.mark.parametrize("rows, weighted", [(384, True), (4096, True), (24576, True), (98304, True), (24576, False)])
def test_speed(rows: int, weighted: bool, timed, request: pytest.FixtureRequest) -> None:
    moved = rows * (6 * 2304 + 4 * weighted)
    copies = [random_rows(i, rows, 4608, device="cuda", wide=False) for i in range(num_copies(moved))]
    weight = torch.rand(rows, device="cuda") if weighted else None
    last_weight = None if weight is None else weight[-99:]
    assert different(swiglu_quantise(copies[0], weight, LIMIT)[-99:], twin(copies[0][-99:], last_weight, LIMIT)) < 2e-3
    timed(
        "swiglu_quantise", f"{rows} x 2304{' weighted' * weighted}",
        rotating(len(copies), lambda i: swiglu_quantise(copies[i], weight, LIMIT)), moved_bytes=moved,
        variant="invariant", target=TARGET if rows >= 6 * 4096 else "",
        peers=compiled(
            twin, len(copies), lambda peer, i: peer(copies[i], weight, LIMIT), request, weighted and rows == 24576
        )
        | foreign("swiglu_quantise", [(h, LIMIT) for h in copies], request, not weighted and rows == 24576)
        | plain_copy(moved),
    )  # fmt: skip
