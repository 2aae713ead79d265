"""MXFP4 experts where blocks share out few rounds of work: items are cut between them, and rows keep their bits."""

import pytest
import torch
from deepinfer.kernels import cuda_fp4_experts_up, cuda_fp4_grouped_linear
from deepinfer.kernels.cuda_fp4_grouped_linear import FORMS, FORMS_UP, form_of, may_cut
from deepinfer.kernels.fp4_expert_tiles import PIECE_BYTES, tile_experts, tiled
from fp4_expert_cases import HIDDEN, INNER, activations, random_experts, starts_of
from torch import Tensor

EXPERTS, ROWS = 6, 1536  # of the launches
LOADS = (
    [32] * EXPERTS,
    [128] * EXPERTS,
    [192] * EXPERTS,
    [256] * EXPERTS,
    [62, 316, 78, 104, 156, 52],
    [0, 1500, 0, 3, 33, 0],
    [1, 0, 0, 0, 0, 0],
    [0] * EXPERTS,
)


@pytest.mark.parametrize(("forms", "outputs", "columns"), ((FORMS_UP, 2 * INNER, HIDDEN), (FORMS, HIDDEN, INNER)))
def test_sums_have_memory_wherever_items_may_outnumber_blocks(forms: tuple, outputs: int, columns: int) -> None:
    torch.manual_seed(0)
    blocks = 132
    pieces = torch.empty(EXPERTS, outputs // 256, columns // 64, PIECE_BYTES, dtype=torch.uint8, device="meta")
    weight = tiled(pieces, paired=False)
    for rows in (1, 6, 40, 192, 480, 768, ROWS):
        form = form_of(rows, EXPERTS, forms)
        for _ in range(50):
            counts = torch.multinomial(torch.rand(EXPERTS), rows, True).bincount(minlength=EXPERTS)
            items = int((counts + form.tile_rows - 1).div(form.tile_rows, rounding_mode="floor").sum())
            items *= -(-outputs // (64 * form.units))
            assert not form.cut or items <= blocks or may_cut(form, rows, weight, blocks), (rows, counts)


class Launch:
    """One of the two products on the same rows, whatever the counts."""

    def __init__(self, op: str) -> None:
        torch.manual_seed(0)
        self.op = op
        outputs, columns = (2 * INNER, HIDDEN) if op == "up" else (HIDDEN, INNER)
        self.weight = tile_experts(random_experts(EXPERTS, outputs, columns, "cuda", (117, 122)), paired=op == "up")
        self.x_TK = activations(97, columns, "cuda")
        self.rows_P = torch.randint(0, 97, (ROWS,), device="cuda").int()

    def __call__(self, rows_P: Tensor, starts_E1: Tensor) -> Tensor:
        if self.op == "down":
            return cuda_fp4_grouped_linear.fp4_grouped_linear(self.x_TK, rows_P, starts_E1, self.weight)
        weights_P = torch.full(rows_P.shape, 0.5, device="cuda")
        return cuda_fp4_experts_up.fp4_experts_up(self.x_TK, rows_P, starts_E1, weights_P, self.weight)

    def alone(self, place: int, expert: int) -> Tensor:
        """The result of one sorted row without any other."""
        counts = [int(other == expert) for other in range(EXPERTS)]
        return self(self.rows_P[place : place + 1], starts_of(counts, "cuda"))[0]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", (192, 480, ROWS))
@pytest.mark.parametrize("op", ("up", "down"))
def test_rows_of_cut_items_keep_their_bits(op: str, rows: int) -> None:
    """Graph replays of one launch of so many rows, with other counts from turn to turn, beside rows without company."""
    launch, starts_E1 = Launch(op), starts_of([rows // EXPERTS] * EXPERTS, "cuda")
    rows_P = launch.rows_P[:rows]
    launch(rows_P, starts_E1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_PN = launch(rows_P, starts_E1)
    for counts in LOADS:
        if sum(counts) > rows:
            continue
        starts_E1.copy_(starts_of(counts, "cuda"))
        for _ in range(2):
            out_PN.fill_(float("nan"))
            graph.replay()
        assert not launch.weight.counters.any()
        assert out_PN[sum(counts) :].isnan().all() and not out_PN[: sum(counts)].isnan().any()
        starts = starts_E1.tolist()
        for expert, count in enumerate(counts):
            for place in {starts[expert] + part * (count - 1) // 4 for part in range(5)} if count else ():
                assert torch.equal(out_PN[place], launch.alone(place, expert)), (counts, expert, place)
