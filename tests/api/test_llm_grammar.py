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


def test_a_limit_ends_its_request_and_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar whose states run out, three times beside a neighbour: each answer has a budget of its own."""
    from deepinfer.sampling.grammar import llguidance

    monkeypatch.setattr(llguidance, "MAX_LEXER_STATES", 3000)
    growing = Regex("(?s:.*)(a|b)(?s:.{30})(c|d)(?s:.{30})e")
    long = SamplingParams(grammar=growing, max_tokens=400, temperature=2.0, seed=1, logit_bias={1: -100.0})
    plain = SamplingParams(max_tokens=12, ignore_eos=True, seed=2)
    answers = []
    for overrides in ((), ("scheduler.async_depth=1", "speculation=dspark", "speculation.cost_curve=none")):
        with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance", *overrides) as llm:
            for _ in range(3):
                limited, other = llm.generate(["Rome", "Oslo"], [long, plain])
                assert limited.finish_reason == "error" and "too many states: 3000" in (limited.error or "")
                assert len(other.outputs[0].token_ids) == 12 and other.error is None
                answers.append((limited.outputs[0].token_ids, limited.error))
            assert llm.engine.unfinished == 0
    assert all(answer == answers[0] for answer in answers) and len(answers[0][0]) > 3


def test_what_no_grammar_can_be_made_of_leaves_nothing_behind() -> None:
    with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance") as llm:
        wrong = [
            Regex("\ud800"),
            JsonSchema({"const": "\ud800"}),
            Regex("a", trigger_token_ids=None),
            JsonSchema({5: 6}),
        ]
        outs = llm.generate(["a"] * 5, [*[SamplingParams(grammar=one) for one in wrong], SamplingParams(max_tokens=2)])
        assert all(out.error for out in outs[:4]) and outs[4].error is None
        assert llm.engine.stats().compiling == 0 and not llm.engine.has_work


def test_a_fault_of_the_library_in_a_step_ends_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.sampling.grammar.llguidance import LlguidanceMatcher

    whole = LlguidanceMatcher.accept

    def faulty(matcher, tokens):
        if tokens == [fatal]:
            raise RuntimeError("an assertion in the library")
        return whole(matcher, tokens)

    with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance") as llm:
        assert llm.tokenizer is not None
        (fatal,) = llm.tokenizer.encode("7")
        monkeypatch.setattr(LlguidanceMatcher, "accept", faulty)
        wanted = [SamplingParams(grammar=Regex(pattern), max_tokens=8) for pattern in ("7", "[1-5]")]
        bad, good = llm.generate(["a", "b"], wanted)
        assert "an assertion in the library" in (bad.error or "") and good.error is None and good.text in tuple("12345")
        assert not llm.engine.has_work
