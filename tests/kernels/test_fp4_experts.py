"""MXFP4 experts: the grouped product, w13 with SwiGLU, a whole layer, against float64; test_fp4_expert_loads has real loads.

CUDA C++ runs on GPUs only; test_fp4_expert_tiles checks its re-laid weights anywhere. Triton runs under the interpreter too.
"""

import pytest
import torch
from deepinfer.kernels import cuda_fp4_experts_up, cuda_fp4_grouped_linear, triton_fp4_grouped_linear
from deepinfer.kernels.fp4_expert_tiles import tile_experts
from fp4_expert_cases import CHOSEN, HIDDEN, INNER, activations, check, random_experts, starts_of
from torch import Tensor

from deepinfer.formats import dequantise_fp4_experts
from deepinfer.ops import experts as plain_experts
from deepinfer.ops import fp4_experts as twin
from deepinfer.ops.expert_permutation import expert_permutation
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.norm import quantise_activation


@pytest.mark.parametrize("counts", ([0, 1, 17, 0, 5], [0, 0, 0, 0, 33], [0] * 5))
@pytest.mark.parametrize("gather", (True, False))
def test_triton_on_cpu(counts: list[int], gather: bool) -> None:
    torch.manual_seed(0)
    weight, rows = random_experts(5, 128, 160, "cpu"), sum(counts)
    x_TK = activations(9 if gather else rows, 160, "cpu")
    rows_P = torch.randint(0, 9, (rows,)).int() if gather else None
    starts_E1 = starts_of(counts, "cpu")
    out_PN = triton_fp4_grouped_linear.fp4_grouped_linear(x_TK, rows_P, starts_E1, weight)
    check(out_PN, twin.fp4_grouped_linear(x_TK.double(), rows_P, starts_E1, weight))


def test_layer_equals_routed_experts() -> None:
    """The same numbers as the op of the torch model, on weights written out."""
    torch.manual_seed(0)
    w13, w2 = random_experts(5, 128, 96, "cpu", (120, 125)), random_experts(5, 96, 64, "cpu", (120, 125))
    x_TD = quantise_activation(torch.randn(7, 96, dtype=torch.float64))
    picks_TX = torch.stack([torch.randperm(5)[:3] for _ in range(7)])
    weights_TX = torch.rand(7, 3, dtype=torch.float64)

    def activate(h: Tensor, weight: Tensor) -> Tensor:
        return quantise_activation(plain_experts.swiglu(h, weight, 10.0))

    lists = [list(dequantise_fp4_experts(w.codes_ENB, w.scale_ENG, torch.float64)) for w in (w13, w2)]
    expected = plain_experts.routed_experts(x_TD, picks_TX, weights_TX, *lists, activate)
    torch.testing.assert_close(twin.fp4_experts(x_TD, picks_TX, weights_TX, w13, w2), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ("cuda", "triton"))
@pytest.mark.parametrize(
    ("outputs", "columns", "counts"),
    (
        (256, 128, [0, 1, 0]),
        (512, 128, [0, 1, 17, 130, 0, 5, 300]),
        (512, 384, [8, 9, 0, 24, 25, 40, 41, 90, 0, 1]),
        (2 * INNER, HIDDEN, [4, 16, 0, 33, 100]),
        (2 * INNER, HIDDEN, [3, 0, 129, 20, 40, 70]),
        (HIDDEN, INNER, [8, 100, 0, 30, 1, 1000]),
    ),
)
def test_values(kernel: str, outputs: int, columns: int, counts: list[int]) -> None:
    torch.manual_seed(0)
    weight, rows = random_experts(len(counts), outputs, columns, "cuda"), sum(counts)
    starts_E1 = starts_of(counts, "cuda")
    x_TK, rows_P = activations(97, columns, "cuda"), torch.randint(0, 97, (rows,), device="cuda").int()
    reference = twin.fp4_grouped_linear(x_TK.double(), rows_P, starts_E1, weight)
    run, prepared = _kernel(kernel, weight)
    out_PN = _poisoned(lambda: run(x_TK, rows_P, starts_E1, prepared))
    check(out_PN, reference)
    sorted_PK = x_TK[rows_P.long()].contiguous()
    assert torch.equal(_poisoned(lambda: run(sorted_PK, None, starts_E1, prepared)), out_PN)


def _kernel(kernel: str, weight: Fp4Experts):
    if kernel == "triton":
        return triton_fp4_grouped_linear.fp4_grouped_linear, weight
    return cuda_fp4_grouped_linear.fp4_grouped_linear, tile_experts(weight)


def _poisoned(call) -> Tensor:
    """The call's result, written into memory that held NaN: the allocator hands the block of the first result out again."""
    first = call()
    address = first.data_ptr()
    first.fill_(float("nan"))
    del first
    out = call()
    assert out.data_ptr() == address
    return out


@pytest.mark.gpu
@pytest.mark.parametrize(
    "counts", ([0, 1, 17, 41, 0, 9, 30], [80, 30, 81, 0, 60], [0, 1, 17, 130, 0, 64, 300], [2000, 0, 9])
)
def test_up_values(counts: list[int]) -> None:
    """Against the twin of the parts on the same product: the last bit of exp moves a few results by a step of the grid."""
    torch.manual_seed(0)
    w13, rows = random_experts(len(counts), 2 * INNER, HIDDEN, "cuda", (117, 122)), sum(counts)
    starts_E1, weights_P = starts_of(counts, "cuda"), torch.rand(rows, device="cuda")
    x_TK, rows_P = activations(97, HIDDEN, "cuda"), torch.randint(0, 97, (rows,), device="cuda").int()
    h_PJ = cuda_fp4_grouped_linear.fp4_grouped_linear(x_TK, rows_P, starts_E1, tile_experts(w13))
    expected = quantise_activation(plain_experts.swiglu(h_PJ, weights_P, twin.SWIGLU_LIMIT))
    tiles = tile_experts(w13, paired=True)
    act_PI = _poisoned(lambda: cuda_fp4_experts_up.fp4_experts_up(x_TK, rows_P, starts_E1, weights_P, tiles))
    assert (act_PI != expected).float().mean() <= 2e-3
    groups = expected.float().unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)
    error = (act_PI.float() - expected.float()).unflatten(1, (-1, 32)).abs()
    assert (error <= groups / 8).all()  # one step beside the greatest of a group
    assert torch.equal(quantise_activation(act_PI), act_PI)


@pytest.mark.gpu
def test_up_keeps_nan_in_its_row() -> None:
    w13 = tile_experts(random_experts(1, 512, 128, "cuda"), paired=True)
    x_TK, weights_P = activations(20, 128, "cuda"), torch.rand(20, device="cuda")
    starts_E1 = starts_of([20], "cuda")
    clean = cuda_fp4_experts_up.fp4_experts_up(x_TK, None, starts_E1, weights_P, w13)
    x_TK[7] = float("nan")
    out = cuda_fp4_experts_up.fp4_experts_up(x_TK, None, starts_E1, weights_P, w13)
    others = torch.arange(20, device="cuda") != 7
    assert out[7].isnan().all() and torch.equal(out[others], clean[others])


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ("cuda", "up", "triton"))
def test_rows_do_not_depend_on_their_neighbours(kernel: str) -> None:
    """One row alone, and at three places among 2 … 300 others that are NaN or infinite, beside an expert that is full."""
    torch.manual_seed(0)
    weight = random_experts(2, 2 * INNER, HIDDEN, "cuda", (117, 122))
    x_TK = activations(2, HIDDEN, "cuda")
    x_TK = torch.cat((x_TK, torch.full_like(x_TK, float("nan")), torch.full_like(x_TK, float("inf"))))
    if kernel == "up":
        prepared = tile_experts(weight, paired=True)
    else:
        run, prepared = _kernel(kernel, weight)

    def product(rows: list[int], counts: list[int]) -> Tensor:
        rows_P = torch.tensor(rows, device="cuda").int()
        if kernel == "up":
            half_P = torch.full((len(rows),), 0.5, device="cuda")
            return cuda_fp4_experts_up.fp4_experts_up(x_TK, rows_P, starts_of(counts, "cuda"), half_P, prepared)
        return run(x_TK, rows_P, starts_of(counts, "cuda"), prepared)

    alone = product([0], [1, 0])[0]
    assert alone.isfinite().all()
    for width in (2, 7, 12, 20, 30, 40, 64, 70, 90, 100, 120, 256, 300):
        for place in {0, width // 2, width - 1}:
            rows = [2 + i % 4 for i in range(width)]
            rows[place] = 0
            assert torch.equal(product([*rows, *range(2, 6)] * 1, [width, 4])[place], alone), (width, place)


@pytest.mark.gpu
def test_experts_without_rows_are_not_read_and_counts_may_change_in_a_graph() -> None:
    torch.manual_seed(0)
    weight = random_experts(6, 512, 256, "cuda")
    tiles = tile_experts(weight)
    x_TK, starts_E1 = activations(400, 256, "cuda"), starts_of([400, 0, 0, 0, 0, 0], "cuda")
    cuda_fp4_grouped_linear.fp4_grouped_linear(x_TK, None, starts_E1, tiles)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_PN = cuda_fp4_grouped_linear.fp4_grouped_linear(x_TK, None, starts_E1, tiles)
    for counts in ([1, 0, 17, 0, 0, 300], [0, 0, 0, 0, 400, 0], [0] * 6, [67, 66, 67, 66, 67, 67]):
        starts_E1.copy_(starts_of(counts, "cuda"))
        tiles.pieces_EMCB.copy_(tile_experts(weight).pieces_EMCB)
        tiles.pieces_EMCB[torch.tensor(counts) == 0] = 0xFF
        out_PN.fill_(float("nan"))
        graph.replay()
        check(out_PN[: sum(counts)], twin.fp4_grouped_linear(x_TK[: sum(counts)].double(), None, starts_E1, weight))
        assert out_PN[sum(counts) :].isnan().all()


@pytest.mark.gpu
def test_launches_wait_for_the_ones_they_overlap() -> None:
    """Two layers' launches in turn, whose outputs take each other's memory."""
    torch.manual_seed(0)
    w13 = tile_experts(random_experts(8, 2 * INNER, HIDDEN, "cuda", (117, 122)), paired=True)
    w2 = tile_experts(random_experts(8, HIDDEN, INNER, "cuda", (117, 122)))
    starts_E1, weights_P = starts_of([3, 0, 9, 1, 30, 0, 2, 5], "cuda"), torch.rand(50, device="cuda")
    inputs = [activations(50, HIDDEN, "cuda") for _ in range(2)]

    def layer(x_PK: Tensor) -> Tensor:
        act_PI = cuda_fp4_experts_up.fp4_experts_up(x_PK, None, starts_E1, weights_P, w13)
        return cuda_fp4_grouped_linear.fp4_grouped_linear(act_PI, None, starts_E1, w2)

    alone = []
    for x_PK in inputs:
        alone.append(layer(x_PK))
        torch.cuda.synchronize()
    sums = [layer(inputs[turn % 2]) - alone[turn % 2] for turn in range(40)]
    assert not torch.stack(sums).any()


@pytest.mark.gpu
def test_layer() -> None:
    """The composition of the device kernels against the twin on a whole layer of narrow experts."""
    torch.manual_seed(0)
    w13, w2 = random_experts(24, 1024, 512, "cuda", (117, 122)), random_experts(24, 512, 512, "cuda", (117, 122))
    x_TD, weights_TX = activations(200, 512, "cuda"), torch.rand(200, CHOSEN, device="cuda")
    picks_TX = torch.rand(200, 24, device="cuda").topk(CHOSEN).indices
    starts_E1, rows_P, places_TX, weights_P = expert_permutation(picks_TX, 24, weights_TX=weights_TX)
    act_PI = cuda_fp4_experts_up.fp4_experts_up(x_TD, rows_P, starts_E1, weights_P, tile_experts(w13, paired=True))
    out_PD = cuda_fp4_grouped_linear.fp4_grouped_linear(act_PI, None, starts_E1, tile_experts(w2))
    parts_TXD = out_PD[places_TX.long()]
    expected = twin.fp4_experts(x_TD, picks_TX, weights_TX, w13, w2)
    error = parts_TXD.float().sum(1) - expected.float()
    assert error.norm() <= 5e-3 * expected.float().norm()
