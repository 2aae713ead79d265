"""Where the rows of a round of drafting read and write, and what of that follows from the number of sequences alone.

Legend: S sequences · Q slots of a block · T = S · Q rows · W window · B listed keys of a block · F rope frequencies.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.ops.draft_rows import DraftRows

LISTED = 64  # slots of a list come in multiples of this


@dataclass(frozen=True)
class BlockRows:
    """Row numbers are int32.

    `window_rows_TW` in the rings, -1 where a sequence has no feature; `own_rows_TB` in the scratch store of blocks' own keys,
    -1 behind the Q there are; `store_T` in the same store.
    """

    rope_T2F: Tensor
    window_rows_TW: Tensor
    own_rows_TB: Tensor
    store_T: Tensor


class BlockRowMaker:
    """Completes the rows of rounds; what depends on their number alone is made once."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._slots, self._device = slots, device
        self._own: dict[int, tuple[Tensor, Tensor]] = {}  # by T: `own_rows_TB`, `store_T`

    def __call__(self, rows: DraftRows) -> BlockRows:
        return BlockRows(rows.rope_T2F, rows.window_rows_TW, *self._of_number(len(rows.token_ids_T)))

    def _of_number(self, count: int) -> tuple[Tensor, Tensor]:
        if count not in self._own:
            store_T = self._numbers(count)
            listed_B = self._numbers(-(-self._slots // LISTED) * LISTED)
            first_T1 = (store_T // self._slots * self._slots).unsqueeze(1)
            self._own[count] = torch.where(listed_B < self._slots, first_T1 + listed_B, -1), store_T
        return self._own[count]

    def _numbers(self, count: int) -> Tensor:
        return torch.arange(count, dtype=torch.int32, device=self._device)
