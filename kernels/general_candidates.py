"""Candidate blocks of any size, and the best entries inside them: the kernel that chooses entries, with maxima before it and
numbers of entries behind it, both exact.

Legend: T rows · J entries · C candidate blocks · B entries of a block · N chosen entries.
"""

import torch
from deepinfer.kernels import cuda_top_entries as kernel
from torch import Tensor

from deepinfer.ops.indexer import visible_scores


def candidate_blocks(scores_TJ: Tensor, visible_T: Tensor, out_TC: Tensor, block: int = kernel.BLOCK) -> Tensor:
    """The C blocks with the best of the first visible[t] scores, the newest visible entry's always among them; ascending,
    -1 at the end."""
    shown_TJ = _filled(visible_scores(scores_TJ, visible_T), block)
    best_TB = shown_TJ.unflatten(1, (-1, block)).amax(-1)
    newest_T1 = ((visible_T - 1).clamp(min=0) // block).long().unsqueeze(1)
    newest = torch.where(visible_T > 0, torch.inf, -torch.inf).to(best_TB.dtype).unsqueeze(1)
    return _best(best_TB.scatter(1, newest_T1, newest), out_TC)


def top_entries(scores_TJ: Tensor, visible_T: Tensor, out_TN: Tensor, blocks_TC: Tensor | None = None) -> Tensor:
    """The N best of the first visible[t] scores into out int32 [T, N], ascending; -1 fills up the end.

    With `blocks`, scores are packed candidates, -inf where not visible, and their entry numbers are written.
    """
    if blocks_TC is None:
        return kernel.top_entries(scores_TJ, visible_T, out_TN)
    block = scores_TJ.shape[1] // blocks_TC.shape[1]
    place_TN = _best(scores_TJ, torch.empty_like(out_TN))
    found_TN = place_TN.clamp(min=0)
    entry_TN = blocks_TC.gather(1, (found_TN // block).long()) * block + found_TN % block
    return out_TN.copy_(torch.where(place_TN < 0, -1, entry_TN))


def _best(scores_TJ: Tensor, out_TN: Tensor) -> Tensor:
    """Numbers of the best scores of whole rows."""
    scores_TJ = _filled(scores_TJ, kernel.BLOCK).contiguous()
    everything_T = torch.full((len(scores_TJ),), scores_TJ.shape[1], dtype=torch.int32, device=scores_TJ.device)
    return kernel.top_entries(scores_TJ, everything_T, out_TN)


def _filled(scores_TJ: Tensor, multiple: int) -> Tensor:
    """Lines of a multiple of numbers, -inf at their end."""
    missing = -scores_TJ.shape[1] % multiple
    return torch.nn.functional.pad(scores_TJ, (0, missing), value=-torch.inf) if missing else scores_TJ
