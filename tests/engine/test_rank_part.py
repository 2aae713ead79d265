"""What one rank of several loads: its experts, its n-gram rows, the rest whole, with the values that one process has."""

from pathlib import Path

import pytest
import torch
from msgspec import structs
from small_models import Engine, random_tokens
from thread_peers import ThreadPeers, run_ranks

from deepinfer.arch.tensors import tensor_table
from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build_model import checkpoint_folder, load_model, tensor_names
from deepinfer.engine.build_spread import RankGroups, RankPart
from deepinfer.model.checkpoint import hub
from deepinfer.model.checkpoint.dummy import dummy_stored, dummy_weights
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_stored, load_weights
from deepinfer.parallel.placement import Placement
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

TINY_A = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
TABLE = "layers.1.engram.embed.weight"


def plan_of(*overrides: str) -> Plan:
    spec = load("hardware=cpu", "model=v41_tiny", "model.threads=1", *overrides)
    return resolve(spec, probe(spec))


def parts(plan: Plan, placed: Placement | None = None) -> list[RankPart]:
    return [RankPart(plan=plan, rank=rank, placed=placed) for rank in plan.layout.ranks]


def experts_in(names: list[str], prefix: str) -> set[int]:
    begin = f"{prefix}ffn.experts."
    return {int(name.removeprefix(begin).partition(".")[0]) for name in names if name.startswith(begin)}


def test_ranks_share_experts_and_each_has_the_rest() -> None:
    plan = plan_of("parallel=ep4", "speculation=dspark")
    whole, config = tensor_names(plan), plan.model.config
    held = [tensor_names(plan, part) for part in parts(plan)]
    for layer, count in (("layers.0.", config.n_routed_experts), ("mtp.0.", config.dspark_n_routed_experts)):
        found = [experts_in(names, layer) for names in held]
        assert set.union(*found) == set(range(count)) and sum(map(len, found)) == count
    rest = [name for name in whole if ".experts." not in name]
    assert all([name for name in names if ".experts." not in name] == rest for names in held)


def test_copies_are_loaded_where_they_lie() -> None:
    plan = plan_of("parallel=ep2", "parallel.redundant_experts=2")
    experts, layers = plan.model.config.n_routed_experts, plan.model.config.num_hidden_layers
    first, second = (experts_in(tensor_names(plan, part), "layers.2.") for part in parts(plan))
    half = (experts + 2) // 2
    assert first == set(range(half)) and second == {*range(half, experts), 0, 1}
    placed = Placement.initial(layers, experts, 2, 2)
    row = placed.expert_LP[2].copy()
    row[:2], row[-2:] = row[-2:].copy(), [1, 0]  # both copies now lie together with what they copy elsewhere
    moved = placed.with_row(2, row)
    assert [experts_in(tensor_names(plan, part), "layers.2.") for part in parts(plan, moved)] == [
        set(row[:half].tolist()),
        set(row[half:].tolist()),
    ]


@pytest.mark.parametrize(("place", "held"), [("sharded", 1 / 3), ("replicated", 1), ("host", 1)])
def test_rows_of_tables(place: str, held: float) -> None:
    """A CPU rank's memory is the host's: tables on the host are whole tables."""
    plan = plan_of("parallel.attention_dp=3", f"parallel.engram={place}")
    (total,) = plan.model.config.engram_num_embeddings
    spans = [part.rows.get(TABLE, (0, total)) for part in parts(plan)]
    lengths = [end - first for first, end in spans]
    assert max(lengths) - min(lengths) <= 1 and sum(lengths) == pytest.approx(3 * held * total, abs=0.5)
    assert all(rank.engram_rows == (span,) for rank, span in zip(plan.layout.ranks, spans))
    assert any("engram=host" in note for note in plan.notes) == (place == "host")


def test_some_rows_of_a_table_are_those_of_the_whole() -> None:
    checkpoint = open_checkpoint(TINY_A)
    layer = checkpoint.config.engram_layer_ids[0]
    name = f"layers.{layer}.engram.embed.weight"
    rows = next(spec.shape[0] for spec in tensor_table(checkpoint.config) if spec.name == name)
    for make in (
        lambda **kept: load_weights(checkpoint, [name], **kept),
        lambda **kept: dummy_weights(checkpoint.config, [name], **kept),
    ):
        whole = make(dtype=torch.bfloat16)[name]
        for span in ((0, rows), (5, 5), (0, 1), (rows // 3, rows // 3 * 2), (rows - 1, rows)):
            assert torch.equal(make(dtype=torch.bfloat16, rows={name: span})[name], whole[slice(*span)])


@pytest.mark.parametrize("made", ["read", "invented"])
def test_some_stored_rows_are_those_of_the_whole(made: str) -> None:
    """Codes and scales alike."""
    checkpoint = open_checkpoint(TINY_A)
    name = f"layers.{checkpoint.config.engram_layer_ids[0]}.engram.embed.weight"

    def stored(rows: dict[str, tuple[int, int]]) -> dict[str, torch.Tensor]:
        if made == "read":
            return load_stored(checkpoint, [name], rows=rows)
        return dummy_stored(checkpoint.config, [name], rows=rows)

    whole = stored({})
    total = len(whole[name])
    assert len(whole) == 2
    for first, end in ((0, total), (5, 5), (total // 3, total // 2), (total - 1, total)):
        part = stored({name: (first, end)})
        assert all(torch.equal(x.view(torch.uint8), whole[one][first:end].view(torch.uint8)) for one, x in part.items())


def test_progress_counts_the_bytes_of_the_rows_that_are_read() -> None:
    checkpoint, told = open_checkpoint(TINY_A), []
    name = f"layers.{checkpoint.config.engram_layer_ids[0]}.engram.embed.weight"
    load_weights(checkpoint, [name], rows={name: (3, 10)}, progress=lambda done, total: told.append((done, total)))
    width = next(spec.shape[1] for spec in tensor_table(checkpoint.config) if spec.name == name)
    assert told == [(7 * width, 7 * width)]


def test_ranks_of_a_plan_give_the_bits_of_one_process() -> None:
    """Invented weights are the same whoever holds them."""
    sizes = "model.weights=dummy", "sampling=reproducible", "speculation=dspark"
    plan, single = plan_of("parallel=ep2", "parallel.engram=sharded", *sizes), plan_of(*sizes)
    tokens = random_tokens(plan.model.config, 9, 1)

    def rank(peers: ThreadPeers) -> torch.Tensor:
        groups = RankGroups(rank=plan.layout.ranks[peers.rank], experts=peers, tables=peers)
        loaded = load_model(plan, None, groups)
        assert loaded.dispatch is not None and len(loaded.weights) < len(tensor_names(plan))
        return Engine(loaded.model, num_slots=1, blocks_per_slot=2).run(tokens[peers.rank :], [])

    alone = load_model(single, None).model
    for number, found in enumerate(run_ranks(2, rank)):
        assert torch.equal(found, Engine(alone, num_slots=1, blocks_per_slot=2).run(tokens[number:], []))


def test_a_rank_that_shares_nothing_has_the_whole_model() -> None:
    plan = plan_of("parallel.attention_dp=2", "parallel.engram=replicated", "model.weights=dummy")
    loaded = load_model(plan, None, RankGroups(rank=plan.layout.ranks[1]))
    assert loaded.dispatch is None and loaded.weights.keys() == set(tensor_names(plan))


def test_a_rank_fetches_the_shards_of_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("parallel=ep2")
    plan = structs.replace(plan, model=structs.replace(plan.model, source="hub", location="some/repository@main"))
    asked: list[list[str]] = []
    monkeypatch.setattr(hub, "fetch_checkpoint", lambda repo, revision, names, progress: asked.append(names))
    for rank in plan.layout.ranks:
        checkpoint_folder(plan, RankGroups(rank=rank))
    checkpoint_folder(plan)
    first, second, whole = asked
    assert set(first) | set(second) == set(whole) == set(tensor_names(plan)) and len(first) == len(second) < len(whole)
