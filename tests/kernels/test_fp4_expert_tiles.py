"""Re-laid MXFP4 experts: the same weights, in the order in which the Hopper kernel reads them, and what is refused."""

import pytest
import torch
from deepinfer.kernels import cuda_fp4_experts_up, cuda_fp4_grouped_linear, triton_fp4_grouped_linear
from deepinfer.kernels.fp4_expert_tiles import CODE_BYTES, tile_experts, untile_experts
from fp4_expert_cases import activations, random_experts, starts_of
from torch import Tensor

from deepinfer.ops.fp4_experts import Fp4Experts


@pytest.mark.parametrize("paired", (False, True))
def test_tiles_hold_the_same_weights(paired: bool) -> None:
    weight = random_experts(2, 512, 384, "cpu", (0, 129))
    tiles = tile_experts(weight, paired)
    assert tiles.shape == (2, 512, 384)
    assert tiles.pieces_EMCB.numel() == weight.codes_ENB.numel() + weight.scale_ENG.numel()
    back = untile_experts(tiles)
    assert torch.equal(back.codes_ENB, weight.codes_ENB) and torch.equal(back.scale_ENG, weight.scale_ENG)


@pytest.mark.parametrize("paired", (False, True))
def test_tiles_lie_as_the_matrix_instruction_reads_them(paired: bool) -> None:
    """The kernel's own decoding of a piece, thread by thread, in numbers."""
    weight = random_experts(1, 256, 128, "cpu", (100, 129))
    piece = tile_experts(weight, paired).pieces_EMCB[0, 0, 0]
    # group warp row lane steps step
    words = piece[:CODE_BYTES].view(torch.int32).view(4, 4, 8, 4, 2, 2).long() & 0xFFFFFFFF
    scales = piece[CODE_BYTES:].view(4, 4, 8, 2, 2)  # group warp row columns half
    first, second = words.unbind(-1)
    rest = first & 0x60306030 | second & 0x9FCF9FCF
    of_first = (first, first << 6, _turned(first, 4), rest << 2)
    of_second = (_turned(second, 2), second << 4, _turned(second, 6), _turned(rest, 8))
    # group warp row lane step register
    fields = torch.stack((*of_first, *of_second), -1).unflatten(-1, (2, 4)).flatten(4, 5) & 0x81C081C0
    values_NK = torch.zeros(256, 64, dtype=torch.float64)
    for group, warp, row, lane, step in torch.cartesian_prod(*map(torch.arange, (4, 4, 8, 4, 4))).tolist():
        for register in range(4):
            half, far = register % 2, register // 2
            scale = 2.0 ** (int(scales[group, warp, row, step // 2, half]) - 127)
            bits = int(fields[group, warp, row, lane, step, register])
            n = (group * 4 + warp) * 16 + row // 2 * 4 + half * 2 + row % 2
            if paired:
                n = half * 128 + (group * 4 + warp) * 8 + row
            for parity in range(2):
                k = step * 16 + far * 8 + lane * 2 + parity
                values_NK[n, k] = _bf16(bits >> 16 * parity & 0xFFFF) * scale
    assert torch.equal(values_NK, weight.dequantised(0, torch.float64)[:, :64])


def _turned(words: Tensor, right: int) -> Tensor:
    return words >> right | words << 32 - right


def _bf16(bits: int) -> float:
    word = bits << 16 if bits < 0x8000 else (bits << 16) - (1 << 32)
    return torch.tensor(word).int().view(torch.float32).double().item()


def test_a_scale_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale byte 255.*up to 128 \(2\.0\).*Check the checkpoint"):
        tile_experts(random_experts(1, 256, 128, "cpu", (255, 256)))


def test_weights_of_another_layout_are_refused() -> None:
    weight = random_experts(2, 256, 128, "cpu")
    with pytest.raises(AssertionError, match=r"256 × 192.*takes 128 columns: pad"):
        tile_experts(random_experts(2, 256, 192, "cpu"))
    with pytest.raises(AssertionError, match=r"came with scales \(2, 256, 3\).*give \(2, 256, 4\)"):
        tile_experts(Fp4Experts(weight.codes_ENB, weight.scale_ENG[:, :, :3]))
    with pytest.raises(AssertionError, match=r"codes torch\.int8.*uint8"):
        tile_experts(Fp4Experts(weight.codes_ENB.view(torch.int8), weight.scale_ENG))
    with pytest.raises(AssertionError, match=r"came as TiledFp4Experts.*Fp4Experts\(codes, scales\)"):
        tile_experts(tile_experts(weight))


def test_unprepared_weights_and_rows_of_another_kind_are_refused() -> None:
    weight, starts_E1 = random_experts(2, 256, 128, "cpu"), starts_of([2, 1], "cpu")
    x_TK, weights_P = activations(3, 128, "cpu"), torch.ones(3)
    linear, up = cuda_fp4_grouped_linear.fp4_grouped_linear, cuda_fp4_experts_up.fp4_experts_up
    with pytest.raises(AssertionError, match=r"given Fp4Experts.*tile_experts\(weight\)"):
        linear(x_TK, None, starts_E1, weight)
    with pytest.raises(AssertionError, match=r"given TiledFp4Experts.*untile_experts\(weight\)"):
        triton_fp4_grouped_linear.fp4_grouped_linear(x_TK, None, starts_E1, tile_experts(weight))
    with pytest.raises(AssertionError, match=r"given Fp4Experts.*tile_experts\(weight, paired=True\)"):
        up(x_TK, None, starts_E1, weights_P, weight)
    with pytest.raises(AssertionError, match=r"paired=True were given to fp4_grouped_linear.*paired=False"):
        linear(x_TK, None, starts_E1, tile_experts(weight, paired=True))
    with pytest.raises(AssertionError, match=r"torch\.float32 \(3, 128\).*bfloat16 \[T, 128\]"):
        linear(x_TK.float(), None, starts_E1, tile_experts(weight))
    with pytest.raises(AssertionError, match=r"torch\.int64 \(3,\).*int32 \[3\]"):
        linear(x_TK, None, starts_E1.long(), tile_experts(weight))
    with pytest.raises(AssertionError, match=r"routing weights.*\(2,\).*float32 \[3\]"):
        up(x_TK, None, starts_E1, weights_P[:2], tile_experts(weight, paired=True))
