"""The typed list of operations a model is built from. A model is handed one `Ops`; there is no global table.

Whatever fills a field must give, for every row, bits that depend on that row's inputs alone. Two implementations of one field
give the same bits. The twins in this package say what is computed; see each one's docstring for shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ops:
    """One implementation of everything; `dtypes` are the model dtypes it can compute in."""

    name: str
    dtypes: frozenset[torch.dtype]
    linear: Callable[[Tensor, Tensor], Tensor]
    grouped_linear: Callable[[Tensor, Tensor], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    quantise_activation: Callable[[Tensor], Tensor]
    quantise_index: Callable[[Tensor], Tensor]
    rotate: Callable[..., Tensor]
    hyper_coefficients: Callable[[Tensor, Tensor, Tensor, Tensor, float, float, int], tuple[Tensor, Tensor, Tensor]]
    hyper_collapse: Callable[[Tensor, Tensor], Tensor]
    hyper_mix: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    write_rows: Callable[..., None]
    read_rows: Callable[..., Tensor]
    attention: Callable[..., Tensor]
    pool_pairs: Callable[[Tensor, Tensor], Tensor]
    index_scores: Callable[..., Tensor]
    best_entries: Callable[[Tensor, int], Tensor]
    candidate_blocks: Callable[[Tensor, Tensor, int, int], Tensor]
    keep_candidates: Callable[[Tensor, Tensor, int], Tensor]
    router_scores: Callable[[Tensor], Tensor]
    choose_experts: Callable[[Tensor, Tensor, int, float], tuple[Tensor, Tensor]]
    swiglu: Callable[[Tensor, Tensor | None, float], Tensor]
    routed_experts: Callable[..., Tensor]
    engram_rows: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    engram_add: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
