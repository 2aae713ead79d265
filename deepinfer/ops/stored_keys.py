"""What a layer writes to its caches: norm, rotation and packing in one pass over new keys.

Legend: T rows · E entries completed in this step · K key dim · S tail places · F rope frequencies · [A, B, R] a store.
"""

import torch
from torch import Tensor

from deepinfer.ops.compress import pool_pairs
from deepinfer.ops.norm import quantise_activation, rms_norm
from deepinfer.ops.numbered_rows import store_numbered
from deepinfer.ops.rotate import rotate


def norm_rope_store_window(
    key_TK: Tensor,
    weight_K: Tensor,
    eps: float,
    rope_T2F: Tensor,
    store_ABR: Tensor,
    rows_T: Tensor,
    *,
    keys: bool = False,
) -> Tensor | None:
    """Window keys into ring rows `rows_T` (-1: nowhere); with `keys` also returned, all of them, as they read back [T, K]."""
    rotated_TK = rotate(rms_norm(key_TK, weight_K, eps), rope_T2F)
    store_numbered("window", store_ABR, rows_T, rotated_TK)
    return quantise_activation(rotated_TK) if keys else None


def compress_store(
    halves_TX: Tensor,
    newest_E: Tensor,
    weight_K: Tensor,
    eps: float,
    rope_E2F: Tensor,
    store_ABR: Tensor,
    rows_E: Tensor,
    *,
    partner_E: Tensor | None = None,
    tail_ASX: Tensor | None = None,
) -> Tensor:
    """Main keys of completed entries into rows `rows_E` (-1: nowhere). Returns the normed latents [E, K] in the weight's dtype.

    Without `partner_E` an entry is the value halves[newest, :K] of one token. With it an entry pools a pair of tokens, values
    in columns :K and gates in K : 2K; `partner_E` is the pair's first row among `halves_TX`, or -1 - n for place n of the
    tails.
    """
    width = weight_K.shape[0]
    if partner_E is None:
        values_EK = halves_TX[newest_E, :width]
    else:
        first = halves_TX[partner_E.clamp(min=0), : 2 * width]
        if tail_ASX is not None:
            place_E = (-1 - partner_E.long()).clamp(min=0)
            waiting = tail_ASX[place_E // tail_ASX.shape[1], place_E % tail_ASX.shape[1]].to(first.dtype)
            first = torch.where((partner_E < 0).unsqueeze(1), waiting, first)
        both = torch.stack((first, halves_TX[newest_E, : 2 * width]), dim=1)
        values_EK = pool_pairs(both[..., :width], both[..., width:])
    latent_EK = rms_norm(values_EK, weight_K, eps).to(weight_K.dtype)
    store_numbered("main", store_ABR, rows_E, rotate(latent_EK, rope_E2F))
    return latent_EK


def index_store(
    key_EK: Tensor, weight_K: Tensor, eps: float, rope_E2F: Tensor, store_ABR: Tensor, rows_E: Tensor
) -> None:
    """Index keys of completed entries into rows `rows_E` (-1: nowhere)."""
    store_numbered("index", store_ABR, rows_E, rotate(rms_norm(key_EK, weight_K, eps), rope_E2F))
