"""The lightning indexer on Ascend 950: scores by torch_npu's FP4 product, the best entries by torch's own operations.

Written against torch-npu 2.13.0; not run here. The vendor's fused indexer (`npu_quant_lightning_indexer`) takes FP8 keys with
one scale a row and gives no scores, so neither our 68-byte rows nor candidate blocks fit it.

Legend: T rows · I index heads · K index dim · J entries · W widest range · R bytes a row · N chosen entries.
"""

import torch
from torch import Tensor

from deepinfer.formats.fp4 import quantise_index
from deepinfer.ops.ascend_npu import BY_32, npu, paired_scales
from deepinfer.ops.indexer import visible_scores

PARTIAL_NUMBERS = 1 << 26  # float32 numbers of one product, before the heads are summed: 256 MiB
MISSING = -1


def index_scores(q_TIK: Tensor, weight_TI: Tensor, rows_JR: Tensor, start_T: Tensor, end_T: Tensor) -> Tensor:
    """Scores [T, W] in float32 of entries start[t] … end[t] - 1 of gathered rows uint8 [J, 68]; W the widest; -inf behind.

    q lies on the FP4 grid (`quantise_index`). Rows with one start are adjacent and share a product; the host reads the starts.
    """
    starts, counts = torch.unique_consecutive(start_T, return_counts=True)
    widest = max(1, int((end_T - start_T).max()))
    scores_TW = torch.full((len(q_TIK), widest), -torch.inf, device=q_TIK.device)
    last = 0
    for start, count in zip(starts.tolist(), counts.tolist()):
        rows, last = slice(last, last + count), last + count
        width = int(end_T[rows].max()) - start
        step = max(1, PARTIAL_NUMBERS // (count * q_TIK.shape[1]))
        for first in range(0, width, step):
            part = slice(first, min(first + step, width))
            keys_JR = rows_JR[start + part.start : start + part.stop]
            scores_TW[rows, part] = _scores(q_TIK[rows], weight_TI[rows], keys_JR)
    behind_TW = torch.arange(widest, device=q_TIK.device) >= (end_T - start_T).unsqueeze(1)
    return scores_TW.masked_fill_(behind_TW, -torch.inf)


def _scores(q_TIK: Tensor, weight_TI: Tensor, keys_JR: Tensor) -> Tensor:
    """Σ_i weight_i · relu(q_i · key_j), [T, J]."""
    torch_npu, half = npu(), q_TIK.shape[2] // 2
    q_codes, q_scales = quantise_index(q_TIK.flatten(0, 1))
    dots: Tensor = torch_npu.npu_quant_matmul(
        q_codes,
        keys_JR[:, :half].contiguous().t(),
        paired_scales(keys_JR[:, half:]).transpose(0, 1),
        pertoken_scale=paired_scales(q_scales),
        output_dtype=torch.float32,
        x1_dtype=torch_npu.float4_e2m1fn_x2,
        x2_dtype=torch_npu.float4_e2m1fn_x2,
        scale_dtype=torch_npu.float8_e8m0fnu,
        pertoken_scale_dtype=torch_npu.float8_e8m0fnu,
        group_sizes=list(BY_32),
    )
    dots_TIJ = dots.view(*q_TIK.shape[:2], -1).clamp_(min=0)
    return (dots_TIJ * weight_TI.float().unsqueeze(2)).sum(1)


def top_entries(scores_TJ: Tensor, visible_T: Tensor, out_TN: Tensor) -> Tensor:
    """The N best of the first visible[t] scores into out int32 [T, N], ascending; -1 fills up the end.

    Of equal scores the lowest entries are kept, as by our twin: whatever order the chip's top-k has among them, only the value
    of the worst chosen one is taken from it.
    """
    assert out_TN.dtype == torch.int32, "entry numbers are int32"
    entries, wanted = scores_TJ.shape[1], min(out_TN.shape[1], scores_TJ.shape[1])
    shown_TJ = visible_scores(scores_TJ, visible_T)
    worst_T1 = shown_TJ.topk(wanted, dim=1).values[:, -1:]
    better_TJ, equal_TJ = shown_TJ > worst_T1, (shown_TJ == worst_T1) & (shown_TJ > -torch.inf)
    room_T1 = wanted - better_TJ.sum(1, keepdim=True)
    chosen_TJ = better_TJ | (equal_TJ & (equal_TJ.cumsum(1) <= room_T1))
    place_TJ = torch.where(
        chosen_TJ, chosen_TJ.cumsum(1) - 1, out_TN.shape[1]
    )  # one place behind the end for the others
    filled = out_TN.new_full((len(out_TN), out_TN.shape[1] + 1), MISSING)
    numbers_TJ = torch.arange(entries, device=out_TN.device, dtype=out_TN.dtype).expand(len(out_TN), -1)
    return out_TN.copy_(filled.scatter_(1, place_TJ, numbers_TJ)[:, :-1])
