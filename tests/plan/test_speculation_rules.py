"""What a plan says of drafting before anything is loaded: depth, lengths, weights, and how drafts are verified."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.errors import ExitCode
from deepinfer.config.facts import shipped_folder
from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")


def refusal(plan_of: PlanOf, *overrides: str) -> str:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*TINY, *overrides)
    (problem,) = refused.value.problems
    assert problem.code == ExitCode.PLAN
    return str(problem)


@pytest.mark.parametrize("option", ["dspark", "dspark_fixed"])
def test_no_deeper_than_the_block_that_was_trained(plan_of: PlanOf, option: str) -> None:
    message = refusal(plan_of, f"speculation={option}", "speculation.depth=7")
    assert "speculation.depth=7" in message and "blocks of 5" in message and message.endswith("speculation.depth=5")
    for depth in (1, 4, 5):
        length = () if option == "dspark" else ("speculation.verify_length=1",)
        plan = plan_of(*TINY, f"speculation={option}", f"speculation.depth={depth}", *length)
        assert (plan.drafting.depth, plan.drafting.num_draft_layers, plan.drafting.backtrack) == (depth, 2, depth + 1)


def test_text_is_looked_up_at_any_depth_without_draft_layers(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "speculation=ngram", "speculation.depth=9")
    assert (plan.drafting.depth, plan.drafting.num_draft_layers) == (9, 0)
    assert plan.memory[0].item("draft").num_bytes == 0


def test_no_more_is_checked_than_drafted(plan_of: PlanOf) -> None:
    message = refusal(plan_of, "speculation=dspark_fixed", "speculation.depth=3", "speculation.verify_length=4")
    assert "only 3 tokens are drafted" in message and message.endswith("speculation.verify_length=3")


def test_matches_have_a_length(plan_of: PlanOf) -> None:
    message = refusal(plan_of, "speculation=ngram", "speculation.min_match=5")
    assert "speculation.max_match=4" in message and message.endswith("speculation.min_match=4")


@pytest.mark.parametrize("option", ["dspark", "dspark_fixed", "ngram"])
def test_auto_verifies_so_that_the_text_stays_and_reproducible_insists(plan_of: PlanOf, option: str) -> None:
    assert plan_of(*TINY, f"speculation={option}").numerics.verify == "coupled"
    assert plan_of(*TINY, f"speculation={option}", "sampling=reproducible").numerics.verify == "coupled"
    message = refusal(plan_of, f"speculation={option}", "speculation.verify=rejection", "sampling=reproducible")
    assert "speculation.verify=rejection" in message and message.endswith("speculation.verify=coupled")


def test_rings_of_the_draft_layers_are_counted(plan_of: PlanOf) -> None:
    off, on = (plan_of(*TINY, f"speculation={option}").cache for option in ("none", "dspark"))
    assert (on.num_window_layers, on.ring_slots) == (off.num_window_layers + 2, off.ring_slots + 6)
    rings = on.num_window_layers * on.ring_slots - off.num_window_layers * off.ring_slots
    assert on.state_bytes - off.state_bytes >= rings * on.window_entry_bytes


def test_a_checkpoint_without_the_drafter_it_promises_is_refused(plan_of: PlanOf, tmp_path: Path) -> None:
    shutil.copy(shipped_folder("v41_tiny") / "config.json", tmp_path)
    header = json.dumps({"embed.weight": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12")
    with pytest.raises(PlanErrors) as refused:
        plan_of(f"model.path={tmp_path}", "speculation=dspark")
    (problem,) = refused.value.problems
    assert problem.code == ExitCode.WEIGHTS
    assert "begins with mtp." in problem.found and problem.fix == "speculation=ngram"
    assert plan_of(f"model.path={tmp_path}", "speculation=ngram").drafting.kind == "ngram"


def test_many_drafts_give_way_before_sequences_do(plan_of: PlanOf) -> None:
    """Where a step lacks rows, what is unusual is made smaller: 20 drafts a sequence, and not 256 sequences."""
    deep = ("speculation=ngram", "scheduler.max_num_seqs=256", "scheduler.max_num_batched_tokens=2048")
    message = refusal(plan_of, *deep, "speculation.depth=20")
    assert message.startswith("speculation.depth=20") and message.endswith("type: speculation.depth=7")
    assert plan_of(*TINY, *deep, "speculation.depth=7").drafting.depth == 7
    assert refusal(plan_of, *deep, "speculation.depth=8").endswith("type: scheduler.max_num_seqs=227")
