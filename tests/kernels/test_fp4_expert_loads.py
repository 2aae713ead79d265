"""MXFP4 experts at real widths and loads of 6, 48 and 384 local experts: checked by sample, timed beside peers. GPU only.

Apart from test_fp4_experts.py, which checks every row at small widths: weights of this size are made once, for all cases.
"""

from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from deepinfer.kernels import cuda_fp4_experts_up, cuda_fp4_grouped_linear
from deepinfer.kernels.fp4_expert_tiles import TiledFp4Experts, tile_experts, tiled
from fp4_expert_cases import CHOSEN, HIDDEN, INNER, activations, check, random_experts, starts_of
from torch import Tensor

from deepinfer.ops import fp4_experts as twin
from deepinfer.ops.fp4_experts import Fp4Experts


@dataclass(frozen=True)
class Load:
    """Rows over the experts of one device: `even`, drawn from all alike, or drawn by Zipf's law in random order."""

    experts: int
    rows: int
    spread: str
    target: str = ""
    peers: bool = False

    def counts(self) -> list[int]:
        if self.spread == "even":
            return [self.rows // self.experts] * self.experts
        chance = torch.ones(self.experts)
        if self.spread == "zipf":
            chance = 1.0 / (1.0 + torch.randperm(self.experts))
        return torch.multinomial(chance, self.rows, True).bincount(minlength=self.experts).tolist()


DECODE, PREFILL = "≥ 75 % of copy bandwidth on touched experts", "≥ 600 TF"
ALL_EXPERTS, MOST_COPIES = 384, 8
LOADS = (
    Load(384, 384, "drawn", DECODE),
    Load(384, 1536, "drawn", DECODE),
    Load(384, 6144, "drawn", DECODE, peers=True),
    Load(384, 6144, "zipf", DECODE),
    Load(384, 24576, "drawn", PREFILL),
    Load(48, 768, "drawn", DECODE),
    Load(48, 24576, "drawn", PREFILL),
    Load(6, 24, "even", DECODE),
    Load(6, 96, "drawn", DECODE, peers=True),
    Load(6, 24576, "even", PREFILL, peers=True),
)
PEERS = ("grouped_mm_bf16", "triton_kernels_mxfp4", "lmdeploy_fp4_experts", "deep_gemm_contiguous", "deep_gemm_masked")


@lru_cache(maxsize=1)
def weights(op: str) -> tuple[Fp4Experts, TiledFp4Experts]:
    """384 experts of one product, as stored and in tiles: 7 GB together, so one product at a time."""
    outputs, columns = (HIDDEN, INNER) if op == "w2" else (2 * INNER, HIDDEN)
    weight = random_experts(ALL_EXPERTS, outputs, columns, "cuda", (117, 122))
    return weight, tile_experts(weight, paired=op == "w13_swiglu")


class Problem:
    """One product of a load: local experts in as many copies as exceed the cache where they can, and random rows."""

    def __init__(self, op: str, load: Load) -> None:
        torch.manual_seed(0)
        self.op, self.load = op, load
        self.weight, tiles = weights(op)
        _, self.outputs, self.columns = tiles.shape
        parts = tiles.pieces_EMCB.split(load.experts)[:MOST_COPIES]
        self.tiles = [tiled(part, tiles.paired) for part in parts]
        self.counts = load.counts()
        self.starts_E1 = starts_of(self.counts, "cuda")
        tokens = load.rows if op == "w2" else max(load.rows // CHOSEN, 1)
        self.x_TK, self.weights_P = activations(tokens, self.columns, "cuda"), torch.rand(load.rows, device="cuda")
        self.rows_P = None if op == "w2" else torch.randint(0, tokens, (load.rows,), device="cuda").int()

    def __call__(self, copy: int) -> Tensor:
        if self.op == "w13_swiglu":
            arguments = (self.x_TK, self.rows_P, self.starts_E1, self.weights_P, self.tiles[copy])
            return cuda_fp4_experts_up.fp4_experts_up(*arguments)
        return cuda_fp4_grouped_linear.fp4_grouped_linear(self.x_TK, self.rows_P, self.starts_E1, self.tiles[copy])

    def check(self, out: Tensor) -> None:
        """A few rows drawn from all."""
        some = torch.randperm(self.load.rows, device="cuda")[:32].sort().values
        owners = torch.bucketize(some, self.starts_E1[1:], right=True)
        starts_E1 = starts_of(owners.bincount(minlength=self.load.experts).tolist(), "cuda")
        rows = some.int() if self.rows_P is None else self.rows_P[some]
        if self.op == "w13_swiglu":
            expected = twin.fp4_experts_up(self.x_TK, rows, starts_E1, self.weights_P[some], self.weight)
            assert (out[some] != expected).float().mean() <= 5e-3
        else:
            check(out[some], twin.fp4_grouped_linear(self.x_TK.double(), rows, starts_E1, self.weight))

    def peers(self) -> dict:
        if not self.load.peers or self.op != "w13":
            return {}
        import kernel_peers

        x_PK = self.x_TK[self.rows_P.long()]
        one = self.weight[: self.load.experts]
        return kernel_peers.grouped([(x_PK, torch.tensor(self.counts), one.codes_ENB, one.scale_ENG)], only=PEERS)


@pytest.mark.gpu
@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.experts}-{load.rows}-{load.spread}")
@pytest.mark.parametrize("op", ("w13", "w13_swiglu", "w2"))
def test_speed(op: str, load: Load, timed, request: pytest.FixtureRequest) -> None:
    problem = Problem(op, load)
    out = problem(0)
    problem.check(out)
    if request.config.getoption("--time") is None:
        return
    touched_bytes = sum(count > 0 for count in problem.counts) * problem.outputs * problem.columns * 17 // 32
    timed(
        f"fp4_experts {op}",
        f"{load.experts} experts, {load.rows} rows {load.spread}",
        [lambda copy=copy: problem(copy) for copy in range(len(problem.tiles))],
        flops=2.0 * load.rows * problem.outputs * problem.columns,
        moved_bytes=touched_bytes + problem.x_TK.nbytes + out.nbytes,
        peers=problem.peers(),
        runs=15,
        target=load.target,
        variant="invariant",
        weight_bytes=touched_bytes,
    )
