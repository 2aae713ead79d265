"""The point where answers are run: the most sequences that leave users content, each number looked at once."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from deepinfer.plan.cost.phases import largest_wanted
from deepinfer.plan.cost.types import DecodePoint
from deepinfer.plan.types import Plan


def point(sequences: int) -> DecodePoint:
    """A point whose user gets less with every sequence."""
    return DecodePoint(
        sequences=sequences, steps=(), tokens_per_s_per_gpu=(1.0,), tokens_per_s_per_user=(1000.0 / sequences,)
    )


@pytest.mark.parametrize("most", [1, 2, 3, 7, 64, 100])
def test_any_threshold_is_found_and_no_number_is_tried_twice(most: int) -> None:
    counts = sorted({1 << power for power in range(most.bit_length())} | {most})
    for threshold in range(most + 2):
        asked: list[int] = []

        def wanted(entry: DecodePoint, threshold: int = threshold, asked: list[int] = asked) -> bool:
            asked.append(entry.sequences)
            return entry.sequences <= threshold

        found = largest_wanted([point(count) for count in counts], point, wanted)
        assert found.sequences == min(max(threshold, 1), most)
        assert len(asked) == len(set(asked)) <= 2 * most.bit_length() + 1


@pytest.mark.parametrize("draw", range(6))
def test_a_users_rate_never_rises_with_the_sequences(plan_of: Callable[..., Plan], sample_seed: int, draw: int) -> None:
    """What the search relies on, for both ways of reckoning, and beside prompts on the same ranks."""
    chance = random.Random(f"{sample_seed} {draw}")
    plan = plan_of(
        f"hardware={chance.choice(['h100', 'h200', 'b200', 'gb300', 'ascend950pr'])}",
        f"parallel={chance.choice(['ep64', 'ep128'])}",
        f"speculation={chance.choice(['none', 'dspark', 'ngram'])}",
        f"workload.prompt_tokens={chance.choice([1, 127, 4000, 65536])}",
        f"workload.output_tokens={chance.choice([1, 700])}",
        "scheduler.max_num_seqs=300",
    )
    curve, beside = plan.cost.decode.curve, plan.cost.tradeoff
    assert len(curve) > 3
    for before, after in pairwise(curve):
        assert all(b >= a for b, a in zip(before.tokens_per_s_per_user, after.tokens_per_s_per_user, strict=True))
    assert all(one.tokens_per_s_per_user > two.tokens_per_s_per_user for one, two in pairwise(beside))


@pytest.mark.parametrize("wanted", [25, 40])
def test_the_point_is_where_one_more_would_be_too_many(plan_of: Callable[..., Plan], wanted: int) -> None:
    overrides = ("hardware=h200", "parallel=ep8", "scheduler.max_num_seqs=512")
    chosen = plan_of(*overrides, f"workload.tokens_per_s_per_user={wanted}").cost
    count = chosen.decode.point.sequences
    assert 1 < count < chosen.decode.most_sequences
    rates = [
        plan_of(*overrides[:2], f"scheduler.max_num_seqs={each}").cost.figure("tokens_per_s_per_user").value
        for each in (count, count + 1)
    ]
    assert rates[0] >= wanted > rates[1]
