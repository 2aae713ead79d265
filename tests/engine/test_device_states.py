"""Prefix cache on the engine of an accelerator: answers are kept by copies that no step waits for, and gone on from."""

from __future__ import annotations

import numpy as np
import pytest
from device_engines import device_executor, device_graph, local_graph
from golden_engine import run

from deepinfer.engine.device_forward import ForwardLanes, Pass
from deepinfer.interfaces import SamplingParams, StepPlan

AHEAD = "scheduler.async_depth=1"
DRAFTS = ("speculation=dspark_fixed", "speculation.back_off=false")


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [(AHEAD,), (*DRAFTS, AHEAD)], ids=["plain", "drafts"])
def test_a_conversation_goes_on_from_the_state_of_its_own_answer(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers cross the end of a block; every second turn's prompt is all that was said before."""
    graph, whole = device_graph("cache=prefix", "cache.num_blocks=60", *options), local_graph()
    on_host: list[StepPlan] = []
    launch = ForwardLanes.launch_host

    def watched(lanes: ForwardLanes, plan: StepPlan, shared: int = 0) -> Pass:
        on_host.append(plan)
        return launch(lanes, plan, shared)

    monkeypatch.setattr(ForwardLanes, "launch_host", watched)
    rng = np.random.default_rng(8)
    said = [rng.integers(3, 2000, length) for length in (118, 124)]
    for turn in range(2):
        asked = [
            SamplingParams(max_tokens=14, temperature=float(number), seed=turn, ignore_eos=True) for number in (0, 1)
        ]
        found = [out["tokens"] for out in run(graph, said, asked)]
        assert found == [out["tokens"] for out in run(whole, said, asked)]
        said = [np.concatenate([text, tokens, [7]]) for text, tokens in zip(said, found)]
    prefix = graph.engine.stats().prefix
    assert prefix is not None and prefix.saved_tokens == 2 * 128, "both answers' first blocks are found again"
    assert on_host and all(plan.num_chunk_rows for plan in on_host), "steps of running answers never wait"
    assert device_executor(graph).lanes.decode is not None
