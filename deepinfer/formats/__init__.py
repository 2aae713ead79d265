"""The release's number formats: quantise, dequantise, round in place ("fake"), and byte rows of the caches.

Everything here is elementwise within one quantisation group, so a row's result never depends on its neighbours; nothing
synchronises with a device; every result is cut off from autograd (training wraps these in a straight-through function).
Arithmetic is in the input's dtype, float32 for bfloat16 input. A group that holds NaN or infinity is NaN throughout.
Decoded values are exact in float32, float64 and bfloat16. float64 values go through float32 on their way to E4M3, as in
every torch cast: the reference rounds so.
"""

from deepinfer.formats.fp4 import (
    dequantise_fp4_experts,
    dequantise_index,
    dequantise_main,
    fake_fp4_experts,
    fake_index,
    fake_main,
    quantise_fp4_experts,
    quantise_index,
    quantise_main,
)
from deepinfer.formats.fp8 import (
    dequantise_fp8_blocks,
    dequantise_fp8_rows,
    fake_fp8_blocks,
    fake_fp8_rows,
    quantise_fp8_blocks,
    quantise_fp8_rows,
)
from deepinfer.formats.rows import (
    fake_window,
    pack_index,
    pack_main,
    pack_window,
    unpack_index,
    unpack_main,
    unpack_window,
)

__all__ = [
    "dequantise_fp4_experts",
    "dequantise_fp8_blocks",
    "dequantise_fp8_rows",
    "dequantise_index",
    "dequantise_main",
    "fake_fp4_experts",
    "fake_fp8_blocks",
    "fake_fp8_rows",
    "fake_index",
    "fake_main",
    "fake_window",
    "pack_index",
    "pack_main",
    "pack_window",
    "quantise_fp4_experts",
    "quantise_fp8_blocks",
    "quantise_fp8_rows",
    "quantise_index",
    "quantise_main",
    "unpack_index",
    "unpack_main",
    "unpack_window",
]
