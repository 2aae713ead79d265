"""Tensor maps: how the copy engine finds boxes of a row-major bfloat16 matrix."""

from functools import lru_cache
from typing import Any

import torch
from deepinfer.kernels import cuda_program
from torch import Tensor

SWIZZLE_COLUMNS = 64  # 128 bytes of bfloat16, the width of a swizzled box


def box_map(x_TK: Tensor, box_rows: int, box_columns: int | None = None) -> Any:
    """Map of x [T, K] (rows contiguous, any stride between them) for boxes of `box_rows` × 64, swizzled over 128 bytes.

    Boxes of `box_columns` (a multiple of 8, at most 256) are not swizzled: their rows follow one another.
    """
    assert x_TK.dtype == torch.bfloat16 and x_TK.stride(1) == 1, "a bfloat16 matrix with contiguous rows"
    assert x_TK.data_ptr() % 16 == 0 and x_TK.stride(0) % 8 == 0, "rows begin at multiples of 16 bytes"
    return _encoded(x_TK.data_ptr(), x_TK.shape[0], x_TK.shape[1], x_TK.stride(0), box_rows, box_columns)


@lru_cache(maxsize=4096)
def _encoded(address: int, rows: int, columns: int, stride: int, box_rows: int, box_columns: int | None) -> Any:
    from cuda.bindings import driver

    swizzle = driver.CUtensorMapSwizzle

    return cuda_program._checked(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            address,
            [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
            [driver.cuuint64_t(2 * stride)],
            [driver.cuuint32_t(box_columns or SWIZZLE_COLUMNS), driver.cuuint32_t(box_rows)],
            [driver.cuuint32_t(1), driver.cuuint32_t(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle.CU_TENSOR_MAP_SWIZZLE_NONE if box_columns else swizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
