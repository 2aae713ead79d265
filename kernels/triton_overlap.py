"""Triton launches that begin before the one before them ends, as those in CUDA C++ do (programmatic dependent launch).

A kernel calls `wait_for_earlier_launches` before it touches memory, in every program, and is launched with `**OVERLAP`. Then
what a launch waits for has itself waited: everything that came before in the stream is done.
"""

import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import PLAIN

OVERLAP = {} if triton.knobs.runtime.interpret else {"launch_pdl": True}


@triton.jit
def wait_for_earlier_launches():
    """Lets the next launch begin, up to its own wait; returns when all that earlier launches write is there."""
    if not PLAIN:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def fetch_soon(ptr, num_bytes):
    """Asks for `num_bytes` (a multiple of 16) at each pointer to come to the second-level cache, before or after any wait."""
    if not PLAIN:
        tl.inline_asm_elementwise(
            "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }", "=r,l,r",
            [ptr.to(tl.int64), tl.full(ptr.shape, num_bytes, tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
