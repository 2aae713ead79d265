"""Products with dense FP8 weights (32 × 32 blocks) on Hopper; see cuda_fp8_linear.cu. Twins: deepinfer/ops/fp8_linear.py.

A weight is re-laid once (`prepare_fp8_weight`), into records of 64 rows × 64 columns that a plain bulk copy brings to shared
memory in the order in which threads use them: 4,096 codes and four scales as bfloat16 pairs, 4,112 bytes.

Legend: T rows · K inputs · N outputs · G groups.
"""

from dataclasses import asdict, dataclass
from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from deepinfer.kernels.fp8_linear_shapes import STEP, Shape, choose, num_segments
from deepinfer.kernels.tensor_map import box_map
from torch import Tensor

from deepinfer.ops.fp8_linear import Fp8Weight

ROWS = 128  # of weight: a pair of records
CODE_BYTES = 64 * STEP  # of a record, 64 rows
RECORD_BYTES = CODE_BYTES + 16
# the places of two codes in a 32-bit word as the exponent and mantissa of bfloat16, and how two further codes fill the gaps
PLACES, TURNED, SHIFTED = 0x87F087F0 - (1 << 32), 0x87808780 - (1 << 32), 0x00700070
EXPONENT_SHIFT = 120  # a code in bfloat16's places reads as its number times 2^-120
LARGEST_SCALE = 134  # 2^(134 - 127 + 120) is bfloat16's largest power of two
SMALLEST_SCALE = 3  # 2^-9 · 2^(3 - 127) is bfloat16's smallest subnormal
SHARED_BYTES = 227 << 10  # of a processor, less 1 KB a block
PLANE_BYTES = 2048  # of the sums of 64 rows and 8 tokens


@dataclass(frozen=True)
class PreparedFp8Weight:
    """uint8 [N / 128, K / 64, 2, 4112]: records of 64 × 64 numbers, two above each other side by side."""

    records: Tensor
    num_outputs: int
    num_inputs: int


def prepare_fp8_weight(weight: Fp8Weight) -> PreparedFp8Weight:
    """The weight in the kernel's order. ValueError for a weight that holds NaN or scales outside 2^-124 … 2^7."""
    outputs, inputs = weight.codes_NK.shape
    assert outputs % ROWS == 0 and inputs % 128 == 0, (
        f"an FP8 weight [N, K] to prepare for Hopper is {outputs} × {inputs}; a block of the kernel takes 128 rows and "
        "its steps 128 columns: N and K must be multiples of 128. Pad the weight with zeros, or take the twin"
    )
    assert weight.codes_NK.dtype == torch.float8_e4m3fn and weight.scale.dtype == torch.uint8, (
        f"an FP8 weight to prepare has codes {weight.codes_NK.dtype} and scales {weight.scale.dtype}; the records hold "
        "the release's bytes: give float8_e4m3fn codes and E8M0 bytes as uint8 (Tensor.view re-reads bytes)"
    )
    assert weight.scale.shape == (outputs // 32, inputs // 32), (
        f"an FP8 weight {outputs} × {inputs} to prepare came with scales {tuple(weight.scale.shape)}; every 32 × 32 "
        f"block has one: give {outputs // 32} × {inputs // 32}. Weights in 128 × 128 blocks are prepare_fp8_weight_128's"
    )
    codes = weight.codes_NK.view(torch.uint8)
    lowest, highest = weight.scale.aminmax()
    if lowest < SMALLEST_SCALE or highest > LARGEST_SCALE or ((codes & 0x7F) == 0x7F).any():
        raise ValueError(
            "an FP8 weight to prepare has NaN codes, or scales that bfloat16 cannot hold exactly: its scale bytes are "
            f"{int(lowest)} … {int(highest)}, the kernel takes {SMALLEST_SCALE} … {LARGEST_SCALE}. Check the checkpoint"
        )
    records = codes.new_empty(outputs // 64, inputs // STEP, RECORD_BYTES)
    # row = 64 · tile + 16 · warp + 8 · lower + group; column = 64 · step + 32 · block + 16 · k16 + 8 · k8 + 2 · pair + odd
    parts = codes.view(outputs // 64, 4, 2, 8, inputs // STEP, 2, 2, 2, 4, 2).to(torch.int32)
    parts = parts.permute(2, 9, 0, 4, 5, 1, 3, 8, 6, 7)  # lower, odd; tile, step, block, warp, group, pair, k16, k8
    placed = (parts & 0x80) << 8 | (parts & 0x7F) << 4
    upper, lower = (half[0] | half[1] << 16 for half in placed)
    turned = lower & TURNED
    words = upper | turned << 4 | turned >> 28 & 0xF | (lower & SHIFTED) >> 4
    records[..., :CODE_BYTES] = words.contiguous().view(torch.uint8).view(*records.shape[:2], CODE_BYTES)
    scale = weight.scale.view(outputs // 64, 2, inputs // STEP, 2).permute(0, 2, 1, 3).reshape(*records.shape[:2], 4)
    powers = (scale.to(torch.int32) + EXPONENT_SHIFT) * 0x00800080  # bfloat16, twice
    records[..., CODE_BYTES:] = powers.contiguous().view(torch.uint8)
    pairs = records.unflatten(0, (-1, 2)).transpose(1, 2).contiguous()
    if pairs.is_cuda:
        torch.cuda.synchronize(pairs.device)  # launches fetch weights before they wait for earlier work
    return PreparedFp8Weight(pairs, outputs, inputs)


def restore_fp8_weight(prepared: PreparedFp8Weight) -> Fp8Weight:
    """What `prepare_fp8_weight` was given."""
    outputs, inputs = prepared.num_outputs, prepared.num_inputs
    tiles, steps = outputs // 64, inputs // STEP
    records = prepared.records.transpose(1, 2).flatten(0, 1)
    words = records[..., :CODE_BYTES].contiguous().view(torch.int32)
    lower = (words << 28 | words >> 4 & 0x0FFFFFFF) & TURNED | words << 4 & SHIFTED
    placed = torch.stack([words & PLACES, lower])
    placed = torch.stack([placed, placed >> 16], 1)
    codes = (placed >> 8 & 0x80 | placed >> 4 & 0x7F).to(torch.uint8).view(2, 2, tiles, steps, 2, 4, 8, 4, 2, 2)
    codes = codes.permute(2, 5, 0, 6, 3, 4, 8, 9, 7, 1).reshape(outputs, inputs)
    powers = records[..., CODE_BYTES:].contiguous().view(torch.int32) & 0xFFFF
    scale = ((powers >> 7) - EXPONENT_SHIFT).to(torch.uint8).view(tiles, steps, 2, 2).permute(0, 2, 1, 3)
    return Fp8Weight(codes.view(torch.float8_e4m3fn), scale.reshape(outputs // 32, inputs // 32))


def random_fp8_weight(num_outputs: int, num_inputs: int, seed: int, device: str = "cuda") -> Fp8Weight:
    """Every finite code, subnormal ones too, and scales from 2^-17 to 2^-4, so that a wrong block shows."""
    generator = torch.Generator(device).manual_seed(seed)
    codes = torch.randint(0, 256, (num_outputs, num_inputs), generator=generator, device=device, dtype=torch.uint8)
    codes = torch.where((codes & 0x7F) == 0x7F, codes - 1, codes)
    scale = torch.randint(110, 124, (num_outputs // 32, num_inputs // 32), generator=generator, device=device)
    return Fp8Weight(codes.view(torch.float8_e4m3fn), scale.to(torch.uint8))


def fp8_linear(x_TK: Tensor, weight: PreparedFp8Weight, invariant: bool = True) -> Tensor:
    """x · weightᵀ bfloat16 [T, N] of x bfloat16 [T, K] (any, not only the FP8 grid).

    A row's bits depend on that row alone; without `invariant`, also on the number of rows.
    """
    _check(weight, "fp8_linear")
    assert x_TK.shape[1] == weight.num_inputs, (
        f"fp8_linear was given x {tuple(x_TK.shape)} and a weight of {weight.num_inputs} inputs: x is [T, {weight.num_inputs}]"
    )
    return _launch(x_TK, weight, 1, invariant)


def fp8_grouped_linear(x_TGK: Tensor, weight: PreparedFp8Weight, invariant: bool = True) -> Tensor:
    """Block-diagonal product bfloat16 [T, N] of x bfloat16 [T, G, K], contiguous; rows g · N / G … meet group g."""
    groups = x_TGK.shape[1]
    _check(weight, "fp8_grouped_linear")
    assert x_TGK.is_contiguous() and x_TGK.shape[2] == weight.num_inputs, (
        f"fp8_grouped_linear was given x {tuple(x_TGK.shape)} with strides {x_TGK.stride()} and a weight of "
        f"{weight.num_inputs} inputs; the copy engine sees groups as columns of one matrix: give a contiguous "
        f"x [T, G, {weight.num_inputs}]"
    )
    assert weight.num_outputs % (ROWS * groups) == 0, (
        f"fp8_grouped_linear was given {groups} groups and a weight of {weight.num_outputs} outputs; a block's 128 rows "
        "meet one group: the outputs of a group must be a multiple of 128"
    )
    return _launch(x_TGK.flatten(1), weight, groups, invariant)


def _check(weight: object, asking: str) -> None:
    assert isinstance(weight, PreparedFp8Weight), (
        f"{asking} on Hopper was given a {type(weight).__name__}; the kernel reads records of its own order: prepare the "
        "weight once, at load, by prepare_fp8_weight"
    )


def _launch(x_TK: Tensor, weight: PreparedFp8Weight, groups: int, invariant: bool) -> Tensor:
    num_tokens = x_TK.shape[0]
    out_TN = x_TK.new_empty(num_tokens, weight.num_outputs)
    if num_tokens == 0:
        return out_TN
    device = device_of(x_TK)
    processors = num_multiprocessors(device)
    size = num_tokens, weight.num_outputs, weight.num_inputs
    segments = num_segments(weight.num_outputs, weight.num_inputs)
    shape = choose(*size, segments, processors, groups)
    if shape.sums == "SEQUENCE" and not invariant:
        segments, shape = 1, choose(*size, 1, processors, groups)
    assert segments == 1 or shape.sums != "CHAIN", "a chain is one segment"
    cluster, tiles = shape.cluster(segments), shape.tiles(num_tokens, weight.num_outputs)
    _kernel(device, shape, cluster)(
        (tiles * cluster if cluster > 1 else min(tiles, processors * shape.resident),),
        box_map(x_TK, shape.tokens),
        *(weight.records, out_TN, num_tokens, weight.num_outputs, weight.num_inputs // STEP),
        *(weight.num_outputs // groups, segments),
    )
    return out_TN


@cache
def _kernel(device: int, shape: Shape, cluster: int) -> Launch:
    """The variant for `shape`, with as many stages as shared memory holds beside what leaves it and what clusters send."""
    many = shape.tokens % 64 == 0 and shape.resident == 1 and shape.warpgroups == 2
    place = (64 if many else min(shape.tokens, 32)) * 128
    sums = -(-(shape.tokens // 8) // cluster) * cluster * PLANE_BYTES if shape.sums == "SENT" else 0
    stage = shape.depth * (shape.tokens * STEP * 2 + shape.warpgroups * RECORD_BYTES) + 16
    beside = 128 + shape.warpgroups * (place + sums)
    stages = (SHARED_BYTES // shape.resident - 2048 - beside) // stage
    macros = {name.upper(): value for name, value in asdict(shape).items()} | {"STAGES": stages, "SUMS_BYTES": sums}
    return CudaProgram("cuda_fp8_linear.cu", macros).kernel(
        "fp8_linear",
        threads=128 * shape.warpgroups + (128 if shape.tokens >= 128 or shape.warpgroups > 2 else 32),
        shared_bytes=1024 + beside + stages * stage,
        cluster=(cluster, 1, 1) if cluster > 1 else None,
        overlap=True,
    )
