"""Published figures of DeepSeek-V4.1-Flash that the memory model must reproduce."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from deepinfer.arch.config import V41Config, parse_config
from deepinfer.arch.tensors import tensor_table
from deepinfer.config.facts import shipped_folder
from deepinfer.plan.sizes import Weights
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
FLASH = ("hardware=ascend950", "parallel=ep64")
CLASSES = {  # class → tensors counted by header, parameters, bytes
    "embed": (661_913_600, 1_323_827_200),
    "head": (661_918_720, 1_323_837_440),
    "dense": (6_975_204_464, 7_199_083_968),
    "experts": (543_581_798_400, 288_777_830_400),
    "engram": (196_613_849_600, 202_758_032_400),
    "draft": (14_225_362_530, 7_932_874_632),
    "vision": (485_268_480, 970_536_960),
}


def flash() -> V41Config:
    return parse_config(json.loads((shipped_folder("v41_flash") / "config.json").read_text()))


def test_whole_checkpoint(plan_of: PlanOf) -> None:
    model = plan_of(*FLASH).model
    assert (model.num_tensors, model.checkpoint_bytes) == (96_085, 510_286_023_000)
    assert sum(item.elements for item in model.classes) == 763_205_315_794


@pytest.mark.parametrize("name", CLASSES)
def test_class_table(plan_of: PlanOf, name: str) -> None:
    (item,) = [item for item in plan_of(*FLASH).model.classes if item.name == name]
    assert (item.elements, item.num_bytes) == CLASSES[name]


def test_two_small_tables_stand_for_the_whole_one() -> None:
    config = flash()
    table = tensor_table(config)
    for item in Weights(config).classes():
        group = [tensor for tensor in table if tensor.group == item.name]
        assert item.num_tensors == len(group)
        assert item.num_bytes == sum(tensor.nbytes for tensor in group)


def test_draft_tensors_and_one_expert() -> None:
    weights = Weights(flash())
    assert {item.name: item.num_tensors for item in weights.classes()}["draft"] == 2_401
    assert weights.experts("experts", "packed", "bfloat16", 1) == 40 * 18_800_640


def test_growing_cache(plan_of: PlanOf) -> None:
    model = plan_of(*FLASH).model
    assert model.growing_bytes_per_token == 890
    assert (model.block_bytes, model.padded_block_bytes) == (113_920, 114_048)


def test_fixed_state_at_depth_5_and_backtrack_6(plan_of: PlanOf) -> None:
    plan = plan_of(*FLASH, "speculation=dspark")
    assert (plan.drafting.depth, plan.drafting.backtrack) == (5, 6)
    assert plan.model.fixed_bytes_per_sequence == 3_128_928


def test_a_plan_without_drafts_names_the_state_with_them(plan_of: PlanOf) -> None:
    model = plan_of(*FLASH).model
    assert model.fixed_bytes_per_sequence < model.drafting_fixed_bytes_per_sequence == 3_128_928


def test_the_facts_are_plain_integers_in_json(plan_of: PlanOf) -> None:
    model = json.loads(plan_of(*FLASH, "speculation=dspark").to_json())["model"]
    keys = ("checkpoint_bytes", "growing_bytes_per_token", "fixed_bytes_per_sequence")
    assert [model[key] for key in keys] == [510_286_023_000, 890, 3_128_928]


def expanded(config: V41Config, group: str, itemsize: int) -> int:
    """What the reference holds: every matrix in the model's dtype, scales multiplied in, F32 tensors never narrowed."""
    return sum(
        tensor.numel * (max(4, itemsize) if tensor.dtype == "F32" else itemsize)
        for tensor in tensor_table(config)
        if tensor.group == group and not tensor.name.endswith(".scale")
    )


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float64", 8), ("bfloat16", 2)])
def test_a_cpu_holds_every_class_expanded(plan_of: PlanOf, dtype: str, itemsize: int) -> None:
    plan = plan_of("model=v41_tiny", "model.weights=dummy", f"model.dtype={dtype}", "speculation=dspark")
    for name in ("embed", "head", "dense", "experts", "engram", "draft"):
        assert plan.memory[0].item(name).num_bytes == expanded(plan.model.config, name, itemsize), name


def test_numerics_none_stores_rows_in_the_models_dtype(plan_of: PlanOf) -> None:
    tiny = ("model=v41_tiny", "model.weights=dummy")
    full, none = plan_of(*tiny), plan_of(*tiny, "model.numerics=none")
    config: Any = full.model.config
    assert none.cache.main_entry_bytes == config.head_dim * 4
    assert none.model.growing_bytes_per_token > 4 * full.model.growing_bytes_per_token
