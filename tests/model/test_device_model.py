"""Small models on a GPU, by the operations that their widths get there, beside the twins on the CPU."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
import torch
from fused_models import golden, row_by_row, trained
from likely_tokens import Piece, choose_the_same_tokens
from small_models import make_step, random_tokens
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.weights import load_stored
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.device_choice import device_ops

NO_WORSE = 1.1  # times the twins' own distance from float64 in bfloat16, at most
SLOTS, BLOCKS = 8, 16  # sequences, and blocks of each


@dataclass
class OnDevice:
    model: FusedModel
    cache: ModelCache

    def step(self, *pieces: Piece) -> Tensor:
        """Hidden rows of one step."""
        tables = [[slot * BLOCKS + b for b in range(BLOCKS)] for *_, slot in pieces]
        return self.model.forward(make_step([(*piece, table) for piece, table in zip(pieces, tables)]), self.cache)

    def forget(self) -> None:
        self.cache.fill_nan(list(range(self.cache.num_blocks)))
        self.cache.fill_nan_slots(list(range(SLOTS)))


@lru_cache(maxsize=6)
def made(name: str, device: str, kind: str) -> OnDevice:
    """By the twins, or by the operations that are chosen for a GPU."""
    opened = {"trained": trained, "golden": golden}[name]()
    config = opened.config
    dtype = "float64" if kind == "float64 twins" else "bfloat16"
    layout = CacheLayout.of(config, dtype=dtype, block_tokens=64, backtrack=6)
    ops = device_ops(config, torch.bfloat16)[0] if kind == "chosen" else row_by_row()
    common = {"layout": layout, "token_classes": opened.engram_classes, "max_positions": 1024}
    model = FusedModel(config, load_stored(opened), ops, **common, device=device)
    return OnDevice(model, ModelCache(config, layout, num_blocks=SLOTS * BLOCKS, num_slots=SLOTS, device=device))


@pytest.fixture(params=["trained", "golden"])
def gpu(request: pytest.FixtureRequest) -> OnDevice:
    found = made(request.param, "cuda", "chosen")
    found.forget()
    return found


def texts_of(engine: OnDevice, length: int = 300) -> list[list[int]]:
    return [random_tokens(engine.model.config, length, seed) for seed in (41, 42, 43)]


@pytest.mark.gpu
def test_the_trained_model_chooses_the_tokens_that_it_chooses_on_a_cpu() -> None:
    both = made("trained", "cpu", "twins"), made("trained", "cuda", "chosen")
    for engine in both:
        engine.forget()

    def logits_of(pieces: list[Piece], rows: Tensor) -> tuple[Tensor, Tensor]:
        one, other = (e.model.logits(e.step(*pieces)[rows.to(e.model.device)]).cpu() for e in both)
        return one, other

    choose_the_same_tokens(logits_of, 12)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["trained", "golden"])
def test_long_texts_are_as_near_to_exact_ones_as_the_twins_are(name: str) -> None:
    """Beyond windows, lists and candidates; chunks of two sequences, then single rows. Roundings that turn over elsewhere move
    whole rows, so both are held against the twins in float64."""
    exact, twin, ours = (made(name, "cuda", kind) for kind in ("float64 twins", "twins", "chosen"))
    texts = texts_of(ours, 620)[:2]
    errors: dict[str, list[Tensor]] = {"twins": [], "chosen": []}
    for engine in (exact, twin, ours):
        engine.forget()
    for first, end in ((0, 150), (150, 151), (151, 600), (600, 606), (606, 607)):
        pieces = [(text, first, end, slot) for slot, text in enumerate(texts)]
        wanted = exact.model.logits(exact.step(*pieces))
        for kind, engine in (("twins", twin), ("chosen", ours)):
            errors[kind].append((engine.model.logits(engine.step(*pieces)) - wanted).square().mean(-1).sqrt())
    of_twins, of_ours = torch.cat(errors["twins"]), torch.cat(errors["chosen"])
    assert of_ours.median() <= NO_WORSE * of_twins.median() and of_ours.mean() <= NO_WORSE * of_twins.mean()
    assert of_ours.quantile(0.95) <= NO_WORSE * of_twins.quantile(0.95)


@pytest.mark.gpu
def test_a_row_alone_has_the_bits_that_it_has_in_company(gpu: OnDevice) -> None:
    """In chunks, single rows and mixed steps."""
    one, two, three = texts_of(gpu)
    whole = gpu.step((one, 0, 300, 0))
    assert torch.isfinite(whole).all()
    for first, end in ((0, 60), (60, 61), (61, 68), (68, 69), (69, 200)):
        assert torch.equal(gpu.step((one, first, end, 1)), whole[first:end])
    gpu.step((two, 0, 90, 2), (three, 0, 140, 3))
    mixed = gpu.step((two, 90, 96, 2), (one, 200, 206, 1), (three, 140, 300, 3))
    assert torch.equal(mixed[6:12], whole[200:206])
    mixed = gpu.step(*[(two, 0, 1, slot) for slot in (4, 5, 6)], (one, 206, 207, 1), (two, 96, 97, 2))
    assert torch.equal(mixed[3:4], whole[206:207])


@pytest.mark.gpu
def test_a_graph_of_a_decode_step_replays_its_bits(gpu: OnDevice) -> None:
    one, two, three = texts_of(gpu)
    gpu.step((one, 0, 200, 0), (two, 0, 77, 1), (three, 0, 5, 2))
    pieces = (one, 200, 201, 0), (two, 77, 78, 1), (three, 5, 6, 2)
    expected = gpu.step(*pieces).clone()
    kept = gpu.cache.blocks.clone(), gpu.cache.state.clone()
    tables = [[slot * BLOCKS + b for b in range(BLOCKS)] for slot in range(3)]
    with torch.inference_mode():
        rows = gpu.model.rows(make_step([(*piece, table) for piece, table in zip(pieces, tables)]), gpu.cache)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            hidden_TD = gpu.model.run_rows(*rows, gpu.cache, None)
            logits_TV = gpu.model.logits(hidden_TD)
        hidden_TD.fill_(torch.nan)
        graph.replay()
        assert torch.equal(hidden_TD, expected) and torch.equal(logits_TV, gpu.model.logits(expected))
    assert torch.equal(gpu.cache.blocks, kept[0]) and torch.equal(gpu.cache.state, kept[1])
    assert np.isfinite(logits_TV.float().cpu().numpy()).all()
