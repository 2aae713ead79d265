"""Hash of n-grams to table rows, from token ids, one launch. Twin: deepinfer/ops/engram.py.

Legend: T rows · G n-gram slots (own token first) · R table rows of a token · V vocabulary.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

TILE = 64  # rows of a program


@triton.jit
def _ngram_rows(
    ngrams_ptr, classes_ptr, multipliers_ptr, primes_ptr, offsets_ptr, out_ptr, num_rows, pad_class,
    NGRAM: tl.constexpr, HEADS: tl.constexpr, HEADS2: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    row_T, head_H = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, HEADS2)
    there_T, asked_H = row_T < num_rows, head_H < HEADS
    mixed_T = tl.zeros([TILE], tl.int64)
    for order in tl.static_range(NGRAM):
        token_T = tl.load(ngrams_ptr + row_T * NGRAM + order, mask=there_T, other=-1)
        class_T = tl.load(classes_ptr + token_T, mask=token_T >= 0, other=0)
        class_T = tl.where(token_T >= 0, class_T, pad_class)
        mixed_T = mixed_T ^ (class_T * tl.load(multipliers_ptr + order))
        if order > 0:
            place_H = (order - 1) * HEADS + head_H
            prime_H = tl.load(primes_ptr + place_H, mask=asked_H, other=1)
            rest_TH = mixed_T[:, None] % prime_H[None, :]
            rest_TH = tl.where(
                rest_TH < 0, rest_TH + prime_H[None, :], rest_TH
            )  # remainders are those of floor division
            found_TH = rest_TH + tl.load(offsets_ptr + place_H, mask=asked_H, other=0)[None, :]
            to_ptr = out_ptr + row_T.to(tl.int64)[:, None] * ((NGRAM - 1) * HEADS) + place_H[None, :]
            tl.store(to_ptr, found_TH, mask=there_T[:, None] & asked_H[None, :])


def ngram_rows(
    ngram_ids_TG: Tensor,
    classes_V: Tensor,
    pad_class: int,
    multipliers_G: Tensor,
    primes_OH: Tensor,
    offsets_OH: Tensor,
) -> Tensor:
    """As the twin; ids int32 and contiguous, the rest int64."""
    assert ngram_ids_TG.dtype == torch.int32 and ngram_ids_TG.is_contiguous(), "ids are contiguous int32"
    tables = (classes_V, multipliers_G, primes_OH, offsets_OH)
    assert all(x.dtype == torch.int64 and x.is_contiguous() for x in tables), "tables are contiguous int64"
    (rows, ngram), (orders, heads) = ngram_ids_TG.shape, primes_OH.shape
    assert orders == ngram - 1 and len(multipliers_G) == ngram, (
        "a prime per order from two tokens on, and a multiplier each"
    )
    out_TR = torch.empty(rows, orders * heads, dtype=torch.int64, device=ngram_ids_TG.device)
    if rows:
        _ngram_rows[(triton.cdiv(rows, TILE),)](
            ngram_ids_TG, *tables, out_TR, rows, pad_class, NGRAM=ngram, HEADS=heads,
            HEADS2=triton.next_power_of_2(heads), TILE=TILE, num_warps=4, **OVERLAP,
        )  # fmt: skip
    return out_TR
