"""Products with bfloat16 weights, Triton: against the twin in float64, bit for bit over batches, and timed."""

from functools import cache

import pytest
import torch
from deepinfer.kernels import triton_bf16_linear
from deepinfer.kernels.triton_bf16_linear import bf16_linear, num_segments
from row_cases import foreign

from deepinfer.ops.bf16_linear import bf16_linear as twin

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WEIGHTS = {  # outputs, inputs, dtype of the result
    "head": (129280, 5120, torch.float32),
    "router gate": (384, 5120, torch.float32),
    "compressor": (1056, 5120, torch.bfloat16),
    "compressor, narrow": (512, 5120, torch.bfloat16),
    "index key": (128, 512, torch.bfloat16),
    "index weights": (32, 5120, torch.float32),
}
TIMED = [("head", t) for t in (1, 64, 256)] + [(name, t) for name in list(WEIGHTS)[1:] for t in (1, 64, 4096)]
COPIES_BYTES, MOST_COPIES = 300 << 20, 96  # an engine meets a layer's weights again after those of all other layers


def numbers(rows: int, columns: int, seed: int, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(1000 * columns + 7 * rows + seed)
    return (torch.randn(rows, columns, generator=generator, device=DEVICE) * spread).bfloat16()


def check(out_TN: torch.Tensor, x_TK: torch.Tensor, weight_NK: torch.Tensor) -> None:
    """Elementwise within half an ulp of the result's dtype (a whole one under the interpreter, which cuts bfloat16 off) plus
    2^-18 of the sum of magnitudes: the tensor cores cut a chain's sum off after every 16 columns.
    """
    expected = twin(x_TK.double(), weight_NK.double(), torch.float64)
    magnitude = twin(x_TK.double().abs(), weight_NK.double().abs(), torch.float64)
    rounding = (2**-8 if DEVICE == "cuda" else 2**-7) if out_TN.dtype == torch.bfloat16 else 2**-24
    assert ((out_TN.double() - expected).abs() <= rounding * expected.abs() + 2**-18 * magnitude).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("num_tokens", "outputs", "inputs"), [(1, 32, 512), (5, 96, 4096), (19, 160, 2048), (140, 300, 192)]
)
def test_small_and_ragged_values(num_tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x_TK, weight_NK = numbers(num_tokens, inputs, 0), numbers(outputs, inputs, 1)
    torch.full((num_tokens, outputs), torch.nan, dtype=dtype, device=DEVICE)
    out_TN = bf16_linear(x_TK, weight_NK, dtype)
    assert out_TN.dtype == dtype
    check(out_TN, x_TK, weight_NK)


def test_the_order_of_addition_follows_from_the_weight_alone() -> None:
    assert [num_segments(*WEIGHTS[name][:2]) for name in ("head", "router gate", "compressor")] == [1, 4, 4]


def test_what_it_cannot_multiply_is_refused() -> None:
    x_TK, weight_NK = numbers(2, 96, 0), numbers(32, 96, 1)
    with pytest.raises(AssertionError, match=r"K = 96; a step takes 64 columns"):
        bf16_linear(x_TK, weight_NK, torch.bfloat16)
    with pytest.raises(AssertionError, match=r"\(2, 32\) and a weight \(32, 96\).*one K"):
        bf16_linear(x_TK[:, :32].contiguous(), weight_NK, torch.bfloat16)
    with pytest.raises(AssertionError, match=r"a weight torch\.float32"):
        bf16_linear(x_TK, weight_NK.float(), torch.bfloat16)


@pytest.mark.gpu
def test_a_capture_before_the_first_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What segments share would lie in the graph's memory, and later calls would use it after the graph."""
    monkeypatch.setattr(triton_bf16_linear, "_workspace", cache(triton_bf16_linear._workspace.__wrapped__))
    x_TK, weight_NK = numbers(2, 128, 0), numbers(32, 128, 1)
    with pytest.raises(AssertionError, match="before it ran once"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        bf16_linear(x_TK, weight_NK, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(WEIGHTS)[1:])
@pytest.mark.parametrize("num_tokens", [1, 7, 64, 300])
def test_values(name: str, num_tokens: int) -> None:
    outputs, inputs, dtype = WEIGHTS[name]
    x_TK, weight_NK = numbers(num_tokens, inputs, num_tokens), numbers(outputs, inputs, 1, inputs**-0.5)
    check(bf16_linear(x_TK, weight_NK, dtype), x_TK, weight_NK)


@pytest.mark.gpu
def test_values_of_the_head() -> None:
    outputs, inputs, dtype = WEIGHTS["head"]
    x_TK, weight_NK = numbers(130, inputs, 0), numbers(outputs, inputs, 1, inputs**-0.5)
    out_TN = bf16_linear(x_TK, weight_NK, dtype)
    for first in (0, 64640, outputs - 1000):
        check(out_TN[:, first : first + 1000], x_TK, weight_NK[first : first + 1000])


@pytest.mark.gpu
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_row_knows_no_neighbours(name: str) -> None:
    outputs, inputs, dtype = WEIGHTS[name]
    rows = 400 if name == "head" else 2000
    x_TK, weight_NK = numbers(rows, inputs, 2), numbers(outputs, inputs, 3, inputs**-0.5)
    whole = bf16_linear(x_TK, weight_NK, dtype)
    for size in (1, 2, 7, 64, 256):
        first = 41 * size % (rows - size)
        assert torch.equal(bf16_linear(x_TK[first : first + size], weight_NK, dtype), whole[first : first + size]), size
    x_TK[1::3], x_TK[2::3] = torch.nan, torch.inf
    assert torch.equal(bf16_linear(x_TK, weight_NK, dtype)[::3], whole[::3])


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "num_tokens"), TIMED)
def test_speed(name: str, num_tokens: int, timed, request) -> None:  # type: ignore[no-untyped-def]
    outputs, inputs, dtype = WEIGHTS[name]
    copies = max(1, min(MOST_COPIES, COPIES_BYTES // (2 * outputs * inputs)))
    weights = [numbers(outputs, inputs, seed, inputs**-0.5) for seed in range(copies)]
    x = [numbers(num_tokens, inputs, seed) for seed in range(copies)]
    result_bytes = torch.finfo(dtype).bits // 8
    timed(
        "bf16_linear",
        f"{name} N={outputs} K={inputs} T={num_tokens}",
        [lambda x=x, w=w: bf16_linear(x, w, dtype) for x, w in zip(x, weights)],
        flops=2.0 * num_tokens * outputs * inputs,
        moved_bytes=2 * outputs * inputs + num_tokens * (2 * inputs + result_bytes * outputs),
        peers=foreign("bf16_linear", [(x, w, dtype) for x, w in zip(x, weights)], request),
        runs=20,
        variant="invariant",
    )
