"""LOSSY FP8 products in 128 × 128 blocks on Hopper's FP8 matrix units; see cuda_fp8_linear_128.cu.

Twin: deepinfer/ops/fp8_linear_128.py. For many rows, where arithmetic binds; for few the exact product reads the same bytes.
The weight is re-laid once into records of 128 × 128 codes, swizzled as wgmma reads them, with their scale.

Legend: T rows · K inputs · N outputs.
"""

from dataclasses import dataclass
from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from deepinfer.kernels.tensor_map import box_map
from torch import Tensor

from deepinfer.formats.scales import decode_e8m0
from deepinfer.ops.fp8_linear_128 import Fp8Weight128

BLOCK = 128
CODE_BYTES = BLOCK * BLOCK
RECORD_BYTES = CODE_BYTES + 16
STAGES, STAGE_BYTES = 5, 2 * CODE_BYTES + 1024
SHARED_BYTES = 1024 + STAGES * (STAGE_BYTES + 16) + 2 * 8192


@dataclass(frozen=True)
class PreparedFp8Weight128:
    """uint8 [N / 128, K / 128, 16400]."""

    records: Tensor
    num_outputs: int
    num_inputs: int


def prepare_fp8_weight_128(weight: Fp8Weight128) -> PreparedFp8Weight128:
    """The weight in the kernel's order; N and K are multiples of 128."""
    outputs, inputs = weight.codes_NK.shape
    assert outputs % BLOCK == 0 and inputs % BLOCK == 0, (
        f"an FP8 weight [N, K] in 128 × 128 blocks is {outputs} × {inputs}; records hold whole blocks: N and K must be "
        "multiples of 128. Pad the weight with zeros before requantise_128, or take the twin"
    )
    assert weight.codes_NK.dtype == torch.float8_e4m3fn and weight.scale.shape == (outputs // BLOCK, inputs // BLOCK), (
        f"an FP8 weight {outputs} × {inputs} in 128 × 128 blocks came with codes {weight.codes_NK.dtype} and scales "
        f"{tuple(weight.scale.shape)}; every block has one scale: give what requantise_128 returns"
    )
    blocks = weight.codes_NK.view(torch.uint8).view(outputs // BLOCK, BLOCK, inputs // BLOCK, 8, 16).transpose(1, 2)
    records = blocks.new_empty(outputs // BLOCK, inputs // BLOCK, RECORD_BYTES)
    records[..., :CODE_BYTES] = blocks[:, :, *_swizzled(blocks.device)].flatten(2)
    scale = decode_e8m0(weight.scale, torch.float32).unsqueeze(-1).expand(-1, -1, 4).contiguous()
    records[..., CODE_BYTES:] = scale.view(torch.uint8)
    return PreparedFp8Weight128(records, outputs, inputs)


def restore_codes_128(prepared: PreparedFp8Weight128) -> Tensor:
    """The codes float8_e4m3fn [N, K] of the weight that `prepare_fp8_weight_128` was given."""
    tiles, steps = prepared.num_outputs // BLOCK, prepared.num_inputs // BLOCK
    blocks = prepared.records[..., :CODE_BYTES].reshape(tiles, steps, BLOCK, 8, 16)[
        :, :, *_swizzled(prepared.records.device)
    ]
    codes = blocks.transpose(1, 2).reshape(prepared.num_outputs, prepared.num_inputs)
    return codes.view(torch.float8_e4m3fn)


def scales_by_column(scale: Tensor) -> Tensor:
    """float32 [K / 128, T rounded up to 128] from E8M0 bytes uint8 [T, K / 128]: the kernel's layout of activation scales."""
    num_tokens, groups = scale.shape
    turned = scale.new_empty(groups, -(-num_tokens // BLOCK) * BLOCK, dtype=torch.float32)
    turned[:, :num_tokens] = decode_e8m0(scale, torch.float32).t()
    return turned


def fp8_linear_128(codes_TK: Tensor, scales: Tensor, weight: PreparedFp8Weight128) -> Tensor:
    """LOSSY: bfloat16 [T, N] of codes float8_e4m3fn [T, K], `scales` of `scales_by_column`. Rows know no neighbours."""
    num_tokens, inputs = codes_TK.shape
    assert isinstance(weight, PreparedFp8Weight128), (
        f"fp8_linear_128 on Hopper was given a {type(weight).__name__}; the kernel reads records of its own order: prepare the "
        "weight once, at load, by prepare_fp8_weight_128"
    )
    assert codes_TK.dtype == torch.float8_e4m3fn and codes_TK.is_contiguous() and inputs == weight.num_inputs, (
        f"fp8_linear_128 was given codes {codes_TK.dtype} {tuple(codes_TK.shape)} with strides {codes_TK.stride()}: they are "
        f"contiguous float8_e4m3fn [T, {weight.num_inputs}], as quantise_rows_128 returns them"
    )
    columns = inputs // BLOCK, -(-num_tokens // BLOCK) * BLOCK
    assert scales.dtype == torch.float32 and scales.is_contiguous() and scales.shape == columns, (
        f"fp8_linear_128 was given scales {scales.dtype} {tuple(scales.shape)}; they lie by columns, padded to whole tiles "
        f"of 128 rows: give scales_by_column's contiguous float32 {columns}"
    )
    out_TN = codes_TK.new_empty(num_tokens, weight.num_outputs, dtype=torch.bfloat16)
    tiles = -(-num_tokens // BLOCK) * (weight.num_outputs // BLOCK)
    if num_tokens:
        _kernel(device_of(codes_TK))(
            (min(tiles, num_multiprocessors(device_of(codes_TK))),),
            box_map(codes_TK.view(torch.bfloat16), BLOCK),
            *(weight.records, scales, out_TN, num_tokens, weight.num_outputs, inputs // BLOCK, scales.shape[1]),
        )
    return out_TN


@cache
def _kernel(device: int) -> Launch:
    program = CudaProgram("cuda_fp8_linear_128.cu")
    return program.kernel("fp8_linear_128", threads=384, shared_bytes=SHARED_BYTES, overlap=True)


def _swizzled(device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices [128, 8]: 16-byte piece c of row r lies at piece c ^ (r % 8), and back."""
    rows, pieces = torch.arange(BLOCK, device=device)[:, None], torch.arange(8, device=device)[None, :]
    return rows.expand(-1, 8), pieces ^ rows % 8
