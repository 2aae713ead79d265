"""DeepEP behind experts that are spread over ranks: rows to their experts' ranks, and back.

Written against deepinfer-ep 2.5.0; not run here.

Legend: T rows here · D hidden · X chosen experts of a row · P rows received.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.formats import quantise_fp8_rows
from deepinfer.ops.deepseek_gemm import Coded
from deepinfer.ops.deepseek_layout import packed_scales
from deepinfer.ops.deepseek_packages import package


@dataclass(frozen=True)
class Received:
    """Rows of other ranks for this rank's experts. `picks_PX` counts from this rank's first expert, -1 for other ranks'."""

    rows: Coded
    picks_PX: Tensor
    weights_PX: Tensor
    handle: Any


class ExpertExchange:
    """One buffer a process; `max_rows` of one rank in a step."""

    def __init__(self, group: Any, num_experts: int, max_rows: int, hidden: int, chosen: int) -> None:
        assert num_experts % group.size() == 0, "every rank has equally many experts"
        self.num_experts = num_experts
        self.buffer = package("deep_ep").EPBuffer(
            group,
            num_max_tokens_per_rank=max_rows,
            hidden=hidden,
            num_topk=chosen,
            use_fp8_dispatch=True,
            deterministic=True,
            explicitly_destroy=True,
        )

    def dispatch(self, x_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor, alignment: int) -> Received:
        """Send rows on the FP8 grid, as codes; `alignment` of each expert's rows is the grouped product's."""
        codes_TD, scale_TG = quantise_fp8_rows(x_TD)
        scales_TP = packed_scales(scale_TG).contiguous()
        (codes_PD, scales_PP), picks_PX, weights_PX, handle, _ = self.buffer.dispatch(
            (codes_TD, scales_TP),
            picks_TX.to(package("deep_ep").topk_idx_t),
            weights_TX.float(),
            num_experts=self.num_experts,
            expert_alignment=alignment,
            use_tma_aligned_col_major_sf=True,
        )
        return Received(Coded(codes_PD, scales_PP), picks_PX, weights_PX, handle)

    def combine(self, out_PD: Tensor, received: Received) -> Tensor:
        """Sums of the experts' rows where they came from, [T, D]; weights were applied by the experts."""
        assert out_PD.dtype == torch.bfloat16, "rows go back in bfloat16"
        out_TD, _, _ = self.buffer.combine(out_PD, received.handle)
        return out_TD

    def close(self) -> None:
        self.buffer.destroy()
