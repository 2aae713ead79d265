"""What the plan says of memory is what the built engine holds, class by class."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.model.layer_weights import AttentionWeights, EngramWeights, ExpertWeights, HyperWeights
from deepinfer.plan.resolve import resolve

FIXTURES = Path(__file__).parents[1] / "fixtures"
WEIGHTS = (AttentionWeights, EngramWeights, ExpertWeights, HyperWeights)
ROUTED = {"w13", "w2"}  # fields of ExpertWeights that hold the routed experts


def parts(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Every record of weights that can be reached from a layer."""
    if id(thing) in seen or isinstance(thing, torch.Tensor):
        return
    seen.add(id(thing))
    if isinstance(thing, WEIGHTS):
        yield thing
    elif hasattr(thing, "__dict__") and type(thing).__module__.startswith("deepinfer.model"):
        for value in vars(thing).values():
            yield from parts(value, seen)


def allocated(graph: EngineGraph) -> Counter[str]:
    """Bytes by class of weights that the model really holds, each storage once."""
    model = graph.model
    assert model is not None
    held = [("embed", model.embed_VD), ("head", model.head_VD), ("head", model.norm_D)]
    for layer in model.layers:
        for record in parts(layer, set()):
            for field in dataclasses.fields(record):
                value = getattr(record, field.name)
                group = "experts" if isinstance(record, ExpertWeights) and field.name in ROUTED else "dense"
                group = "engram" if field.name == "table_RD" else group
                tensors = value if isinstance(value, tuple) else (value,)
                held += [(group, tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
    storages = {
        tensor.untyped_storage().data_ptr(): (group, tensor.untyped_storage().nbytes()) for group, tensor in held
    }
    sizes: Counter[str] = Counter()
    for group, num_bytes in storages.values():
        sizes[group] += num_bytes
    return sizes


def wide_slice(folder: Path) -> Path:
    """Four layers of the released model's kinds, half as wide and with few experts: a slice that fits a test."""
    raw = json.loads((FIXTURES / "k6_config.json").read_text())
    raw["text_config"] |= {
        "hidden_size": 640, "num_hidden_layers": 4, "num_attention_heads": 16, "q_lora_rank": 320, "o_groups": 8,
        "o_lora_rank": 128, "compress_ratios": [0, 2, 1, 1, 0, 0], "kv_source_layer_ids": [1, 2],
        "index_source_layer_ids": [1, 2, 3], "index_n_heads": 8, "candidate_source_layer_id": 2, "moe_intermediate_size": 288,
        "n_routed_experts": 6, "dspark_target_layer_ids": [1, 2, 3],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize("which", ["k6", "k6 float64", "tiny_a", "tiny_a plain rows", "wide slice"])
def test_planned_bytes_are_allocated(which: str, tmp_path: Path) -> None:
    overrides = {
        "k6": ("model=v41_tiny",),
        "k6 float64": ("model=v41_tiny", "model.weights=dummy", "model.dtype=float64"),
        "tiny_a": (f"model.path={FIXTURES / 'golden' / 'tiny_a'}", "model.dtype=float64"),
        "tiny_a plain rows": (f"model.path={FIXTURES / 'golden' / 'tiny_a'}", "model.numerics=none"),
        "wide slice": (f"model.path={wide_slice(tmp_path)}", "model.weights=dummy"),
    }[which]
    spec = load("hardware=cpu", "model.max_model_len=1024", "scheduler.max_num_seqs=4", *overrides)
    plan = resolve(spec, probe(spec))
    graph = build_graph(plan)
    planned, found = plan.memory[0], allocated(graph)
    for group in ("embed", "head", "dense", "experts", "engram"):
        assert found[group] == pytest.approx(planned.item(group).num_bytes, rel=0.01), group
    assert graph.cache is not None
    assert graph.cache.nbytes == planned.item("kv_pool").num_bytes + planned.item("state").num_bytes
    graph.engine.close()
