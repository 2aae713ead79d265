"""Index scores of any width against float64, their bits in any company, candidates' too; index queries of any width."""

from collections.abc import Callable

import pytest
import torch
from deepinfer.kernels import general_index_scores as kernel
from deepinfer.kernels.general_candidates import candidate_blocks, top_entries
from deepinfer.kernels.general_rotate_index_q import rotate_quantise_index_q
from row_cases import DEVICES, assert_same_rows, bits, random_rope, random_rows
from torch import Tensor

from deepinfer import formats
from deepinfer.ops import indexer as twins

SHAPES = [(4, 128, 8), (4, 128, 6), (4, 32, 16), (5, 64, 64)]  # heads, dims, rows of a block
LENGTHS = (100, 1, 0, 213)


def problem(heads: int, dims: int, block: int, device: str, rows: int = 2) -> tuple[Tensor, ...]:
    """q, weight, store, tables, sequence, visible: blocks in random order, NaN bytes wherever no visible entry lies."""
    draw = torch.Generator().manual_seed(0)
    needed = [-(-length // block) for length in LENGTHS]
    order, row_bytes = torch.randperm(sum(needed) + 3, generator=draw), dims // 2 + dims // 32
    stride = -(-block * row_bytes // 16) * 16 + 32
    whole = torch.full((len(order), stride), 0xFF, dtype=torch.uint8)
    store = whole.as_strided((len(order), block, row_bytes), (stride, row_bytes, 1))
    tables = torch.full((len(needed), max(needed) + 1), -1, dtype=torch.int32)
    for s, (blocks, length) in enumerate(zip(needed, LENGTHS)):
        places, order = order[:blocks], order[blocks:]
        filled = torch.full((blocks * block, row_bytes), 0xFF, dtype=torch.uint8)
        filled[:length] = formats.pack_index(torch.randn(length, dims, generator=draw).bfloat16())
        store[places] = filled.view(blocks, block, row_bytes)
        tables[s, :blocks] = places.int()
    back = torch.arange(rows - 1, -1, -1, dtype=torch.int32)
    visible = (torch.tensor(LENGTHS, dtype=torch.int32)[:, None] - back).clamp(min=0).flatten()
    sequence = torch.arange(len(needed), dtype=torch.int32).repeat_interleave(rows)
    q = formats.fake_index(torch.randn(len(visible), heads, dims, generator=draw).bfloat16())
    weight = torch.randn(len(visible), heads, generator=draw)
    moved = whole.to(device).as_strided(store.shape, store.stride())
    return q.to(device), weight.to(device), moved, *(x.to(device) for x in (tables, sequence, visible))


def width_of(arguments: tuple[Tensor, ...]) -> int:
    return arguments[3].shape[1] * arguments[2].shape[1]


def expected(arguments: tuple[Tensor, ...]) -> Tensor:
    q, weight, *rest = arguments
    return twins.paged_index_scores(
        q.double(), weight.double(), *rest, q.new_empty(len(q), width_of(arguments), dtype=torch.float64)
    )


def check(got: Tensor, want: Tensor, shown: Tensor) -> None:
    error = (got - want)[shown]
    assert error.norm() <= 3e-7 * want[shown].norm()
    assert (error.abs() <= 2e-6 * want[shown].abs() + 2e-6 * want[shown].abs().max()).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads, dims, block", SHAPES)
def test_scores_equal_the_twin_and_candidates_have_their_bits(heads: int, dims: int, block: int, device: str) -> None:
    arguments, size = problem(heads, dims, block, device), 8 if dims > 32 else 4
    rows, width = len(arguments[0]), width_of(arguments)
    out = torch.full((rows, width), torch.nan, device=device)
    kernel.paged_index_scores(*arguments, out)
    shown = torch.arange(width, device=device) < arguments[-1].unsqueeze(1)
    assert out[~shown].isnan().all(), "nothing is written behind the visible entries"
    check(out, expected(arguments), shown)
    blocks = twins.candidate_blocks(out, arguments[-1], torch.empty(rows, 9, dtype=torch.int32, device=device), size)
    packed = torch.full((rows, 9 * size), torch.nan, device=device)
    kernel.candidate_scores(*arguments, blocks, packed)
    entry = twins.candidate_entries(blocks, size)
    real = (entry >= 0) & (entry < arguments[-1].unsqueeze(1))
    assert torch.equal(bits(packed[real]), bits(out.gather(1, entry.clamp(0, width - 1))[real]))
    assert (packed[~real] == -torch.inf).all()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_invariant(device: str) -> None:
    q, weight, store, tables, sequence, visible = problem(4, 32, 16, device, rows=2 if device == "cpu" else 70)
    width = tables.shape[1] * store.shape[1]

    def scores(rows: Tensor) -> tuple[Tensor]:
        out = torch.zeros(len(rows), width, device=device)
        return (kernel.paged_index_scores(q[rows], weight[rows], store, tables, sequence[rows], visible[rows], out),)

    q[1] = torch.nan
    assert_same_rows(scores, len(q), device)


@pytest.mark.parametrize("device", DEVICES)
def test_keys_of_nan_have_scores_of_nan(device: str) -> None:
    arguments = problem(4, 128, 8, device)
    store, tables = arguments[2:4]
    store[tables[0, 3], 5, 64] = 255
    out = torch.zeros(len(arguments[0]), width_of(arguments), device=device)
    assert kernel.paged_index_scores(*arguments, out)[0].isnan().nonzero().flatten().tolist() == [29]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads, dims, frequencies", [(4, 32, 8), (3, 64, 32), (4, 128, 32)])
def test_index_queries_equal_the_twin(heads: int, dims: int, frequencies: int, device: str) -> None:
    rows = 5 if device == "cpu" else 133
    q, rope = random_rows(1, rows, heads, dims, device=device), random_rope(2, rows, frequencies, device)
    assert torch.equal(rotate_quantise_index_q(q, rope), twins.rotate_quantise_index_q(q, rope))


@pytest.mark.gpu
@pytest.mark.parametrize("size, count", [(4, 8), (8, 64), (5, 7)])
def test_candidates_of_any_size_are_the_twins(size: int, count: int) -> None:
    draw = torch.Generator("cuda").manual_seed(size)
    scores = (torch.randn(70, 640, generator=draw, device="cuda") * 4).round()  # many are equal
    scores[3], scores[4, ::3] = -torch.inf, torch.nan
    visible = torch.randint(0, 641, (70,), generator=draw, device="cuda").int()
    visible[:3] = torch.tensor([0, 1, 640])

    def chosen(op: Callable[..., Tensor], *arguments: Tensor | int, width: int) -> Tensor:
        return op(scores, visible, torch.full((70, width), -7, dtype=torch.int32, device="cuda"), *arguments)

    blocks = chosen(candidate_blocks, size, width=count)
    assert torch.equal(blocks, chosen(twins.candidate_blocks, size, width=count))
    entry = twins.candidate_entries(blocks, size)
    shown = (entry >= 0) & (entry < visible.unsqueeze(1))
    packed = torch.where(shown, scores.gather(1, entry.clamp(0, 639)), -torch.inf)
    outs = [torch.full((70, 16), -7, dtype=torch.int32, device="cuda") for _ in range(2)]
    full = torch.full_like(visible, packed.shape[1])
    assert torch.equal(top_entries(packed, visible, outs[0], blocks), twins.top_entries(packed, full, outs[1], blocks))
    assert torch.equal(chosen(top_entries, width=16), chosen(twins.top_entries, width=16))


def test_layouts_are_checked() -> None:
    arguments = problem(4, 32, 16, "cpu")
    for place, bad in ((0, arguments[0].float()), (2, arguments[2][:, :, :16]), (5, arguments[5].long())):
        wrong = list(arguments)
        wrong[place] = bad
        with pytest.raises(AssertionError, match=r"\w"):
            kernel.paged_index_scores(*wrong, torch.empty(len(arguments[0]), 64))
