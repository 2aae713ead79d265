"""DeepGEMM's Hopper kernels as peers, from whichever package brings the module `deep_gemm`.

On SM90 it wants float32 scales: of activations in 1 × 128 groups (columns adjacent, 16-byte pitch), of weights in 128 × 128
blocks. V4.1's weights have 32 × 32 blocks, so they are quantised a second time: its FP8 answers are lossy where ours are exact.

Legend: T rows · K inputs · N outputs · E experts · P rows sorted by expert · I index heads · J keys · S sequences · G groups.
"""

from types import ModuleType

import torch
from peers_call import Call, Reading, peer
from peers_layouts import column_major, fp8_blocks, fp8_rows, index_pages, padded_groups
from torch import Tensor

from deepinfer.formats.fp4 import dequantise_fp4_experts
from deepinfer.formats.fp8 import dequantise_fp8_blocks

PACKAGE = "deep_gemm"
EXACT, FP8_AGAIN, TF32 = 0.005, 0.06, 0.002
ROWS_OF_A_GROUP = 128  # the contiguous layout's alignment
INDEX_PAGE = 64
SPLITS = 16  # parts of an mHC product: with one, few rows leave most of the chip idle


@peer("deep_gemm", package=PACKAGE, tolerance=FP8_AGAIN)
def deep_gemm_fp8(deep_gemm: ModuleType, x_TK: Tensor, codes_NK: Tensor, scale: Tensor) -> Call:
    """fp8_gemm_nt, 1 × 128 by 128 × 128: lossy."""
    x, x_scale = fp8_rows(x_TK)
    weight = fp8_blocks(dequantise_fp8_blocks(codes_NK, scale))
    out_TN = x_TK.new_empty(x_TK.shape[0], codes_NK.shape[0])
    return returning(out_TN, deep_gemm.fp8_gemm_nt, (x, column_major(x_scale)), weight, out_TN)


@peer("deep_gemm", package=PACKAGE, tolerance=FP8_AGAIN)
def deep_gemm_contiguous(deep_gemm: ModuleType, x_PK: Tensor, counts_E: Tensor, codes: Tensor, scale: Tensor) -> Call:
    """m_grouped_fp8_gemm_nt_contiguous: experts of twice the bytes, each padded to whole tiles of 128 rows; lossy."""
    counts = counts_E.tolist()
    starts = padded_groups(counts, ROWS_OF_A_GROUP)
    place_P = torch.cat([torch.arange(start, start + count) for start, count in zip(starts, counts)]).to(x_PK.device)
    expert_of_row = torch.full((starts[-1],), -1, dtype=torch.int32, device=x_PK.device)
    expert_of_row[place_P] = torch.arange(len(counts)).repeat_interleave(counts_E.cpu()).int().to(x_PK.device)
    x = x_PK.new_zeros(starts[-1], x_PK.shape[1])
    x[place_P] = x_PK
    x_codes, x_scale = fp8_rows(x)
    out = x_PK.new_empty(starts[-1], codes.shape[1])
    operands = (x_codes, column_major(x_scale)), fp8_experts(codes, scale), out, expert_of_row
    call = returning(out, deep_gemm.m_grouped_fp8_gemm_nt_contiguous, *operands)
    return Reading(call, lambda whole: whole[place_P])


@peer("deep_gemm", package=PACKAGE, tolerance=FP8_AGAIN)
def deep_gemm_masked(deep_gemm: ModuleType, x_PK: Tensor, counts_E: Tensor, codes: Tensor, scale: Tensor) -> Call:
    """m_grouped_fp8_gemm_nt_masked: room for as many rows in each expert as the fullest has; lossy."""
    counts = counts_E.tolist()
    experts, room = len(counts), -(-max(counts) // 64) * 64
    place_P = torch.cat([torch.arange(count) + e * room for e, count in enumerate(counts)]).to(x_PK.device)
    x = x_PK.new_zeros(experts * room, x_PK.shape[1])
    x[place_P] = x_PK
    x_codes, x_scale = fp8_rows(x)
    turned = x_scale.view(experts, room, -1).transpose(1, 2).contiguous().transpose(1, 2)
    out = x_PK.new_empty(experts, room, codes.shape[1])
    rows_E = counts_E.to(x_PK.device, torch.int32)
    operands = (x_codes.view(experts, room, -1), turned), fp8_experts(codes, scale), out, rows_E
    masked = getattr(deep_gemm, "m_grouped_fp8_gemm_nt_masked", None) or deep_gemm.fp8_m_grouped_gemm_nt_masked
    call = returning(out.view(experts * room, -1), masked, *operands, max(1, sum(counts) // experts))
    return Reading(call, lambda whole: whole[place_P])


@peer("deep_gemm", package=PACKAGE, tolerance=FP8_AGAIN)
def deep_gemm_index_prefill(deep_gemm: ModuleType, q_TIK: Tensor, weight_TI: Tensor, keys_JK: Tensor) -> Call:
    """fp8_mqa_logits: every query against every key of one sequence; keys of 132 bytes where ours have 68."""
    rows, keys = q_TIK.shape[0], keys_JK.shape[0]
    q = q_TIK.to(torch.float8_e4m3fn)
    codes, scale = fp8_rows(keys_JK, keys_JK.shape[1])
    first_T = torch.zeros(rows, dtype=torch.int32, device=q.device)
    operands = (codes, scale.view(-1)), weight_TI.float().contiguous(), first_T, torch.full_like(first_T, keys)
    if hasattr(deep_gemm, "fp8_mqa_logits"):
        return lambda: deep_gemm.fp8_mqa_logits(q, *operands)[:, :keys]
    return lambda: deep_gemm.fp8_fp4_mqa_logits((q, None), *operands, keys)[:, :keys]


@peer("deep_gemm", package=PACKAGE, tolerance=FP8_AGAIN)
def deep_gemm_index_decode(deep_gemm: ModuleType, q_SIK: Tensor, weight_SI: Tensor, keys_SJK: Tensor) -> Call:
    """fp8_paged_mqa_logits: one query of each sequence against that sequence's keys."""
    sequences, keys, dims = keys_SJK.shape
    q = q_SIK.to(torch.float8_e4m3fn).unsqueeze(1)
    cache = index_pages(keys_SJK.reshape(-1, dims), INDEX_PAGE)
    pages = torch.arange(cache.shape[0], dtype=torch.int32, device=q.device).view(sequences, -1)
    length_S1 = torch.full((sequences, 1), keys, dtype=torch.int32, device=q.device)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    plan = deep_gemm.get_paged_mqa_logits_metadata(length_S1, INDEX_PAGE, processors)
    operands = cache, weight_SI.float().contiguous(), length_S1, pages, plan, keys
    if hasattr(deep_gemm, "fp8_paged_mqa_logits"):
        return lambda: deep_gemm.fp8_paged_mqa_logits(q, *operands)[:, :keys]
    return lambda: deep_gemm.fp8_fp4_paged_mqa_logits((q, None), *operands)[:, :keys]


@peer("deep_gemm", package=PACKAGE, tolerance=TF32)
def deep_gemm_hyper_products(deep_gemm: ModuleType, x_TC: Tensor, fn_NC: Tensor) -> Call:
    """tf32_hc_prenorm_gemm: the streams' product with fn and their sum of squares; the first third of an mHC site.

    In parts of the columns, which whoever reads the answer adds up.
    """
    out = torch.empty(SPLITS, x_TC.shape[0], fn_NC.shape[0], device=x_TC.device)
    squares = torch.empty(SPLITS, x_TC.shape[0], device=x_TC.device)
    call = returning(out, deep_gemm.tf32_hc_prenorm_gemm, x_TC, fn_NC, out, squares, SPLITS)
    return Reading(call, lambda parts: parts.sum(0))


@peer("deep_gemm", package=PACKAGE, tolerance=EXACT)
def deep_gemm_einsum(deep_gemm: ModuleType, x_TGK: Tensor, weight_GNK: Tensor) -> Call:
    """einsum bhr,hdr->bhd in bf16: the grouped output projection."""
    out_TGN = x_TGK.new_empty(*x_TGK.shape[:2], weight_GNK.shape[1])
    return returning(out_TGN, deep_gemm.einsum, "bhr,hdr->bhd", x_TGK, weight_GNK, out_TGN)


@peer("deep_gemm", package=PACKAGE, tolerance=FP8_AGAIN)
def deep_gemm_fp8_einsum(deep_gemm: ModuleType, x_TGK: Tensor, weight_GNK: Tensor) -> Call:
    """fp8_einsum bhr,hdr->bhd, 1 × 128 by 128 × 128: lossy."""
    rows, groups, _ = x_TGK.shape
    x, x_scale = fp8_rows(x_TGK)
    turned_GST = torch.nn.functional.pad(x_scale.permute(1, 2, 0), (0, -rows % 4)).contiguous()  # pitch of 16 bytes
    codes, scales = zip(*map(fp8_blocks, weight_GNK.unbind(0)))
    weight = torch.stack(codes), torch.stack(scales)
    x_scale = turned_GST.permute(2, 0, 1)[:rows]
    out_TGN = x_TGK.new_empty(rows, groups, weight_GNK.shape[1])
    return returning(out_TGN, deep_gemm.fp8_einsum, "bhr,hdr->bhd", (x, x_scale), weight, out_TGN)


def returning(out: Tensor, function: Call, *operands: object) -> Call:
    """A call that answers with the tensor it was told to fill, poisoned once so that what it leaves out shows."""
    out.fill_(torch.nan)

    def call() -> Tensor:
        function(*operands)
        return out

    return call


def fp8_experts(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP4 weights [E, N, K / 2] as E4M3 [E, N, K] in 128 × 128 blocks, expert by expert."""
    experts, outputs, packed = codes.shape
    weight = torch.empty(experts, outputs, 2 * packed, dtype=torch.float8_e4m3fn, device=codes.device)
    scales = torch.empty(experts, outputs // 128, 2 * packed // 128, device=codes.device)
    for e in range(experts):
        weight[e], scales[e] = fp8_blocks(dequantise_fp4_experts(codes[e], scale[e]))
    return weight, scales
