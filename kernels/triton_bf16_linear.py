"""x · weightᵀ for bfloat16 weights, float32 accumulation, bfloat16 or float32 out. Twin: deepinfer/ops/bf16_linear.py.

Computed as outᵀ = weight · xᵀ, so that one row and a thousand use the same matrix instructions. K is cut into `segments` by the
weight's shape alone; a segment is one chain of products from zero and the segments are added from first to last, whether they
are spread over programs (few rows: who comes last adds) or follow each other in one. So a row's bits depend on that row alone.

Legend: T rows · K inputs · N outputs.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, fetch_soon, wait_for_earlier_launches
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

PARTIAL_NUMBERS = 8 << 20  # float32 numbers of all spread segments together, at most
PLAIN = bool(triton.knobs.runtime.interpret)  # the interpreter multiplies float32 only
PROGRAMS = 132  # of a launch with small tiles of tokens, at most: one a processor
TOKEN_GROUP = 16  # token tiles that share weight rows in the second-level cache


@triton.jit(do_not_specialize=["num_tokens"])  # or steps of other sizes would wait for their own compilation
def _linear(
    x_map, weight_map, weight_ptr, out, partials, arrivals, num_tokens, num_outputs,
    K: tl.constexpr, SEGMENTS: tl.constexpr, SPREAD: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    LENGTH: tl.constexpr = K // SEGMENTS
    token_tiles, row_tiles = tl.cdiv(num_tokens, TOKENS), tl.cdiv(num_outputs, ROWS)
    index = tl.program_id(0)
    segment = 0
    if SPREAD:
        segment = index % SEGMENTS
        index = index // SEGMENTS
    group, rest = index // (row_tiles * GROUP), index % (row_tiles * GROUP)
    width = min(GROUP, token_tiles - group * GROUP)
    row, token = rest // width * ROWS, (group * GROUP + rest % width) * TOKENS

    if SPREAD:  # few tiles, which the first load would wait for long
        fetch_row = tl.minimum(row + tl.arange(0, ROWS), num_outputs - 1)
        fetch_soon(weight_ptr + fetch_row.to(tl.int64) * K + segment * LENGTH, 2 * LENGTH)
    wait_for_earlier_launches()
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    # flat: the loads of a segment begin while the one before is multiplied
    for part in tl.range(1 if SPREAD else SEGMENTS, flatten=SEGMENTS > 1 and not SPREAD):
        sums = tl.zeros([ROWS, TOKENS], tl.float32)
        first = (segment + part) * LENGTH
        for k in range(0, LENGTH, STEP):
            weight = weight_map.load([row, first + k])
            x = x_map.load([token, first + k])
            if PLAIN:
                sums = tl.dot(weight.to(tl.float32), x.T.to(tl.float32), sums, input_precision="ieee")
            else:
                sums = tl.dot(weight, x.T, sums)
        total = sums if SEGMENTS == 1 or SPREAD else total + sums

    rows, tokens = tl.arange(0, ROWS), tl.arange(0, TOKENS)
    done = True
    if SPREAD:
        places = partials + index * (SEGMENTS * ROWS * TOKENS) + rows[:, None] * TOKENS + tokens[None, :]
        tl.store(places + segment * (ROWS * TOKENS), total)
        tl.debug_barrier()  # every thread's part is stored before one thread counts this program in
        done = tl.atomic_add(arrivals + index, 1) == SEGMENTS - 1
        if done:
            tl.store(arrivals + index, 0)  # ready for the next launch
            total = tl.zeros([ROWS, TOKENS], tl.float32)
            for part in range(SEGMENTS):
                total += tl.load(places + part * (ROWS * TOKENS), cache_modifier=".cg")
    if done:
        rows, tokens = row + rows, token + tokens
        to = out + tokens.to(tl.int64)[None, :] * num_outputs + rows[:, None]
        tl.store(
            to, total.to(out.dtype.element_ty), mask=(rows[:, None] < num_outputs) & (tokens[None, :] < num_tokens)
        )


def bf16_linear(x_TK: Tensor, weight_NK: Tensor, dtype: torch.dtype) -> Tensor:
    """x · weightᵀ [T, N] as bfloat16 or float32 `dtype`; x and weight bfloat16, contiguous, K a multiple of 64."""
    assert x_TK.dtype == weight_NK.dtype == torch.bfloat16 and dtype in (torch.bfloat16, torch.float32), (
        f"bf16_linear was given x {x_TK.dtype}, a weight {weight_NK.dtype} and asked for {dtype}: it multiplies bfloat16 "
        "and returns bfloat16 or float32"
    )
    assert x_TK.is_contiguous() and weight_NK.is_contiguous() and x_TK.shape[1] == weight_NK.shape[1], (
        f"bf16_linear was given x {tuple(x_TK.shape)} and a weight {tuple(weight_NK.shape)}: x [T, K] and weight [N, K] are "
        "contiguous and have one K"
    )
    (num_tokens, inputs), outputs = x_TK.shape, weight_NK.shape[0]
    assert inputs % 64 == 0, (
        f"bf16_linear was given K = {inputs}; a step takes 64 columns: pad x and weight with zeros to a multiple"
    )
    out_TN = x_TK.new_empty(num_tokens, outputs, dtype=dtype)
    if num_tokens == 0:
        return out_TN
    segments = num_segments(outputs, inputs)
    rows, tokens, warps, stages = choose(num_tokens, outputs, segments)
    tiles = triton.cdiv(num_tokens, tokens) * triton.cdiv(outputs, rows)
    spread = segments > 1 and tiles * segments * rows * tokens <= PARTIAL_NUMBERS and tiles < 64
    step = 128 if inputs // segments % 128 == 0 and tokens < 128 else 64
    partials, arrivals = _workspace(x_TK.device)
    _linear[(tiles * (segments if spread else 1),)](
        TensorDescriptor.from_tensor(x_TK, [tokens, step]),
        TensorDescriptor.from_tensor(weight_NK, [rows, step]),
        *(
            weight_NK,
            out_TN,
            partials,
            arrivals,
            num_tokens,
            outputs,
            inputs,
            segments,
            spread,
            rows,
            tokens,
            step,
            TOKEN_GROUP,
            PLAIN,
        ),
        num_warps=warps,
        num_stages=stages,
        **OVERLAP,
    )
    return out_TN


def num_segments(num_outputs: int, num_inputs: int) -> int:
    """Parts of K, four at most and of 1024 columns or more, for weights too small to occupy a device. By the shape alone."""
    segments = 1
    while (
        segments < 4
        and num_outputs * segments < 8192
        and num_inputs // segments >= 2048
        and num_inputs % (128 * segments) == 0
    ):
        segments *= 2
    return segments


def choose(num_tokens: int, num_outputs: int, segments: int) -> tuple[int, int, int, int]:
    """(weight rows, tokens) of a tile, warps and stages: they change times, never bits."""
    if num_tokens > 128 and num_outputs >= 16384:
        tiles = -(-num_tokens // 128)
        # an odd number of few tiles of 128 takes less time than half as many of 256, the last of them half empty
        return (256, 128, 8, 3) if tiles % 2 and tiles < 8 else (128, 256, 8, 4)
    if num_outputs >= 16384:
        return 128, max(16, triton.next_power_of_2(num_tokens)), 4, 4
    for tokens in (16, 32, 64):
        if (
            num_tokens <= tokens
            or triton.cdiv(num_tokens, tokens) * triton.cdiv(num_outputs, 64) * segments <= PROGRAMS
        ):
            return 64, tokens, 4, 4
    return (64, 128, 4, 4) if num_tokens <= 128 or num_outputs <= 128 else (128, 128, 8, 5)


@cache
def _workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    """Sums of segments, and arrivals per tile, which every launch leaves at zero. They outlive every graph that uses them.

    Launches of one device share them: call `bf16_linear` on one stream at a time, and replay its graphs one at a time.
    """
    assert device.type != "cuda" or not torch.cuda.is_current_stream_capturing(), (
        f"bf16_linear was captured into a graph before it ran once on {device}: what its segments share would lie in that "
        "graph's memory and go with it. Call it once before the capture, as any kernel that Triton has yet to compile"
    )
    return torch.empty(PARTIAL_NUMBERS, device=device), torch.zeros(1 << 16, dtype=torch.int32, device=device)
