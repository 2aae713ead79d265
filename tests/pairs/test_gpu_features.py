"""On equals off on a GPU: each feature by itself, and those that meet inside one step, to the last bit of log probabilities."""

from functools import cache

import pytest
from features import FEATURES, Answer, Ran, run

pytestmark = pytest.mark.gpu

ON_GPU = ("hardware=h200", "kernels=triton", "model=v41_tiny", "model.threads=auto", "cache.memory_bytes=512MiB")
ALONE = [name for name in FEATURES if name != "reference"]  # whose arithmetic is another one
TOGETHER = [
    ("dspark", "ahead"),
    ("dspark", "snapshot"),
    ("fixed", "grammar"),
    ("ngram", "ahead"),
    ("ahead", "preemption"),
    ("ahead", "grammar"),
    ("snapshot", "chunks"),
    ("replayed", "ahead"),
    ("dspark", "compact"),
]
CASES = [*((name,) for name in ALONE), *TOGETHER]


@cache
def without(base: tuple[str, ...], temperature: float, grammar: bool) -> list[Answer]:
    return on_gpu(base, temperature, grammar=grammar).answers


def on_gpu(overrides: tuple[str, ...], temperature: float, **kwargs: bool) -> Ran:
    return run((*ON_GPU, *overrides), temperature, **kwargs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", CASES, ids="+".join)
def test_features_change_no_token(names: tuple[str, ...], temperature: float) -> None:
    features = [FEATURES[name] for name in names]
    base = tuple(override for feature in features for override in feature.base)
    overrides = tuple(override for feature in features for override in feature.overrides)
    grammar = any(feature.grammar for feature in features)
    preempts = any(feature.preempts for feature in features)
    ran = on_gpu((*base, *overrides), temperature, grammar=grammar, preempts=preempts)
    for one, two in zip(ran.answers, without(base, temperature, grammar), strict=True):
        assert one.tokens == two.tokens and one.reason == two.reason
        assert one.logprobs == two.logprobs
    for name, feature in zip(names, features):
        assert feature.acted(ran), f"{name} did not act: {ran.prompt_steps} steps with prompt rows, {ran.stats}"
