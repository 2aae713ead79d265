"""The tiny model's answers under random schemas: they validate and end by themselves, and drafts change nothing.

JSON bounds no number, and so small a model may repeat digits until it is cut; a frequency penalty keeps it from that.
"""

import json
import random

import jsonschema
import pytest
from random_schemas import schema

from deepinfer import LLM, SamplingParams
from deepinfer.structured import JsonSchema

NUM_PAIRS = 2000
SHARDS = 40  # of so many pairs each, so that several processes can share them
MAX_TOKENS = 400
FEW = 6
PROMPT = "<｜User｜>As json please: tag = clik and age = 24 and name = Anna and size = 7<｜Assistant｜></think>"
OPTIONS = ("model=v41_tiny", "hardware=cpu", "grammar=llguidance", "sampling=reproducible", "model.threads=1")
DRAFTED = ("speculation=dspark", "speculation.cost_curve=none", "speculation.back_off=false")


def answers(seeds: list[int], schemas: list[dict], *overrides: str) -> tuple[list, list[int], list[int]]:
    """The outputs, and how many drafts were checked and accepted at each depth."""
    common = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "frequency_penalty": 0.5}
    params = [SamplingParams(grammar=JsonSchema(one), seed=seed, **common) for seed, one in zip(seeds, schemas)]
    with LLM(*OPTIONS, *overrides) as llm:
        outs = llm.generate([PROMPT] * len(params), params)
        stats = llm.engine.stats()
    return outs, stats.checked_at, stats.accepted_at


def check(seeds: list[int]) -> int:
    """How many of the answers ended by themselves."""
    schemas = [schema(random.Random(seed)) for seed in seeds]
    off, _, _ = answers(seeds, schemas)
    on, checked_at, accepted_at = answers(seeds, schemas, *DRAFTED)
    assert 0 < sum(accepted_at) < sum(checked_at)
    ended = 0
    for seed, wanted, one, other in zip(seeds, schemas, off, on, strict=True):
        assert one.error is None and other.error is None, (seed, wanted, one.error, other.error)
        assert one.token_ids == other.token_ids and one.finish_reason == other.finish_reason, (seed, wanted)
        if one.finish_reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(one.text), wanted, cls=jsonschema.Draft202012Validator)
    print(f"{ended} of {len(seeds)} ended by themselves; drafts checked {checked_at}, accepted {accepted_at}")
    return ended


def test_a_few_answers_validate_with_drafts_and_without(sample_seed: int) -> None:
    seeds = random.Random(sample_seed).sample(range(NUM_PAIRS), FEW)
    assert check(seeds) >= FEW - 1


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_answers_of_all_pairs_validate_with_drafts_and_without(shard: int) -> None:
    """Ninety-nine of a hundred end by themselves, in every shard of fifty: at most one does not."""
    seeds = list(range(shard, NUM_PAIRS, SHARDS))
    assert check(seeds) >= len(seeds) - 1
