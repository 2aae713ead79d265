"""What the plan of a GPU says of memory is what a model of fused operations holds: weights, draft module, caches, sequences.

Nothing is computed, so that the weights of our kernels can be prepared here as well.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_planned_bytes import wide_slice
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build_model import tensor_names
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.dummy import dummy_stored
from deepinfer.model.fused.decode_inputs import PlanSender
from deepinfer.model.fused.dspark import FusedDSpark
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.ops import device_choice
from deepinfer.ops.device import DeviceOps, twins
from deepinfer.plan.fused_sizes import dense_is_tiled, streams_are_split
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan
from deepinfer.sampling.device_room import FixedRoom

CLOSE = 0.02
LENGTH = 2048


def hopper_slice(folder: Path) -> Path:
    """Widths that our Hopper kernels take, in four layers."""
    wide_slice(folder)
    raw = json.loads((folder / "config.json").read_text())
    raw["text_config"] |= {
        "hidden_size": 1024, "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 256,
        "o_groups": 8, "o_lora_rank": 128, "index_n_heads": 32, "index_head_dim": 128, "moe_intermediate_size": 256,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def plan_of(model: str, folder: Path, *more: str, sequences: int = 4) -> Plan:
    overrides = {
        "tiny": ("model=v41_tiny",),
        "wide": (f"model.path={wide_slice(folder)}",),
        "hopper": (f"model.path={hopper_slice(folder)}",),
    }[model]
    sizes = ("hardware=h200", "parallel=single", f"model.max_model_len={LENGTH}")
    slots = f"scheduler.max_num_seqs={sequences}"
    spec = load("model.weights=dummy", "model.dtype=bfloat16", slots, *sizes, *overrides, *more)
    return resolve(spec, probe(spec))


def ops_of(plan: Plan, which: str) -> DeviceOps:
    if which == "twins":
        return twins()
    return device_choice.device_ops(plan.model.config, torch.bfloat16)[0]


def build(plan: Plan, ops: DeviceOps) -> tuple[FusedModel, FusedDSpark | None]:
    config = plan.model.config
    stored = dummy_stored(config, tensor_names(plan))
    classes = np.arange(config.vocab_size) % config.engram_compressed_vocab_size
    model = FusedModel(
        config, stored, ops, layout=plan.cache, token_classes=classes, max_positions=plan.model.max_model_len
    )
    if not plan.drafting.num_draft_layers:
        return model, None
    return model, FusedDSpark(config, stored, ops, model, layout=plan.cache)


def tensors(thing: Any, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that can be reached, with the path to it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield "", thing
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from tensors(value, seen)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors(value, seen)
    elif dataclasses.is_dataclass(thing) or type(thing).__module__.startswith("deepinfer.model"):
        for name, value in vars(thing).items():
            for path, tensor in tensors(value, seen):
                yield f"{name}.{path}", tensor


def held(thing: Any, seen: set[int]) -> Counter[str]:
    """Bytes by class, each storage once."""
    sizes: Counter[str] = Counter()
    for path, tensor in tensors(thing, seen):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen:
            continue
        seen.add(storage.data_ptr())
        sizes[_group(path)] += storage.nbytes()
    return sizes


def _group(path: str) -> str:
    names = path.split(".")
    if names[0] in ("embed_VD", "head_VD", "norm_D"):
        return {"embed_VD": "embed"}.get(names[0], "head")
    if "counters" in names:
        return "workspace"
    if "w13" in names or "w2" in names:
        return "experts"
    if "codes_AK" in names or "powers_AG" in names:
        return "engram"
    if any("ropes_P2F" in name for name in names):
        return "positions"
    return "sequences" if names[0] == "classes_V" else "dense"


CASES = [
    *(("tiny", which) for which in ("twins", "kernels")),
    *(("wide", which) for which in ("twins", "kernels")),
    ("hopper", "kernels"),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("model", "which"), CASES)
@pytest.mark.parametrize("speculation", ["none", "dspark"])
def test_planned_bytes_are_held(model: str, which: str, speculation: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    more = ("kernels=reference",) if which == "twins" else ()
    plan = plan_of(model, tmp_path, f"speculation={speculation}", *more)
    built, drafter = build(plan, ops_of(plan, which))
    seen: set[int] = set()
    found, drafter_holds = held(built, seen), held(drafter, seen)
    found["positions"] += drafter_holds.pop("positions", 0)
    found["workspace"] += drafter_holds.pop("workspace", 0)
    drafted, memory = sum(drafter_holds.values()), plan.memory[0]
    for group in ("embed", "head", "dense", "experts", "engram", "positions"):
        assert found[group] == pytest.approx(memory.item(group).num_bytes, rel=CLOSE), group
    assert drafted == pytest.approx(memory.item("draft").num_bytes, rel=CLOSE)
    weights = ("embed", "head", "dense", "experts", "engram", "draft")
    total = sum(found[group] for group in weights[:-1]) + drafted
    assert total == pytest.approx(sum(memory.item(group).num_bytes for group in weights), rel=CLOSE)


@pytest.mark.parametrize("speculation", ["none", "dspark"])
def test_caches_and_sequences_have_a_slot_for_padded_rows(speculation: str, tmp_path: Path) -> None:
    plan = plan_of("tiny", tmp_path, f"speculation={speculation}")
    config, memory, slots = plan.model.config, plan.memory[0], plan.memory[0].num_state_slots
    cache = ModelCache(
        config, plan.cache, num_blocks=8, num_slots=slots + 1, num_snapshots=memory.num_snapshots, device="meta"
    )
    kept = memory.num_snapshots * plan.cache.padded_state_bytes
    assert cache.state.nbytes == memory.item("state").num_bytes + kept
    known = DeviceSequences(slots, LENGTH, config.engram_max_ngram_size, plan.drafting.depth)
    blocks = -(-LENGTH // plan.cache.block_tokens)
    sender = PlanSender(slots, blocks, slots, torch.device("cpu"))
    total = sum(tensor.nbytes for tensor in vars(known).values() if isinstance(tensor, Tensor))
    total += sender.numbers_X.nbytes + 8 * config.vocab_size
    assert total == pytest.approx(memory.item("sequences").num_bytes, rel=CLOSE)


@pytest.mark.parametrize(("speculation", "sequences"), [("none", 4), ("dspark", 4), ("dspark", 512)])
def test_a_step_of_all_sequences_has_room_for_its_masks_and_edits(
    speculation: str, sequences: int, tmp_path: Path
) -> None:
    more = (f"speculation={speculation}", "scheduler.max_num_batched_tokens=4096")
    plan = plan_of("tiny", tmp_path, *more, sequences=sequences)
    words = torch.empty(0, -(-plan.model.config.vocab_size // 32), dtype=torch.int32)
    sampler: Any = SimpleNamespace(device="meta", no_masks_MW=words)
    room = FixedRoom(sampler, plan.memory[0].num_state_slots * (1 + plan.drafting.depth))
    held = [room.masks_MW, *room.edits]
    assert sum(tensor.nbytes for tensor in held) == plan.memory[0].item("sampling").num_bytes


def test_widths_decide_as_the_choice_of_operations_does(tmp_path: Path) -> None:
    """`reasons` names a group of operations where its fast kernels do not take the widths."""
    tiny, wide, hopper = (plan_of(model, tmp_path).model.config for model in ("tiny", "wide", "hopper"))
    flash = resolve(spec := load("hardware=h200", "parallel=ep64"), probe(spec)).model.config
    for config in (tiny, wide, hopper, flash):
        said = " ".join(device_choice.reasons(config))
        assert dense_is_tiled(config) == ("prepare" not in said and "fp8_linear" not in said), said
        assert streams_are_split(config) == ("hyper_border" not in said), said
    assert dense_is_tiled(flash) and streams_are_split(flash) and not dense_is_tiled(tiny)
    assert isinstance(flash, V41Config)
