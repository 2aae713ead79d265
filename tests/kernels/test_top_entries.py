"""Choosing the best entries and blocks: the twins on CPU, CUDA C++ on a GPU against them, timed.

CUDA C++ (cuda_top_entries, cuda_candidate_blocks) runs on GPUs only.
"""

import pytest
import torch
from deepinfer.kernels.cuda_candidate_blocks import candidate_blocks
from deepinfer.kernels.cuda_top_entries import (
    LONGEST,
    MAX_CLUSTER,
    MAX_ELEMENTS,
    THREADS,
    best_of_parts,
    shape_of,
    top_entries,
)
from torch import Tensor

from deepinfer.ops import index
from deepinfer.ops import indexer as twins

COUNT, BLOCKS = 512, 2048
KINDS = ("normal", "ties", "equal", "relu", "strange", "few")


def scores(kind: str, rows: int, width: int, device: str) -> Tensor:
    """Random scores: "strange" holds NaN and both infinities, "few" three numbers a row, "relu" zeros of both signs."""
    draw = torch.Generator(device).manual_seed(rows + width)
    x = torch.randn(rows, width, generator=draw, device=device)
    if kind == "ties":
        x = (3 * x).round()
    elif kind == "equal":
        x.fill_(1.5)
    elif kind == "relu":
        x = (x - 1.9).relu() * x.sign()
    elif kind == "strange":
        x[:, ::3], x[:, 1::7], x[:, width // 4 : width // 2] = torch.nan, torch.inf, -torch.inf
    elif kind == "few":
        x[:, 3:] = -torch.inf
    return x


def lengths(rows: int, width: int, device: str) -> Tensor:
    draw = torch.Generator(device).manual_seed(rows)
    visible = torch.randint(0, width + 1, (rows,), generator=draw, device=device, dtype=torch.int32)
    visible[0] = width
    if rows > 3:
        visible[1], visible[2] = 0, 5
    return visible


def chosen(op, *inputs: Tensor, count: int) -> Tensor:
    """What `op` writes over poison."""
    out = torch.full((len(inputs[0]), count), -7, dtype=torch.int32, device=inputs[0].device)
    return op(inputs[0], inputs[1], out, *inputs[2:])


@pytest.mark.parametrize("kind", KINDS)
def test_packed_candidates_give_the_choice_of_masked_scores(kind: str) -> None:
    """The composition that replaces keep_candidates: blocks, their scores packed, the best of those."""
    x, visible = scores(kind, 5, 640, "cpu").nan_to_num(nan=-torch.inf), lengths(5, 640, "cpu")
    x = x.masked_fill(torch.arange(640) >= visible.unsqueeze(1), -torch.inf)
    mask = index.candidate_blocks(x, visible, 8, 30)
    blocks = chosen(twins.candidate_blocks, x, visible, count=30)
    assert torch.equal(torch.zeros_like(mask).scatter_(1, blocks.clamp(min=0).long(), blocks >= 0) | mask, mask)
    assert torch.equal((blocks >= 0).sum(1), mask.sum(1))
    entry = twins.candidate_entries(blocks)
    packed = torch.where(entry >= 0, x.gather(1, entry.clamp(min=0)), -torch.inf)
    want = index.best_entries(index.keep_candidates(x, mask, 8), 60)
    assert torch.equal(chosen(twins.top_entries, packed, visible, blocks, count=60).long(), want)


def test_nan_is_never_chosen() -> None:
    x = torch.tensor([[torch.nan, 1.0, -torch.inf, 2.0, torch.nan, 0.0, 5.0, 5.0]])
    out = chosen(twins.top_entries, x, torch.tensor([7], dtype=torch.int32), count=5)
    assert out.tolist() == [[1, 3, 5, 6, -1]]


def test_a_row_is_cut_so_that_it_fits() -> None:
    for group, rows in ((1, 1), (1, 64), (8, 1), (8, 64)):
        for width in (8, 512, 4096, 16384, 16392, 65536, 131072, 262144):
            cluster, elements = shape_of(rows, width // group, group)
            assert cluster * elements * THREADS >= width // group and elements % 4 == 0
            assert cluster <= MAX_CLUSTER and elements <= MAX_ELEMENTS[group]
    with pytest.raises(ValueError, match="longer than"):
        shape_of(1, LONGEST + 8, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [60, 63, 200])
def test_the_best_of_parts_are_those_of_whole_rows(kind: str, count: int) -> None:
    x, visible = scores(kind, 5, 640, "cpu"), lengths(5, 640, "cpu")
    widths = []

    def choose(scores_TJ: Tensor, *others: Tensor) -> Tensor:
        widths.append(scores_TJ.shape[1])
        return twins.top_entries(scores_TJ, *others)

    got = chosen(lambda *given: best_of_parts(*given, 256, choose), x, visible, count=count)
    assert torch.equal(got, chosen(twins.top_entries, x, visible, count=count))
    assert widths[:3] == [256, 256, 128] and widths[3] % 8 == 0


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "width"),
    [(5, 4096), (1, 16384), (64, 16384), (5, 32776), (4, 65536), (2, 131072), (3, 262144), (2, 524296)],
)
def test_choices_equal_the_twins(kind: str, rows: int, width: int) -> None:
    x, visible = scores(kind, rows, width, "cuda"), lengths(rows, width, "cuda")
    got, want = (chosen(op, x, visible, count=COUNT) for op in (top_entries, twins.top_entries))
    assert torch.equal(got, want)
    blocks, want = (chosen(op, x, visible, count=BLOCKS) for op in (candidate_blocks, twins.candidate_blocks))
    assert torch.equal(blocks, want)
    if width >= 16384:
        shown = blocks.gather(1, (torch.arange(8 * BLOCKS, device="cuda") // 8).expand(rows, -1)) >= 0
        packed = x[:, : 8 * BLOCKS].masked_fill(~shown, -torch.inf)  # as candidate_scores leaves blocks that are none
        got, want = (chosen(op, packed, visible, blocks, count=COUNT) for op in (top_entries, twins.top_entries))
        assert torch.equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 4096), (1, 16384), (64, 16384), (1, 65536), (64, 65536), (1, 262144), (1024, 16384)]
)
def test_speed_of_choices(rows: int, width: int, timed, request) -> None:
    """Scores come from the kernel before and lie in the second-level cache where they fit: one copy, as in the engine."""
    if not request.config.getoption("--time"):
        pytest.skip("peers are built only to be timed")
    import kernel_peers

    x = scores("normal", rows, width, "cuda")
    visible = torch.full((rows,), width, dtype=torch.int32, device="cuda")
    out = torch.empty(rows, COUNT, dtype=torch.int32, device="cuda")
    peers = kernel_peers.top_k([(x, COUNT)]) if width != 4096 and rows <= 64 else {}
    values = {}
    if width == 16384 and rows <= 64:
        values = {"target": "≤ 10 µs", "published": "SGLang v1 39 µs (1 row, 16K; aiconfigurator 0.12)"}
    elif width == 262144:
        values = {"published": "SGLang v2 15.9 µs (1 row, 262K; aiconfigurator 0.12)"}
    calls = [lambda: top_entries(x, visible, out)]
    moved = rows * (4 * width + 4 * COUNT)
    timed("top_entries", f"{COUNT} of {width}, {rows} rows", calls, moved_bytes=moved, peers=peers, **values)
    blocks = torch.empty(rows, BLOCKS, dtype=torch.int32, device="cuda")
    calls = [lambda: candidate_blocks(x, visible, blocks)]
    timed("candidate_blocks", f"{BLOCKS} of {width // 8}, {rows} rows", calls, moved_bytes=rows * 4 * (width + BLOCKS))
