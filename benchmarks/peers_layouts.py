"""Our numbers in other people's layouts.

Legend: T rows · K inputs · N outputs · J cache rows · P rows of a page · G groups of columns.
"""

import torch
from torch import Tensor

E4M3_LARGEST = 448.0
V4_PLAIN, V4_GROUP, V4_ROTATED = 448, 64, 64  # a V4 cache row: FP8 dims, dims of one scale, bf16 dims
V4_DATA_BYTES = V4_PLAIN + 2 * V4_ROTATED
V4_SCALE_BYTES = 8  # 7 E8M0 bytes and one of padding


def fp8_rows(x_TK: Tensor, group: int = 128) -> tuple[Tensor, Tensor]:
    """E4M3 codes [T, K] and float32 scales [T, K / group]: amax / 448 of each group of a row."""
    groups = x_TK.float().unflatten(-1, (-1, group))
    scale = groups.abs().amax(-1).clamp(min=1e-10) / E4M3_LARGEST
    return (groups / scale.unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(-2), scale


def fp8_blocks(weight_NK: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
    """E4M3 codes [N, K] and float32 scales [N / block, K / block]. N and K are multiples of the block."""
    rows, columns = weight_NK.shape
    blocks = weight_NK.float().view(rows // block, block, columns // block, block)
    scale = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-10) / E4M3_LARGEST
    codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    return codes.view(rows, columns), scale


def fp8_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes and one float32 scale for the whole tensor."""
    scale = x.float().abs().amax().clamp(min=1e-10) / E4M3_LARGEST
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def column_major(scale_TG: Tensor, align: int = 4) -> Tensor:
    """The same numbers [T, G], columns adjacent and each of a whole number of `align` elements: bulk copies want 16 bytes."""
    return padded_columns(scale_TG, align)[: scale_TG.shape[0]]


def padded_columns(scale_TG: Tensor, align: int = 4) -> Tensor:
    """Columns adjacent and zeros at their end: [T rounded up to `align`, G]."""
    rows, groups = scale_TG.shape
    turned = scale_TG.new_zeros(groups, -(-rows // align) * align)
    turned[:, :rows] = scale_TG.t()
    return turned.t()


def v4_pages(keys_JK: Tensor, page: int = 64) -> Tensor:
    """Cache rows of DeepSeek-V4 as FlashMLA reads them, [J / P, P, 1, 584] uint8 by name only.

    A page holds P times 448 E4M3 codes and 64 bf16 numbers, then P times 7 E8M0 bytes of 64 dims each and a byte of padding.
    Pages lie a multiple of 576 bytes apart.
    """
    rows, pages = keys_JK.shape[0], keys_JK.shape[0] // page
    groups = keys_JK[:, :V4_PLAIN].float().unflatten(1, (-1, V4_GROUP))
    exponent = torch.ceil(torch.log2(groups.abs().amax(-1).clamp(min=2.0**-100) / E4M3_LARGEST))
    codes = (groups * torch.exp2(-exponent).unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(1).view(torch.uint8)
    rotated = keys_JK[:, V4_PLAIN:].to(torch.bfloat16).contiguous().view(torch.uint8)
    scales = torch.zeros(rows, V4_SCALE_BYTES, dtype=torch.uint8, device=keys_JK.device)
    scales[:, : V4_PLAIN // V4_GROUP] = (exponent + 127).to(torch.uint8)
    pitch = -(-page * (V4_DATA_BYTES + V4_SCALE_BYTES) // V4_DATA_BYTES) * V4_DATA_BYTES
    cache = torch.zeros(pages, pitch, dtype=torch.uint8, device=keys_JK.device)
    border = page * V4_DATA_BYTES
    cache[:, :border] = torch.cat((codes, rotated), dim=1).view(pages, -1)
    cache[:, border : border + page * V4_SCALE_BYTES] = scales.view(pages, -1)
    row = V4_DATA_BYTES + V4_SCALE_BYTES
    return cache.as_strided((pages, page, 1, row), (pitch, row, row, 1))


def index_pages(keys_JK: Tensor, page: int = 64) -> Tensor:
    """Index keys in DeepGEMM's pages [J / P, P, 1, K + 4] uint8 by name only: P rows of E4M3 codes, then P float32 scales."""
    rows, dims = keys_JK.shape
    codes, scale = fp8_rows(keys_JK, dims)
    codes, scale = codes.view(torch.uint8).view(-1, page * dims), scale.view(-1, page).view(torch.uint8)
    return torch.cat((codes, scale), dim=1).view(rows // page, page, 1, dims + 4)


def padded_groups(counts_E: list[int], align: int) -> list[int]:
    """The first row of every group, and one past the last, where each group takes a whole number of `align` rows."""
    starts = [0]
    for count in counts_E:
        starts.append(starts[-1] + -(-count // align) * align)
    return starts
