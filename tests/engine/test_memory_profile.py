"""The worst steps are steps that an engine can run and forget; blocks are fitted to what they left; differences are told."""

import numpy as np
import pytest
from device_engines import device_executor, device_graph
from golden_engine import run
from msgspec import structs

from deepinfer.config.errors import ExitCode, Refused
from deepinfer.engine.memory_profile import MemoryProfile, fit_blocks, probe_blocks
from deepinfer.engine.worst_steps import run_worst_steps
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.types import MemoryItem, RankMemory

GIB, BLOCK = 2**30, 2**20


def memory(num_blocks: int = 1000, held: int = 10 * GIB, workspace: int = GIB) -> RankMemory:
    items = (
        MemoryItem(name="dense", num_bytes=held, place="device"),
        MemoryItem(name="engram", num_bytes=99 * GIB, place="host"),
        MemoryItem(name="kv_pool", num_bytes=num_blocks * BLOCK, place="device"),
        MemoryItem(name="workspace", num_bytes=workspace, place="device", exact=False),
    )
    return RankMemory(
        ranks="0", role="all", items=items, device_bytes=0, host_bytes=0, headroom_bytes=0, num_blocks=num_blocks,
        num_state_slots=4, step_bytes=workspace,
    )  # fmt: skip


def profile(**changes: int) -> MemoryProfile:
    whole = {"held": 10 * GIB, "step": GIB, "blocks": 64 * BLOCK, "free": 20 * GIB, "total": 100 * GIB}
    return MemoryProfile(**(whole | changes))


@pytest.mark.parametrize("drafts", [(), ("speculation=dspark_fixed",), ("speculation=ngram",)])
def test_the_worst_steps_run_and_leave_nothing_behind(drafts: tuple[str, ...]) -> None:
    sizes = ("scheduler.max_num_seqs=3", "scheduler.max_num_batched_tokens=64", "scheduler.max_prefill_tokens=64")
    prompts = [np.array([5, 6, 7, 8, 9]), np.arange(3, 40)]
    params = [SamplingParams(max_tokens=6, temperature=1.0, seed=seed, ignore_eos=True, logprobs=1) for seed in (3, 4)]
    answers = []
    for worst in (False, True):
        graph = device_graph(*drafts, *sizes)
        if worst:
            run_worst_steps(device_executor(graph), graph.limits)
        answers.append(run(graph, prompts, params))
    assert answers[0] == answers[1]


def test_as_many_blocks_as_planned_where_they_fit() -> None:
    fitted = fit_blocks(profile(), memory(1000), BLOCK)
    assert fitted.num_blocks == 1000 and fitted.notices == ()


def test_fewer_where_the_device_has_less() -> None:
    tight = profile(free=2 * GIB)
    fitted = fit_blocks(tight, memory(1000), BLOCK)
    assert fitted.num_blocks == tight.for_blocks // BLOCK < 1000
    assert (
        tight.for_blocks == 2 * GIB + 64 * BLOCK - GIB - GIB
    )  # free and the probe's, less a step and 1 % of the device
    (said,) = fitted.notices
    assert f"{fitted.num_blocks:,} blocks where the plan has 1,000" in said


def test_more_where_the_plan_was_short_of_memory() -> None:
    fitted = fit_blocks(profile(), memory(1000), BLOCK, wanted=5000)
    assert fitted.num_blocks == 5000 and "the plan has 1,000" in fitted.notices[0]


def test_no_block_at_all_is_refused_with_what_to_type() -> None:
    with pytest.raises(Refused, match=r"leaves no block of the cache[\s\S]*scheduler.max_num_seqs") as raised:
        fit_blocks(profile(free=GIB, blocks=0), memory(), BLOCK)
    assert raised.value.exit_code is ExitCode.MEMORY


@pytest.mark.parametrize(
    ("held", "told"), [(10 * GIB, False), (10 * GIB + GIB // 8, False), (11 * GIB, True), (9 * GIB, True)]
)
def test_differences_beyond_two_percent_are_told(held: int, told: bool) -> None:
    notices = fit_blocks(profile(held=held), memory(), BLOCK).notices
    assert bool(notices) == told
    if told:
        assert (
            "the plan has 11.00 GiB beside cache blocks, measured were" in notices[0]
            and "planned 10.00 GiB" in notices[0]
        )


def test_a_probe_is_small_and_never_larger_than_the_plan() -> None:
    graph = device_graph("scheduler.max_num_seqs=3")
    assert probe_blocks(memory(7), graph.limits) == 7
    assert (
        probe_blocks(memory(10_000), structs.replace(graph.limits, max_num_seqs=300, max_num_batched_tokens=300)) == 300
    )
    graph.engine.close()
