"""A row on its way to its experts, as a device packs and reads it: routing weights, slots, FP8 codes, their powers.

Rows were rounded to that format before, so that those that arrive have the bits of those that were sent.

Legend: T rows at home · M rows that came · X chosen experts of a row · D hidden · G = D / 32 groups · B bytes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.formats import dequantise_fp8_rows
from deepinfer.ops.device import DeviceOps

GROUP = 32  # numbers of a row that share a power
ALIGNED = 16  # bytes at whose multiples rows begin
NOBODY = 0xFF  # byte of rows that are none: all of their slots are -1, and all numbers NaN


@dataclass(frozen=True)
class RowMessages:
    """Of rows of `hidden` numbers with `chosen` experts each. Launches only, whatever is in them."""

    hidden: int
    chosen: int
    dtype: torch.dtype  # of rows
    wide_dtype: torch.dtype  # of routing weights

    @property
    def ends(self) -> tuple[int, int, int, int]:
        """Where weights, slots, codes and powers end in a row."""
        weights = self.chosen * self.wide_dtype.itemsize
        slots = weights + 4 * self.chosen
        return weights, slots, slots + self.hidden, slots + self.hidden + self.hidden // GROUP

    @property
    def num_bytes(self) -> int:
        return -(-self.ends[-1] // ALIGNED) * ALIGNED

    def pack(self, ops: DeviceOps, quantised_TD: Tensor, slots_TX: Tensor, weights_TX: Tensor) -> Tensor:
        """uint8 [T, B] of rows on the FP8 grid; slots int32, through all ranks, negative: nobody's."""
        packed = ops.quantise(quantised_TD, grid=False, codes=True)
        assert packed.codes_TD is not None and packed.powers_TG is not None
        parts = [weights_TX.view(torch.uint8), slots_TX.view(torch.uint8), packed.codes_TD.view(torch.uint8)]
        parts.append(packed.powers_TG)
        if spare := self.num_bytes - self.ends[-1]:
            parts.append(packed.powers_TG.new_zeros(len(quantised_TD), spare))
        return torch.cat(parts, dim=1)

    def weights(self, rows_MB: Tensor) -> Tensor:
        """[M, X]"""
        return rows_MB[:, : self.ends[0]].view(self.wide_dtype).contiguous()

    def slots(self, rows_MB: Tensor) -> Tensor:
        """int32 [M, X]"""
        return rows_MB[:, self.ends[0] : self.ends[1]].view(torch.int32).contiguous()

    def numbers(self, rows_MB: Tensor) -> Tensor:
        """The rows themselves, [M, D]."""
        _, slots, codes, powers = self.ends
        return dequantise_fp8_rows(
            rows_MB[:, slots:codes].view(torch.float8_e4m3fn), rows_MB[:, codes:powers], self.dtype
        )
