"""Answers under a grammar are the same in a full cache, with preemptions, steps ahead and drafts; an abort leaves nothing."""

import json

import jsonschema
import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.structured import JsonSchema, Regex

SCHEMA = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1000, "maximum": 9999},
    "minItems": 30,
    "maxItems": 30,
}
PARAMS = [SamplingParams(grammar=JsonSchema(SCHEMA), seed=seed, max_tokens=250) for seed in range(4)]
PROMPTS = ["numbers " * 20] * len(PARAMS)
TIGHT = "cache.num_blocks=5"


@pytest.mark.slow
def test_preemption_drafts_and_steps_ahead_keep_the_answers_and_their_form() -> None:
    answers = []
    for overrides in ((), (TIGHT,), (TIGHT, "scheduler.async_depth=1", "speculation=dspark")):
        with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance", *overrides) as llm:
            outs = llm.generate(PROMPTS, PARAMS)
            stats = llm.engine.stats()
        assert (stats.preemptions > 0) == (TIGHT in overrides)
        assert (sum(stats.checked_at) > 0) == ("speculation=dspark" in overrides)
        for out in outs:
            assert out.finish_reason == "stop"
            jsonschema.validate(json.loads(out.text), SCHEMA)
        answers.append([out.outputs[0].token_ids for out in outs])
    assert answers[0] == answers[1] == answers[2]


def test_an_abort_while_the_grammar_is_compiled_leaves_nothing() -> None:
    with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance") as llm:
        (request_id,) = llm.engine.submit([0, 5, 6], SamplingParams(grammar=Regex("some [a-z]{4}"), max_tokens=20))
        assert llm.engine.abort(request_id)
        (out,) = llm.generate("a", SamplingParams(grammar=Regex("some [a-z]{4}"), max_tokens=20))
        assert out.text.startswith("some ") and llm.engine.unfinished == 0
