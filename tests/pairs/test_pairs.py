"""On equals off, two at a time: every pair of features gives the tokens and log probabilities of neither, bit for bit."""

from functools import cache
from itertools import combinations

import pytest
from features import BEFORE_BLOCK, BLOCK, EXCLUSIVE, FEATURES, LONG_TOKENS, LOSSY, Answer, prompts, run


def may_meet(names: tuple[str, str]) -> bool:
    """Options of one group exclude each other, and lossy ones are refused together."""
    return not any(set(names) <= group for group in (*EXCLUSIVE, LOSSY))


PAIRS = [pair for pair in combinations(FEATURES, 2) if may_meet(pair)]


@cache
def without(base: tuple[str, ...], temperature: float, grammar: bool) -> list[Answer]:
    return run(base, temperature, grammar=grammar).answers


def test_the_workload_is_past_every_cut() -> None:
    long, other = prompts()["long"], prompts()["other"]
    shared = next(i for i, (one, two) in enumerate(zip(long, other)) if one != two)
    assert len(long) > LONG_TOKENS and shared > LONG_TOKENS
    assert {len(ids) % BLOCK for ids in prompts().values()} == {BLOCK - BEFORE_BLOCK}


@pytest.mark.sample(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_a_pair_of_features_changes_nothing(names: tuple[str, str], temperature: float) -> None:
    features = [FEATURES[name] for name in names]
    base = tuple(override for feature in features for override in feature.base)
    grammar = any(feature.grammar for feature in features)
    overrides = [o for feature in features for o in feature.overrides]
    preempts = any(feature.preempts for feature in features)
    ran = run((*base, *overrides), temperature, grammar=grammar, preempts=preempts)
    wanted = without(base, temperature, grammar)
    for one, two in zip(ran.answers, wanted, strict=True):
        assert one.tokens == two.tokens and one.reason == two.reason
        assert one.logprobs == two.logprobs
    for name, feature in zip(names, features):
        assert feature.acted(ran), f"{name} did not act: {ran.prompt_steps} steps with prompt rows, {ran.stats}"
