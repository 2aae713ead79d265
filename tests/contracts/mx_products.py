"""torch_npu's MX products as its documentation and its own shape checks describe them: arguments looked at, numbers computed.

Codes are FP8 (E4M3) or, where a dtype argument says so, two FP4 numbers a byte; a scale is one E8M0 byte for 32 columns, two
side by side. Weights come inputs first, as views of what is stored outputs first.
"""

from typing import Any

import torch
from torch import Tensor

from deepinfer.formats.tables import decode_e2m1_pairs

E8M0, FP4 = 293, 296  # torch_npu.float8_e8m0fnu, torch_npu.float4_e2m1fn_x2


def quant_matmul(
    x1: Tensor, x2: Tensor, scale: Tensor, pertoken_scale: Tensor, output_dtype: torch.dtype, **named: Any
) -> Tensor:
    assert named["scale_dtype"] == named["pertoken_scale_dtype"] == E8M0 and named["group_sizes"] == [1, 1, 32]
    assert scale.dim() == pertoken_scale.dim() == 3 and pertoken_scale.shape[1] == scale.shape[0]  # pairs along K
    assert pertoken_scale.shape[0] == x1.shape[0] and scale.shape[1] == x2.shape[1]
    assert x2.stride() == (1, x2.shape[0]) and scale.transpose(0, 1).is_contiguous() and x1.is_contiguous()
    assert (named["x1_dtype"] == FP4) == (named["x2_dtype"] == FP4)
    left, right = (
        _numbers(x1, pertoken_scale, named["x1_dtype"]),
        _numbers(x2.t(), scale.transpose(0, 1), named["x2_dtype"]),
    )
    return (left @ right.t()).to(output_dtype)


def grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    antiquant_scale: list[Tensor],
    per_token_scale: list[Tensor],
    group_list: Tensor,
    output_dtype: torch.dtype,
    **named: Any,
) -> list[Tensor]:
    (x_PK,), (codes_EBN,), (scale,), (row_scale,) = x, weight, antiquant_scale, per_token_scale
    assert named["weight_dtype"] == FP4 and named["x_dtype"] is None and x_PK.dtype == torch.float8_e4m3fn
    assert named["per_token_scale_dtype"] == E8M0 and named["scale_dtype"] is None and named["scale"] is None
    assert (named["split_item"], named["group_type"], named["group_list_type"]) == (2, 0, 0)
    assert group_list.dtype == torch.int64 and len(group_list) == len(codes_EBN) and int(group_list[-1]) == len(x_PK)
    assert codes_EBN.stride()[1:] == (1, codes_EBN.shape[1])  # stored [E, N, K / 2]
    assert scale.dim() == 4 and row_scale.dim() == 3 and row_scale.shape[1] == scale.shape[1]
    left, out, start = _numbers(x_PK, row_scale, None), [], 0
    for expert, end in enumerate(group_list.tolist()):
        right = _numbers(codes_EBN[expert].t(), scale[expert].transpose(0, 1), FP4)
        out.append(left[start:end] @ right.t())
        start = end
    return [torch.cat(out).to(output_dtype)]


def _numbers(codes_RC: Tensor, scale_RP2: Tensor, dtype: int | None) -> Tensor:
    assert scale_RP2.dtype == torch.uint8 and scale_RP2.shape[-1] == 2 and codes_RC.element_size() == 1
    plain = decode_e2m1_pairs(codes_RC, torch.float32) if dtype == FP4 else codes_RC.float()
    powers = torch.exp2(scale_RP2.flatten(1).float() - 127).repeat_interleave(32, 1)
    assert plain.shape[1] <= powers.shape[1] < plain.shape[1] + 64
    return plain * powers[:, : plain.shape[1]]
