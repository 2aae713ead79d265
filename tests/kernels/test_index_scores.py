"""Index scores: Triton on CPU under the interpreter; Triton and CUDA C++ on a GPU, against float64.

test_index_speed.py times them.

CUDA C++ (cuda_index_scores, cuda_candidate_scores) runs on GPUs only.
"""

from dataclasses import dataclass

import pytest
import torch
from deepinfer.kernels import triton_index_scores
from deepinfer.kernels.cuda_candidate_scores import candidate_scores
from deepinfer.kernels.cuda_index_scores import MAX_ROWS_TOGETHER, check_scores, paged_index_scores, ring_of
from torch import Tensor

from deepinfer import formats
from deepinfer.ops import indexer as twins

HEADS, DIMS = 32, 128


@dataclass(frozen=True)
class Case:
    """Sequences of these many entries, `rows` rows each. `spread`: how far scales of a key's groups lie apart, e-fold."""

    lengths: tuple[int, ...]
    rows: int = 1
    block: int = 64
    padding: int = 256
    spread: float = 0.2
    width: int | None = None

    @property
    def entries(self) -> int:
        return self.width or -(-max(self.lengths) // 128) * 128


def problem(case: Case, device: str, seed: int = 0) -> tuple[Tensor, ...]:
    """q, weight, store, tables, sequence, visible: blocks in random order, NaN bytes wherever no visible entry lies."""
    draw = torch.Generator(device).manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=draw, device=device)  # noqa: E731
    needed = [-(-length // case.block) for length in case.lengths]
    total = sum(needed) + 3
    order = torch.randperm(total, generator=draw, device=device)
    row_bytes, stride = 68, case.block * 68 + case.padding
    whole = torch.full((total, stride), 0xFF, dtype=torch.uint8, device=device)
    store = whole.as_strided((total, case.block, row_bytes), (stride, row_bytes, 1))
    tables = torch.full((len(needed), max(needed) + 1), -1, dtype=torch.int32, device=device)
    at = 0
    for s, (blocks, length) in enumerate(zip(needed, case.lengths)):
        places = order[at : at + blocks]
        at += blocks
        size = torch.exp(case.spread * normal(length, 4, 1)) * torch.exp(normal(length, 1, 1))
        keys = (normal(length, 4, 32) * size).flatten(1).bfloat16()
        rows = torch.full((blocks * case.block, row_bytes), 0xFF, dtype=torch.uint8, device=device)
        rows[:length] = formats.pack_index(keys)
        store[places] = rows.view(blocks, case.block, row_bytes)
        tables[s, :blocks] = places.int()
    length_S = torch.tensor(case.lengths, dtype=torch.int32, device=device)
    back = torch.arange(case.rows - 1, -1, -1, dtype=torch.int32, device=device)
    visible = (length_S[:, None] - back).clamp(min=0).flatten()
    sequence = torch.arange(len(needed), dtype=torch.int32, device=device).repeat_interleave(case.rows)
    size = torch.exp(min(case.spread, 1.0) * normal(len(visible), HEADS, 4, 1))  # exact up to 2^17 within a head
    q = formats.fake_index((normal(len(visible), HEADS, 4, 32) * size).flatten(2).bfloat16())
    return q, normal(len(visible), HEADS), store, tables, sequence, visible


def expected(arguments: tuple[Tensor, ...], width: int) -> tuple[Tensor, Tensor]:
    """Scores in float64 [T, J], and where they are visible."""
    q, weight, *rest = arguments
    out = q.new_empty(len(q), width, dtype=torch.float64)
    twins.paged_index_scores(q.double(), weight.double(), *rest, out)
    return out, torch.arange(width, device=q.device) < arguments[-1].unsqueeze(1)


def check(got: Tensor, want: Tensor, shown: Tensor) -> None:
    """Within float32 rounding of a sum over 32 heads, and nothing written behind the visible entries."""
    assert got[~shown].isnan().all()
    error = (got - want)[shown]
    assert error.norm() <= 3e-7 * want[shown].norm()
    assert (error.abs() <= 2e-6 * want[shown].abs() + 2e-6 * want[shown].abs().max()).all()


def poisoned(arguments: tuple[Tensor, ...], width: int) -> Tensor:
    return torch.full((len(arguments[0]), width), torch.nan, device=arguments[0].device)


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)


def spoil_keys(store: Tensor, tables: Tensor) -> list[int]:
    """Writes the scale byte of NaN into one group of these entries of the first sequence, and returns their numbers."""
    entries = [0, 2, 37, 64]
    for group, entry in enumerate(entries):
        store[tables[0, entry // store.shape[1]], entry % store.shape[1], 64 + group] = 255
    return entries


@pytest.mark.parametrize(
    "case", [Case((100, 65), rows=2), Case((130, 1), block=128, padding=0), Case((3,), rows=5, padding=16)], ids=str
)
def test_portable_scores_equal_the_twin(case: Case) -> None:
    arguments = problem(case, "cpu")
    out = triton_index_scores.paged_index_scores(*arguments, poisoned(arguments, case.entries))
    check(out, *expected(arguments, case.entries))


def test_portable_scores_of_nan_keys_are_nan() -> None:
    arguments = problem(Case((100,)), "cpu")
    spoilt = spoil_keys(arguments[2], arguments[3])
    out = triton_index_scores.paged_index_scores(*arguments, poisoned(arguments, 128))
    want = expected(arguments, 128)[0]
    assert out[0, :100].isnan().nonzero().flatten().tolist() == spoilt == want[0].isnan().nonzero().flatten().tolist()


def test_layouts_are_checked() -> None:
    arguments = problem(Case((70,)), "cpu")
    check_scores(*arguments, torch.empty(1, 128))
    for place, bad in ((0, arguments[0].float()), (2, arguments[2][:, :, :67]), (2, arguments[2][:, :32]), (5, None)):
        wrong = list(arguments)
        wrong[place] = arguments[5].long() if bad is None else bad
        with pytest.raises(AssertionError, match=r"\w"):
            check_scores(*wrong, torch.empty(1, 128))


def test_places_of_the_ring_have_owners() -> None:
    """Else a warpgroup can be a turn ahead of a late copy and take bytes that are not there."""
    for rows in range(1, MAX_ROWS_TOGETHER + 1):
        warpgroups, stages = ring_of(rows)
        assert stages % warpgroups == 0 and stages > warpgroups


CASES = [
    Case((8192,)),
    Case((1, 77, 1000, 5003), padding=16),
    Case((0, 4000, 129, 3), rows=6, block=128, padding=0),
    Case((2000, 900), rows=40, spread=0.0),
    Case((3000, 2500), rows=6, spread=3.0),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_equal_the_twin(case: Case) -> None:
    arguments = problem(case, "cuda")
    want, shown = expected(arguments, case.entries)
    alone = paged_index_scores(*arguments, poisoned(arguments, case.entries))
    check(alone, want, shown)
    check(triton_index_scores.paged_index_scores(*arguments, poisoned(arguments, case.entries)), want, shown)
    for together in (2, 6, 8, 16):  # integers where scales allow, e4m3 elsewhere: the same bits
        out = paged_index_scores(*arguments, poisoned(arguments, case.entries), together)
        assert torch.equal(bits(out)[shown], bits(alone)[shown]) and out[~shown].isnan().all()
    halved = (arguments[0], arguments[1].bfloat16(), *arguments[2:])
    rounded = (arguments[0], arguments[1].bfloat16().float(), *arguments[2:])
    a, b = (paged_index_scores(*x, poisoned(arguments, case.entries)) for x in (halved, rounded))
    assert torch.equal(bits(a)[shown], bits(b)[shown])


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [0.0, 3.0], ids=["int8", "e4m3"])
def test_scores_of_nan_keys_are_nan(spread: float) -> None:
    """In both forms, with weights of one sign too; other keys of the tile keep their bits."""
    case = Case((700, 300), rows=6, spread=spread)
    arguments = problem(case, "cuda")
    arguments[1].abs_()
    clean = paged_index_scores(*arguments, poisoned(arguments, case.entries))
    spoilt = spoil_keys(arguments[2], arguments[3])
    blocks = torch.arange(8, dtype=torch.int32, device="cuda").expand(12, -1).contiguous()
    scores = [paged_index_scores(*arguments, poisoned(arguments, case.entries), together) for together in (1, 2, 6, 16)]
    scores.append(candidate_scores(*arguments, blocks, poisoned(arguments, 64)))
    for out in scores:
        assert out[:6, [x for x in spoilt if x < out.shape[1]]].isnan().all()
        other = torch.ones_like(out, dtype=torch.bool)
        other[:6, [x for x in spoilt if x < out.shape[1]]] = False
        other &= ~clean[:, : out.shape[1]].isnan()
        assert torch.equal(bits(out)[other], bits(clean)[:, : out.shape[1]][other])


@pytest.mark.gpu
def test_scores_do_not_depend_on_the_batch() -> None:
    """The same rows in batches of 1 to 256 rows, elsewhere in them, beside rows of NaN, in other chunks."""
    case = Case((3000,) * 32, rows=8, spread=1.0)
    q, weight, store, tables, sequence, visible = problem(case, "cuda")
    whole = paged_index_scores(q, weight, store, tables, sequence, visible, poisoned((q,), 3072), 8)
    for count, offset in ((1, 0), (2, 5), (7, 100), (64, 33), (256, 0)):
        for together in (1, 4, 16):
            rows = slice(offset, offset + count)
            part = [x[rows].contiguous() for x in (q, weight)] + [store, tables]
            part += [x[rows].contiguous() for x in (sequence, visible)]
            out = paged_index_scores(*part, poisoned((part[0],), 3072), together)
            assert torch.equal(bits(out)[:, :2900], bits(whole)[rows, :2900])
    spoilt = q.clone()
    spoilt[1::2] = torch.nan
    out = paged_index_scores(spoilt, weight, store, tables, sequence, visible, poisoned((q,), 3072), 8)
    assert torch.equal(bits(out)[::2, :2900], bits(whole)[::2, :2900]) and out[1::2, :2900].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("count", [64, 2048])
def test_candidate_scores_are_those_of_the_entries(count: int) -> None:
    case = Case((20001, 300, 16384), rows=2)
    arguments = problem(case, "cuda")
    visible, width = arguments[-1], case.entries
    scores = paged_index_scores(*arguments, poisoned(arguments, width))
    blocks = torch.full((6, count), -1, dtype=torch.int32, device="cuda")
    for t in range(6):
        have = -(-int(visible[t]) // 8)
        numbers = torch.randperm(have, device="cuda")[:count].sort().values
        blocks[t, : len(numbers)] = numbers
    out = candidate_scores(*arguments, blocks, poisoned(arguments, 8 * count))
    entry = twins.candidate_entries(blocks)
    shown = (entry >= 0) & (entry < visible.unsqueeze(1))
    want = torch.where(shown, scores.gather(1, entry.clamp(0, width - 1)), -torch.inf)
    needed = torch.arange(8 * count, device="cuda") < visible.unsqueeze(1)
    assert torch.equal(bits(out)[needed], bits(want)[needed])
