"""Fused operations say what is wrong with what they are given, and compute nothing: twins and kernels by one door."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from deepinfer.ops.device import DeviceOps, twins
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.hopper import hopper

BOTH = pytest.mark.parametrize("ops", [twins(), hopper()], ids=lambda ops: ops.name)


def scores(**changed: Any) -> dict[str, Any]:
    """Arguments of paged_index_scores for three rows."""
    whole = {name: torch.zeros(3, dtype=torch.int32) for name in ("sequence_T", "visible_T")}
    return {
        "q_TIK": torch.zeros(3, 32, 128, dtype=torch.bfloat16),
        "weight_TI": torch.zeros(3, 32),
        "store_ABR": torch.zeros(2, 64, 68, dtype=torch.uint8),
        "tables_SB": torch.zeros(1, 2, dtype=torch.int32),
        "out_TJ": torch.zeros(3, 128),
        **whole,
    } | changed


@BOTH
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"q_TIK": [1.0]}, "q_TIK as list; it is read as Tensor"),
        ({"weight_TI": None}, "weight_TI as NoneType"),
        ({"sequence_T": torch.zeros((), dtype=torch.int32)}, "sequence_T with the shape (); its dimensions are [T]"),
        ({"visible_T": torch.zeros(3)}, "visible_T as torch.float32; it holds whole numbers: give int32"),
        ({"out_TJ": torch.zeros(4, 128)}, "out_TJ [T, J] with the shape (4, 128); T is 3 by q_TIK"),
        (
            {"weight_TI": torch.zeros(3, 32, device="meta")},
            "q_TIK on cpu and weight_TI on meta; one device computes it",
        ),
        ({"rows_together": "2"}, "rows_together as str; it is read as a whole number"),
    ],
)
def test_what_is_wrong_is_said(ops: DeviceOps, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(f"paged_index_scores was given {said}")):
        ops.paged_index_scores(**scores(**changed))


@BOTH
def test_arguments_by_place_are_looked_at_too(ops: DeviceOps) -> None:
    x = torch.zeros(2, 512, dtype=torch.bfloat16)
    with pytest.raises(
        AssertionError, match=r"norm_quantise was given weight_D \[D\] with the shape \(256,\); D is 512 by"
    ):
        ops.norm_quantise(x, torch.zeros(256, dtype=torch.bfloat16), 1e-6)
    with pytest.raises(AssertionError, match="norm_quantise was given eps as str; it is read as a number"):
        ops.norm_quantise(x, torch.zeros(512, dtype=torch.bfloat16), "1e-6")


def test_a_digit_is_a_size() -> None:
    with pytest.raises(AssertionError, match=r"2 is 2 by the layout"):
        twins().rotate_quantise_index_q(torch.zeros(1, 1, 128), torch.zeros(1, 3, 32))


def test_a_twin_refuses_weights_of_another_kind() -> None:
    with pytest.raises(AssertionError, match="fp8_linear was given weight as Tensor; it is read as Fp8Weight"):
        twins().fp8_linear(torch.zeros(1, 32), torch.zeros(32, 32))


@pytest.mark.parametrize("ask", [
    lambda ops, tensor: ops.fp8_linear(torch.zeros(1, 128, dtype=torch.bfloat16), ops.prepare_fp8_weight(tensor)),
    lambda ops, tensor: ops.paged_index_scores(**scores()),
    lambda ops, tensor: ops.router(torch.zeros(2, 128), torch.zeros(128), 6, 1.0),
    lambda ops, tensor: ops.expert_permutation(torch.zeros(2, 6, dtype=torch.int32), 4),
], ids=["fp8_linear", "paged_index_scores", "router", "expert_permutation"])  # fmt: skip
def test_a_kernel_in_cuda_refuses_tensors_of_the_host(ask: Callable[..., object]) -> None:
    weight = Fp8Weight(torch.zeros(128, 128).to(torch.float8_e4m3fn), torch.full((4, 4), 120, dtype=torch.uint8))
    with pytest.raises(AssertionError, match=r"given a tensor on cpu; it runs on a GPU: .* take the twins"):
        ask(hopper(), weight)


def test_kernels_refuse_what_they_would_read_beyond() -> None:
    ops, wide = hopper(), torch.zeros(2, 512, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="weight"):
        ops.norm_quantise.__wrapped__(wide, wide[0, :256], 1e-6)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="the number of rows is one int32"):
        ops.swiglu_quantise.__wrapped__(wide, None, 10.0, torch.zeros(0, dtype=torch.int32))  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="expand_rows was asked for rows of kind 'narrow'"):
        ops.expand_rows("narrow", torch.zeros(1, 1, 528, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32))
    candidates = scores(out_TJ=torch.zeros(3, 32)) | {"blocks_TC": torch.zeros(2, 4, dtype=torch.int32)}
    with pytest.raises(AssertionError, match="3 rows of q and 2 lists of candidate blocks"):
        ops.candidate_scores.__wrapped__(**candidates)  # type: ignore[attr-defined]


@BOTH
def test_a_store_whose_rows_have_no_format_is_refused(ops: DeviceOps) -> None:
    rows = torch.zeros(1, 64, dtype=torch.int32)
    with pytest.raises(
        AssertionError, match=r"a store of rows of 527 bytes for heads of 512; .* give rows of 528 or 288"
    ):
        ops.sparse_attention(
            torch.zeros(1, 64, 512, dtype=torch.bfloat16), torch.zeros(1, 64, 527, dtype=torch.uint8), rows, None, None,
            torch.zeros(64), 0.04, torch.zeros(1, 2, 32),
        )  # fmt: skip


def test_no_rows_are_no_rows() -> None:
    codes, powers = torch.zeros(4, 64).to(torch.float8_e4m3fn), torch.zeros(4, 2, dtype=torch.uint8)
    assert twins().engram_gather(codes, powers, torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 192)
    none, starts = torch.zeros(0, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    assert twins().accepted_lengths(none, torch.zeros(2, 4, dtype=torch.int32), starts).tolist() == [0, 0]
