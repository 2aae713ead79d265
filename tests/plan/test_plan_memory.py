"""Budgets: what is counted, what "auto" takes, and what is said when too little is there."""

from collections.abc import Callable

import pytest

from deepinfer.config.errors import ExitCode
from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")


def decision(plan: Plan, key: str) -> str:
    return next(decision.value for decision in plan.decisions if decision.key == key)


@pytest.mark.parametrize(
    "overrides",
    [TINY, ("hardware=ascend950", "parallel=ep64"), ("hardware=gb300", "parallel=ep2", "speculation=dspark")],
)
def test_used_and_headroom_add_up(plan_of: PlanOf, overrides: tuple[str, ...]) -> None:
    plan = plan_of(*overrides)
    for memory in plan.memory:
        assert memory.device_bytes == sum(item.num_bytes for item in memory.items if item.place == "device")
        assert memory.host_bytes == sum(item.num_bytes for item in memory.items if item.place == "host")
        assert memory.headroom_bytes == plan.hardware.usable_bytes - memory.device_bytes >= 0
        assert memory.item("kv_pool").num_bytes == memory.num_blocks * plan.cache.padded_block_bytes
        assert memory.item("state").num_bytes == memory.num_state_slots * plan.cache.padded_state_bytes


def test_vision_and_unused_drafts_take_nothing(plan_of: PlanOf) -> None:
    (memory,) = plan_of("hardware=gb200", "parallel=ep64").memory
    assert (memory.item("vision").num_bytes, memory.item("vision").place) == (0, "nowhere")
    assert (memory.item("draft").num_bytes, memory.item("draft").place) == (0, "nowhere")
    (drafting,) = plan_of("hardware=gb200", "parallel=ep64", "speculation=dspark").memory
    assert drafting.item("draft").num_bytes > 3 * 126e6  # three layers of attention at least


def test_a_pool_is_never_larger_than_its_sequences_need(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "model.max_model_len=1024", "scheduler.max_num_seqs=4")
    assert plan.capacity.num_blocks == 4 * 1024 // 128


def test_a_prefix_cache_takes_all_that_may_be_taken(plan_of: PlanOf) -> None:
    flash = ("hardware=ascend950", "parallel=ep64")
    plan = plan_of(*flash, "cache=prefix")
    assert plan.memory[0].headroom_bytes < plan.cache.padded_block_bytes
    assert plan.capacity.num_blocks > plan_of(*flash).capacity.num_blocks


def test_a_laptop_keeps_half_for_itself(plan_of: PlanOf, machine: type) -> None:
    small = machine(memory_gib=1)
    plan = plan_of(
        *TINY, "scheduler.max_num_batched_tokens=64", "scheduler.max_prefill_tokens=64", "cache=prefix", on=small
    )
    caches = plan.memory[0].item("kv_pool").num_bytes + plan.memory[0].item("snapshots").num_bytes
    left = plan.hardware.usable_bytes - (plan.memory[0].device_bytes - caches)
    assert 0.49 * left < caches <= 0.5 * left
    assert plan.hardware.measured


def test_two_gib_of_cache_at_most_on_a_cpu(plan_of: PlanOf, machine: type) -> None:
    plan = plan_of(*TINY, "cache=prefix", on=machine(memory_gib=512))
    caches = plan.memory[0].item("kv_pool").num_bytes + plan.memory[0].item("snapshots").num_bytes
    assert 2 * 2**30 - plan.cache.padded_block_bytes < caches <= 2 * 2**30


def test_three_tenths_of_a_prefix_cache_are_snapshots(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "cache=prefix")
    (memory,) = plan.memory
    saved, blocks = memory.item("snapshots").num_bytes, memory.item("kv_pool").num_bytes
    assert saved == memory.num_snapshots * plan.cache.padded_state_bytes
    assert abs(saved / (saved + blocks) - 0.3) < 0.001
    assert decision(plan, "cache.snapshot_bytes") == str(saved)
    drafting = plan_of(*TINY, "cache=prefix", "speculation=dspark").memory[0]
    assert drafting.num_snapshots < memory.num_snapshots  # the draft layers' windows are saved too


@pytest.mark.parametrize(
    "overrides, count",
    [
        (("cache.snapshot_bytes=0",), 0),
        (("cache.snapshot_bytes=10MiB",), 10 * 2**20 // 413_952),
        (("replay.on_hit=exact",), 0),
        (("cache.num_blocks=100",), 33),  # scheduler.max_num_seqs and one more
        (("cache.num_blocks=100", "scheduler.max_num_seqs=2"), 7),  # three for each seven bytes of blocks
        (("cache.memory_bytes=1MiB", "scheduler.max_num_seqs=1"), 2),
    ],
)
def test_snapshots_as_asked_or_as_the_rest_allows(plan_of: PlanOf, overrides: tuple[str, ...], count: int) -> None:
    (memory,) = plan_of(*TINY, "cache=prefix", *overrides).memory
    assert memory.num_snapshots == count
    assert "num_blocks=100" not in overrides[0] or memory.num_blocks == 100


def test_too_few_snapshots_are_told_with_what_to_type(plan_of: PlanOf) -> None:
    few = (*TINY, "cache=prefix", "cache.num_blocks=40", "model.max_model_len=256")

    def warnings(*overrides: str) -> list[str]:
        return [text for text in plan_of(*few, *overrides).warnings if "saved state" in text]

    (warning,) = warnings("cache.snapshot_bytes=1MiB")
    assert "2 saved states" in warning and "scheduler.max_num_seqs + 1 = 33" in warning
    fix = warning.rpartition("; ")[2]
    assert fix == f"cache.snapshot_bytes={33 * 413_952}"
    assert not warnings(fix) and not warnings() and not warnings("cache.snapshot_bytes=0")
    crowd = ("scheduler.max_num_seqs=1000", "scheduler.max_num_batched_tokens=1024", "scheduler.max_prefill_tokens=64")
    few = (*TINY, "cache=prefix", *crowd, "hardware.memory_bytes=2.5GiB")
    (warning,) = warnings()  # half of the cache is the most that "auto" gives
    assert not warnings(warning.rpartition("; ")[2])
    plan = plan_of(*few)
    free = plan.memory[0].headroom_bytes + plan.memory[0].item("snapshots").num_bytes
    full = plan.memory[0].num_blocks + free // plan.cache.padded_block_bytes
    (warning,) = warnings(f"cache.num_blocks={full}", "cache.memory_bytes=auto")
    assert warning.endswith("replay.on_hit=exact") and not warnings(f"cache.num_blocks={full}", "replay.on_hit=exact")


def test_snapshots_beyond_the_machine_are_refused(plan_of: PlanOf) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*TINY, "cache=prefix", "cache.num_blocks=40", "cache.snapshot_bytes=900GiB")
    (problem,) = refused.value.problems
    assert problem.code == ExitCode.MEMORY and problem.asked.startswith("cache.snapshot_bytes=")
    plan_of(*TINY, "cache=prefix", "cache.num_blocks=40", problem.fix)


def test_given_sizes_are_taken(plan_of: PlanOf) -> None:
    assert plan_of(*TINY, "cache.num_blocks=40").capacity.num_blocks == 40
    plan = plan_of(*TINY, "cache.memory_bytes=64MiB")
    assert plan.capacity.num_blocks == 64 * 2**20 // plan.cache.padded_block_bytes


def test_memory_given_on_the_command_line_beats_the_machine(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "hardware.memory_bytes=4GiB")
    assert plan.hardware.memory_bytes == 4 * 2**30
    assert not plan.hardware.measured


def test_auto_length_gives_way_to_a_small_cache(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "cache.num_blocks=10")
    assert plan.model.max_model_len == 1280
    assert decision(plan, "model.max_model_len") == "1280"


def test_a_given_length_does_not(plan_of: PlanOf) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*TINY, "cache.num_blocks=10", "model.max_model_len=2048")
    assert refused.value.exit_code == ExitCode.MEMORY
    (problem,) = refused.value.problems
    assert problem.asked == "model.max_model_len=2048" and problem.fix == "model.max_model_len=1280"


@pytest.mark.parametrize("size", ["cache.num_blocks=10000000", "cache.memory_bytes=900GiB"])
def test_a_pool_beyond_the_machine_is_refused(plan_of: PlanOf, size: str) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*TINY, size)
    (problem,) = refused.value.problems
    assert problem.code == ExitCode.MEMORY
    plan_of(*TINY, problem.fix)  # what it says to type does it


@pytest.mark.parametrize("hardware", ["h100", "h200", "b200", "gb200", "gb300", "ascend950", "ascend950pr"])
def test_the_released_model_fits_no_single_device_and_the_cure_works(plan_of: PlanOf, hardware: str) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(f"hardware={hardware}")
    assert refused.value.exit_code == ExitCode.MEMORY
    (problem,) = refused.value.problems
    assert "experts 288.8" in problem.found
    plan = plan_of(f"hardware={hardware}", *problem.fix.split())
    assert 1 < plan.layout.num_ranks <= 32


def test_the_released_model_fits_no_laptop(plan_of: PlanOf) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of("model=v41_flash")
    assert [problem.code for problem in refused.value.problems] == [ExitCode.MEMORY]
    assert refused.value.problems[0].fix == "model=v41_tiny"


def test_tables_move_to_the_host_when_they_do_not_fit(plan_of: PlanOf) -> None:
    wide, narrow = plan_of("hardware=gb300", "parallel=ep64"), plan_of("hardware=gb300", "parallel=ep2")
    assert decision(wide, "parallel.engram") == "sharded"
    assert decision(narrow, "parallel.engram") == "host"
    assert wide.memory[0].item("engram").place == "device"
    assert narrow.memory[0].item("engram").place == "host"
    assert narrow.memory[0].host_bytes == 384_011_425 * 264


def test_ranks_on_one_machine_share_its_memory(plan_of: PlanOf) -> None:
    one, two = plan_of(*TINY), plan_of(*TINY, "parallel=dp2")
    assert two.hardware.usable_bytes == one.hardware.usable_bytes // 2


@pytest.mark.parametrize(
    "more",
    ["scheduler.max_num_batched_tokens=8192", "model.dtype=float64", "scheduler.max_num_seqs=1024"],
)
def test_workspace_grows_with_what_a_step_holds(plan_of: PlanOf, more: str) -> None:
    assert (
        plan_of(*TINY, more).memory[0].item("workspace").num_bytes
        > plan_of(*TINY).memory[0].item("workspace").num_bytes
    )


def test_only_estimates_are_marked_inexact(plan_of: PlanOf) -> None:
    (memory,) = plan_of(*TINY).memory
    assert [item.name for item in memory.items if not item.exact] == ["workspace"]
