"""The best entries of every row of scores on Hopper (CUDA C++, GPU only): radix selection, stable, by ascending number.

A cluster of blocks shares a row and holds its scores in registers; a row that is too long for them is cut, and the best of
its parts' best are chosen. Equal scores go to the lowest number; -inf and NaN are never chosen.

Legend: T rows · J entries · C candidate blocks of 8 entries.
"""

from collections.abc import Callable
from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from torch import Tensor

THREADS, BLOCK = 512, 8
MAX_CLUSTER, MAX_COUNT, MANY_ROWS = 8, 4095, 16
MAX_ELEMENTS = {1: 64, BLOCK: 8}  # a thread, of entries and of blocks
LONGEST = MAX_CLUSTER * MAX_ELEMENTS[1] * THREADS  # scores of a row that one launch takes


def top_entries(scores_TJ: Tensor, visible_T: Tensor, out_TN: Tensor, blocks_TC: Tensor | None = None) -> Tensor:
    """The N best of the first visible[t] scores of row t into out [T, N] int32; -1 fills up the end.

    With `blocks` (ascending) scores are those of `candidate_scores`, and place 8·c + e is written as entry 8·blocks[t, c] + e.
    """
    entries = scores_TJ.shape[1]
    if entries > LONGEST and blocks_TC is None:
        return best_of_parts(scores_TJ, visible_T, out_TN, LONGEST, top_entries)
    if blocks_TC is not None:
        assert blocks_TC.dtype == torch.int32 and blocks_TC.is_contiguous(), "block numbers are int32 and contiguous"
        assert blocks_TC.shape == (len(scores_TJ), entries // BLOCK), "a block number for every 8 scores"
    launch_choice(scores_TJ, visible_T, blocks_TC, out_TN, 1)
    return out_TN


def best_of_parts(
    scores_TJ: Tensor,
    visible_T: Tensor,
    out_TN: Tensor,
    longest: int,
    choose: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """What `choose` writes for whole rows, by choosing among `longest` scores at a time, and again among what was chosen."""
    parts = []
    for start in range(0, scores_TJ.shape[1], longest):
        part_TJ = scores_TJ[:, start : start + longest].contiguous()
        found_TN = choose(part_TJ, (visible_T - start).clamp(0, part_TJ.shape[1]), torch.empty_like(out_TN))
        parts.append(torch.where(found_TN < 0, -1, found_TN + start))
    entry_TM = torch.nn.functional.pad(torch.cat(parts, 1), (0, -len(parts) * out_TN.shape[1] % BLOCK), value=-1)
    best_TM = scores_TJ.gather(1, entry_TM.clamp(min=0).long()).masked_fill(entry_TM < 0, -torch.inf)
    place_TN = choose(best_TM, torch.full_like(visible_T, best_TM.shape[1]), torch.empty_like(out_TN))
    entry_TN = entry_TM.gather(1, place_TN.clamp(min=0).long())
    return out_TN.copy_(torch.where(place_TN < 0, -1, entry_TN))


def launch_choice(scores_TJ: Tensor, visible_T: Tensor, blocks_TC: Tensor | None, out_TN: Tensor, group: int) -> None:
    rows, width = scores_TJ.shape
    assert scores_TJ.dtype == torch.float32 and scores_TJ.is_contiguous(), "contiguous float32 scores"
    assert width % BLOCK == 0 and scores_TJ.data_ptr() % 16 == 0, "lines of scores are multiples of 8 numbers"
    assert visible_T.dtype == torch.int32 and visible_T.shape == (rows,) and visible_T.is_contiguous(), "int32 lengths"
    assert out_TN.dtype == torch.int32 and out_TN.is_contiguous() and len(out_TN) == rows, "int32 numbers, a line a row"
    count = out_TN.shape[1]
    assert 0 < count <= MAX_COUNT, "up to 4095 numbers a row"
    if not rows:
        return
    cluster, elements = shape_of(rows, width // group, group)
    index = device_of(scores_TJ)
    pairs = elements <= 16 or (elements <= 32 and rows * cluster > num_multiprocessors(index))
    kernel = _kernel(index, cluster, elements, group, blocks_TC is not None, 2 if pairs else 1)
    kernel((rows * cluster,), scores_TJ, visible_T, blocks_TC, out_TN, width, count)


def shape_of(rows: int, elements: int, group: int) -> tuple[int, int]:
    """Blocks a row and elements a thread. Few rows are spread further; what is chosen does not depend on it."""
    for cluster in (1, 2, 4, 8):
        each = -(-elements // (cluster * THREADS * 4)) * 4
        spread = rows <= MANY_ROWS and cluster < MAX_CLUSTER
        if each <= MAX_ELEMENTS[group] // (2 if spread else 1):
            return cluster, each
    most = LONGEST // group
    raise ValueError(f"a row of {elements} elements is longer than {most}")


@cache
def _kernel(device: int, cluster: int, elements: int, group: int, mapped: bool, blocks: int) -> Launch:
    """`blocks`: of a multiprocessor at a time."""
    macros = {"CLUSTER": cluster, "ELEMENTS": elements, "GROUP": group, "MAPPED": int(mapped), "BLOCKS": blocks}
    shape = (cluster, 1, 1) if cluster > 1 else None
    program = CudaProgram("cuda_top_entries.cu", macros)
    return program.kernel("top_entries", threads=THREADS, cluster=shape, overlap=True)
