"""What a plan says of answers that ranks give again after a restart: a note where they may come out otherwise."""

from collections.abc import Callable

import pytest

from deepinfer.plan.types import Plan

REQUEUE = ("parallel=ep2", "executor=distributed", "executor.on_rank_loss=requeue")
REJECTION = ("speculation=ngram", "speculation.verify=rejection")
BOUNDED = ("cache=prefix", "replay.on_hit=bounded")


def notes(plan: Plan) -> list[str]:
    return [note for note in plan.notes if note.startswith("executor.on_rank_loss=requeue")]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("balancer=eplb",), "with balancer=eplb it may"),
        (REJECTION, "with speculation.verify=rejection it may"),
        (BOUNDED, "with replay.on_hit=bounded it may"),
        (("balancer=eplb", *REJECTION), "with balancer=eplb or speculation.verify=rejection it may"),
    ],
)
def test_answers_that_may_differ_are_noted(plan_of: Callable[..., Plan], options: tuple[str, ...], named: str) -> None:
    (note,) = notes(plan_of(*REQUEUE, *options))
    assert named in note and note.endswith("sampling.reproducible=true prevents that")
    assert not notes(plan_of("parallel=ep2", "executor=distributed", *options)), "nothing is given again"


@pytest.mark.parametrize("options", [(), ("balancer=eplb", "sampling=reproducible")])
def test_answers_that_cannot_differ_are_not(plan_of: Callable[..., Plan], options: tuple[str, ...]) -> None:
    assert not notes(plan_of(*REQUEUE, *options))
