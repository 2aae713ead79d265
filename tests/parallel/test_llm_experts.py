"""`LLM.experts` on ranks that are processes: a rebalance in mid-traffic changes no answer, a saved placement is taken up."""

from pathlib import Path

import numpy as np
import pytest

from deepinfer.api import LLM, SamplingParams
from deepinfer.config.compose import load
from deepinfer.config.errors import Refused
from deepinfer.config.facts import probe
from deepinfer.engine.build_balancer import saved_placement
from deepinfer.parallel.eplb.saved import Saved, write_placement
from deepinfer.parallel.placement import Placement
from deepinfer.plan.resolve import resolve

TINY = ("model=v41_tiny", "hardware=cpu", "sampling=reproducible", "scheduler.max_num_seqs=4")
RANKS = ("parallel=ep2", "parallel.redundant_experts=2", "balancer=eplb", "balancer.min_gain=0")
PROMPTS = ["Once upon a time", "The little dog", "A girl named", "One day"]
PARAMS = SamplingParams(max_tokens=24, seed=7, temperature=1.0)


def texts(llm: LLM) -> list[str]:
    return [output.text for output in llm.generate(PROMPTS, PARAMS)]


def test_experts_move_between_ranks_while_answers_stay_the_same(tmp_path: Path) -> None:
    path = tmp_path / "placement.safetensors"
    with LLM(*TINY) as alone:
        expected = texts(alone)
        with pytest.raises(ValueError, match="none can move: parallel=ep2 balancer=eplb"):
            alone.experts.inspect()
    with LLM(*TINY, *RANKS, "balancer.interval_steps=8", "balancer.budget_bytes=1") as llm:
        assert texts(llm) == expected
        state = llm.experts.inspect()
        assert state.num_rebalances >= 1 and state.moved > 0, "experts moved while answers were written"
        assert llm.experts.balance(at_once=True).moves_left == 0
        with pytest.raises(ValueError, match=r"absent/p: No such file or directory"):
            llm.experts.save(tmp_path / "absent" / "p")
        placement = llm.experts.save(path).placement
        assert texts(llm) == expected
    with LLM(*TINY, *RANKS, f"balancer.placement={path}", "balancer.interval_steps=0") as llm:
        assert llm.experts.inspect().placement == placement
        assert texts(llm) == expected


def test_a_placement_of_another_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "placement.safetensors"
    write_placement(path, Saved(Placement.initial(6, 8, 2, 2), np.zeros((0, 6, 8), np.int64)))
    spec = load(*TINY, "parallel=ep2", "balancer=eplb", f"balancer.placement={path}")
    plan = resolve(spec, probe(spec))
    found = "it is of 6 layers with 8 experts, on 2 ranks in 10 slots; this plan has 6 layers with 8 experts, on 2 ranks in 8"
    with pytest.raises(Refused, match=found) as refusal:
        saved_placement(plan, plan.layout.roles[0])
    assert refusal.value.problems[0].fix == "balancer.placement=null"
