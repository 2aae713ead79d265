"""Functions of float32 register tiles by the device's own estimates, or by plain ones under the interpreter."""

import triton
import triton.language as tl

PLAIN = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def exp_of_negative(x):
    """exp(x) for x ≤ 0, within 3 ulp; 0 where it is below 2^-126."""
    if PLAIN:
        out = tl.exp(x)
    else:
        out = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1
        )
    return out


@triton.jit
def reciprocal(x):
    """1 / x for x of ordinary size, within 1 ulp."""
    if PLAIN:
        out = 1.0 / x
    else:
        out = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return out


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), within 3 ulp and |x| / 2 more; 0 where it is below 2^-126."""
    if PLAIN:
        power = tl.exp(-x)
    else:
        power = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * -1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1
        )
    return reciprocal(1.0 + power)


@triton.jit
def reciprocal_rms(total, width, eps):
    """1 / sqrt(total / width + eps), within 2 ulp: the device's own estimate and one step of Newton's."""
    mean = total * (1.0 / width) + eps
    estimate = tl.rsqrt(mean)
    return tl.where(mean < float("inf"), estimate * (1.5 - 0.5 * mean * estimate * estimate), estimate)
