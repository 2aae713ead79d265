"""One rank's share on the CPU: what it holds, which pairs its experts get, that its steps are those of the fused model."""

import json
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from msgspec import structs
from small_models import FIXTURES

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config, parse_config
from deepinfer.arch.engram import engram_tables
from deepinfer.config.facts import shipped_folder
from deepinfer.engine.rank_slice.clock import LEAST_RUNS, Clock
from deepinfer.engine.rank_slice.decode import Decoder
from deepinfer.engine.rank_slice.experts import FoldedExperts, Pairs
from deepinfer.engine.rank_slice.inputs import block_tables, fill_cache, prompt_step
from deepinfer.engine.rank_slice.measure import time_decode, time_prefill
from deepinfer.engine.rank_slice.model import SliceModel, slice_model
from deepinfer.engine.rank_slice.share import RankShare, share_config
from deepinfer.engine.rank_slice.steps import prompt_call
from deepinfer.engine.rank_slice.watch import Watch
from deepinfer.engine.rank_slice.weights import DummyShare
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.dummy import dummy_stored
from deepinfer.model.checkpoint.weights import weight_specs
from deepinfer.ops.device import twins

CPU = torch.device("cpu")
DEPTH, CONTEXT = 5, 150


@lru_cache(maxsize=1)
def small() -> V41Config:
    config = parse_config(json.loads((FIXTURES / "k6_config.json").read_text()))
    return structs.replace(config, candidate_block_size=8)


def share_of(ranks: int) -> RankShare:
    c = small()
    return RankShare(
        ranks=ranks,
        experts=c.n_routed_experts // ranks,
        draft_experts=c.dspark_n_routed_experts // ranks,
        table_rows=tuple(rows // ranks for rows in c.engram_num_embeddings),
        host_tables=False,
    )


def layout_of(config: V41Config) -> CacheLayout:
    layers = config.num_nextn_predict_layers
    return CacheLayout.of(config, dtype="float32", num_draft_layers=layers, backtrack=DEPTH + 1)


@lru_cache(maxsize=1)
def built() -> tuple[SliceModel, ModelCache]:
    layout = layout_of(small())
    made = slice_model(small(), share_of(2), twins(), layout, CPU, compact=False, max_positions=256)
    cache = ModelCache(small(), layout, num_blocks=8, num_slots=4)
    fill_cache(cache)
    return made, cache


def test_a_share_has_its_part_of_experts_and_tables_and_whole_routers() -> None:
    config, share = small(), share_of(2)
    stored, whole = DummyShare(config, share, CPU), dummy_stored(config)
    assert set(stored) < set(whole) and len(stored) == len(list(stored))
    missing = {name.split(".experts.")[0] for name in set(whole) - set(stored) if not name.endswith(".scale")}
    assert missing == {f"layers.{layer}.ffn" for layer in range(config.num_hidden_layers)} | {
        f"mtp.{layer}.ffn" for layer in range(config.num_nextn_predict_layers)
    }
    for name in stored:
        if name.endswith("engram.embed.weight"):
            assert len(stored[name]) <= share.table_rows[0] < len(whole[name])
        else:
            assert torch.equal(stored[name].view(torch.uint8), whole[name].view(torch.uint8)), name
    name = "layers.0.attn.wq_a.weight"
    assert torch.equal(
        stored[name.replace("weight", "scale")].view(torch.uint8),
        whole[name.replace("weight", "scale")].view(torch.uint8),
    )


def test_tables_of_the_released_share_fit_its_rows() -> None:
    config = parse_config(json.loads((shipped_folder("v41_flash") / "config.json").read_text()))
    rows = tuple(count // 64 for count in config.engram_num_embeddings)
    share = RankShare(ranks=64, experts=6, draft_experts=2, table_rows=rows, host_tables=False)
    local = share_config(config, share)
    assert (local.n_routed_experts, local.dspark_n_routed_experts) == (6, 2)
    sizes = [table.num_rows for table in engram_tables(local)]
    assert tuple(sizes) == local.engram_num_embeddings
    assert all(0.99 * most < size < 1.01 * most for size, most in zip(sizes, rows))
    specs = weight_specs(local)
    experts = sum(spec.nbytes for spec in specs if spec.group == "experts")
    assert experts == pytest.approx(40 * 6 * 18_800_640, rel=0.07)  # scales are not among the weights


@pytest.mark.parametrize("rows", [1, 2, 17, 128])
def test_balanced_pairs_are_as_many_as_the_rows_make_and_evenly_spread(rows: int) -> None:
    pairs = Pairs(64, 384, 6, "balanced", CPU)
    picks = pairs.picks(rows)
    assert pairs.load == pytest.approx(1) and picks.shape == (rows, 6) and picks.dtype == torch.int32
    assert torch.bincount(picks.flatten(), minlength=6).tolist() == [rows] * 6
    assert pairs.picks(rows) is picks


@pytest.mark.parametrize("rows", [1, 32, 1000])
def test_skewed_pairs_are_those_of_the_busiest_rank(rows: int) -> None:
    pairs = Pairs(64, 384, 6, "skewed", CPU)
    by_rank = np.random.default_rng(0).permutation(np.arange(1, 385.0) ** -0.5).reshape(64, 6)
    expected = by_rank.sum(1).max() / by_rank.sum(1).mean()
    assert 1.5 < pairs.load == pytest.approx(expected)
    picks = pairs.picks(rows)
    chosen = picks[picks >= 0]
    assert len(chosen) == pytest.approx(expected * rows * 6, abs=1) and picks.shape[1] >= 6
    counts = torch.bincount(chosen, minlength=6)
    shares = by_rank[by_rank.sum(1).argmax()]
    assert counts.numpy() == pytest.approx(len(chosen) * shares / shares.sum(), abs=1)


def test_one_rank_alone_has_no_busiest() -> None:
    assert Pairs(1, 384, 6, "skewed", CPU).load == pytest.approx(1)


@pytest.mark.parametrize("routing", ["balanced", "skewed"])
def test_folded_experts_compute_the_pairs_that_they_are_given(routing: str) -> None:
    made, _ = built()
    made.route(routing)  # type: ignore[arg-type]
    experts = made.model.layers[1].experts
    assert isinstance(experts, FoldedExperts)
    seen: list[torch.Tensor] = []

    def note(x: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(starts)
        return twins().fp4_experts_up(x, rows, starts, *rest)

    rows = 24
    watched = FoldedExperts(small(), replace(twins(), fp4_experts_up=note), experts.weights, experts.pairs)
    x = torch.randn(rows, small().hidden_size)
    grid = twins().quantise(x).grid_TD
    out = watched(x, grid)
    assert seen[0].diff().tolist() == experts.pairs.counts(rows).tolist()
    assert torch.equal(out, experts(x, grid)) and out.isfinite().all() and out.abs().sum() > 0
    shared = twins().swiglu_quantise(twins().fp8_linear(grid, experts.weights.shared_w13), None, small().swiglu_limit)
    assert not torch.equal(out, twins().fp8_linear(shared, experts.weights.shared_w2))


def test_cache_rows_are_valid_and_differ() -> None:
    _, cache = built()
    from deepinfer.formats import unpack_index, unpack_main, unpack_window

    stores = [(unpack_main, list(cache.main_rows.values())), (unpack_index, list(cache.index_rows.values()))]
    for unpack, views in [*stores, (unpack_window, list(cache.rings))]:
        for view in views:
            values = unpack(view.reshape(-1, view.shape[2]))
            assert values.isfinite().all() and 0.5 < values.std() < 2
            assert not torch.equal(values[0], values[1])
    tables = block_tables(3, 130, 128)
    assert sorted(tables.flatten().tolist()) == list(range(6))


@pytest.mark.parametrize("rows_each", [1, 1 + DEPTH])
def test_a_decode_step_is_that_of_the_engine_and_the_same_every_time(rows_each: int) -> None:
    made, cache = built()
    made.route("balanced")
    decoder = Decoder(made, cache, Clock(CPU, graphs=False), sequences=3, depth=DEPTH, max_model_len=200)
    before = cache.blocks.clone()
    calls = decoder.prepare(2, rows_each, CONTEXT)
    calls.step()
    assert decoder.state.num_tokens_N[:2].tolist() == [CONTEXT - rows_each + 1] * 2, "nothing is appended"
    assert not torch.equal(cache.blocks, before), "entries of the new rows are written"
    assert (calls.drafting is None) == (rows_each == 1)
    after = cache.blocks.clone()
    if rows_each == 1:
        calls.body()
        assert torch.equal(cache.blocks, after)


def test_a_prompt_that_keeps_few_rows_gives_its_last_row() -> None:
    made, cache = built()
    made.model.compact = made.model.rows.compact = True
    step = prompt_step(small(), 60, 0, 60, 128, 20)
    assert step.upper_from is not None and step.upper_from.tolist() == [40] and step.sample_rows.tolist() == [59]
    token = prompt_call(made.model, cache, step)()
    assert isinstance(token, torch.Tensor) and token.shape == (1,) and 0 <= int(token) < small().vocab_size
    first = prompt_step(small(), 60, 0, 30, 128, 20)
    hidden = prompt_call(made.model, cache, first)()
    assert isinstance(hidden, torch.Tensor) and len(hidden) == 30 and not hidden.any(), "no row passes the later layers"
    made.model.compact = made.model.rows.compact = False


def test_times_have_all_their_parts() -> None:
    made, cache = built()
    clock = Clock(CPU, graphs=True, runs=5, most_s=0.001)
    assert not clock.graphs
    decoder = Decoder(made, cache, clock, sequences=3, depth=DEPTH, max_model_len=200)
    made.route("balanced")
    time = time_decode(decoder, clock, 2, 1 + DEPTH, CONTEXT, "skewed")
    assert time.load > 1 and time.drafting is not None and 0 < time.drafting.median_ms < time.took.median_ms
    assert time.took.least_ms <= time.took.median_ms <= time.took.most_ms and time.took.runs == LEAST_RUNS
    prompt = time_prefill(made, cache, clock, 40, 32, None, "balanced")
    assert (prompt.tokens, prompt.chunk_tokens, prompt.keep, prompt.load) == (40, 32, None, pytest.approx(1))


def test_watched_operations_compute_the_same() -> None:
    ops = Watch(twins()).ops
    x = torch.randn(3, 64)
    assert torch.equal(ops.quantise(x).grid_TD, twins().quantise(x).grid_TD) and ops.name == "twins"


@pytest.mark.gpu
def test_graphs_change_no_byte_and_are_told_operation_by_operation() -> None:
    from deepinfer.ops.device_choice import device_ops

    device, config = torch.device("cuda"), small()
    ops, _ = device_ops(config, torch.bfloat16)
    watch = Watch(ops)
    layers = config.num_nextn_predict_layers
    layout = CacheLayout.of(config, dtype="bfloat16", num_draft_layers=layers, backtrack=DEPTH + 1)
    made = slice_model(config, share_of(2), watch.ops, layout, device, compact=False, max_positions=256)
    cache = ModelCache(config, layout, num_blocks=8, num_slots=4, device=device)
    fill_cache(cache)
    begun, left = (cache.blocks.clone(), cache.state.clone()), []
    for graphs in (False, True):
        cache.blocks.copy_(begun[0])
        cache.state.copy_(begun[1])
        decoder = Decoder(made, cache, Clock(device, graphs=graphs), sequences=3, depth=DEPTH, max_model_len=200)
        decoder.state.tokens_NL.fill_(7)
        decoder.prepare(2, 1, CONTEXT).step()
        left.append((cache.blocks.clone(), cache.state[:-1].clone()))  # the padding slot keeps what nobody reads
    for one, other in zip(*left):
        assert torch.equal(one, other)
    body = Decoder(made, cache, Clock(device, graphs=False), sequences=3, depth=DEPTH, max_model_len=200)
    found = {entry.op: entry for entry in watch.profile(body.prepare(2, 1, CONTEXT).body)}
    assert found["sparse_attention"].calls == config.num_hidden_layers and found["sparse_attention"].ms > 0
