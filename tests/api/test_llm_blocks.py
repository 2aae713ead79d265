"""Several tokens a step change nothing of what a caller sees: results and streams are those of one token a step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_llm import BOS, EOS, make_llm

from deepinfer.api import LLM, RequestOutput, SamplingParams, StreamEvent
from deepinfer.sampling.tokenizer import BpeTokenizer

WAYS = [(depth, ahead, chance) for depth in (0, 1, 4) for ahead in (0, 1) for chance in (0.5, 1.0)][2:]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def off(tokenizer: BpeTokenizer) -> LLM:
    return make_llm(tokenizer)


@pytest.fixture(scope="module")
def on(tokenizer: BpeTokenizer) -> dict[tuple[int, int, float], LLM]:
    return {way: make_llm(tokenizer, draft_depth=way[0], async_depth=way[1], acceptance=way[2]) for way in WAYS}


@pytest.fixture(params=[0, 1], ids=["after", "ahead"])
def sure(request: pytest.FixtureRequest, tokenizer: BpeTokenizer) -> LLM:
    """All drafts are right."""
    return make_llm(tokenizer, draft_depth=4, async_depth=request.param, acceptance=1.0)


def seen(out: RequestOutput) -> dict[str, Any]:
    """All of a result but what must differ: times, and what was drafted."""
    found = msgspec.to_builtins(out, str_keys=True)
    del found["timings"]
    for answer in found["outputs"]:
        del answer["drafts"]
    return found


def joined(events: list[StreamEvent], index: int = 0) -> tuple[str, list[int], list, list]:
    mine = [event for event in events if event.index == index]
    ends = [(event.finish_reason, event.error) for event in mine if event.finish_reason]
    assert mine and mine[-1].finish_reason and len(ends) == 1, "one end, in the last event"
    entries = [entry for event in mine for entry in event.logprobs or ()]
    return "".join(event.text for event in mine), [t for event in mine for t in event.token_ids], entries, ends


def assert_streamed(llm: LLM, prompt: Any, params: SamplingParams, out: RequestOutput) -> None:
    events = list(llm.stream(prompt, params))
    for answer in out.outputs:
        end = [(answer.finish_reason, answer.error)]
        assert joined(events, answer.index) == (answer.text, answer.token_ids, answer.logprobs or [], end)


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of SamplingParams for texts of few letters, in which stop strings are met."""
    max_tokens = draw(st.integers(1, 40))
    return {
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        "seed": draw(st.integers(0, 99)),
        "max_tokens": max_tokens,
        "min_tokens": draw(st.integers(0, max_tokens)) if draw(st.booleans()) else 0,
        "stop": tuple(draw(st.lists(st.text("abé\ufffd", min_size=1, max_size=5), max_size=3))),
        "include_stop_str": draw(st.booleans()),
        "ignore_eos": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
        "logprobs": draw(st.sampled_from([None, 0, 2])),
        "prompt_logprobs": draw(st.sampled_from([None, 1])),
        "n": draw(st.sampled_from([1, 1, 2])),
    }


@settings(max_examples=60, deadline=None)
@given(fields=asked(), way=st.sampled_from(WAYS), others=st.integers(0, 3))
def test_d06_results_and_streams_are_those_of_single_tokens(
    off: LLM, on: dict, tokenizer: BpeTokenizer, fields: dict[str, Any], way: tuple, others: int
) -> None:
    """vllm PR#47616, huggingface/transformers#47912: ends inside a block, wherever they fall and whoever runs beside."""
    letters = dict.fromkeys([*tokenizer.encode("ab"), *tokenizer.encode("é")], 12.0)
    params = SamplingParams(**fields, logit_bias=letters | {EOS: 9.0})
    prompts = ["a", *["b"] * others]
    expected, found = off.generate(prompts, params), on[way].generate(prompts, params)
    assert [seen(out) for out in found] == [seen(out) for out in expected]
    assert_streamed(on[way], "a", params, expected[0])
    assert on[way].engine.unfinished == 0 == on[way].engine.stats().blocks_used


def test_d06_text_ids_and_logprobs_end_at_one_place_inside_a_block(sure: LLM, off: LLM) -> None:
    """vllm PR#47616: the text was cut, the ids and log probabilities were not."""
    params = msgspec.structs.replace(GREEDY, stop=("fg", "q"), logprobs=1)
    (out,) = sure.generate("b", params)
    assert (out.text, sure.tokenizer.decode(out.token_ids), out.finish_reason) == ("cde", "cdefg", "stop")
    assert [next(iter(entry)) for entry in out.logprobs] == out.token_ids
    assert seen(out) == seen(off.generate("b", params)[0])
    assert max(len(event.token_ids) for event in sure.stream("b", params)) > 1, "no block to cut"
    stats = sure.engine.stats()
    assert stats.slots_used == 0 and stats.sampled_tokens > 2 * len(out.token_ids), "a block went on behind the stop"


@pytest.mark.parametrize("reasons", [{"eos"}, {"stop id"}, {"max_tokens"}])
def test_d05_nothing_behind_an_end_inside_a_block(sure: LLM, off: LLM, reasons: set[str]) -> None:
    """huggingface/transformers#47912, LostRuins/koboldcpp#1276: the rest of the block was emitted."""
    (stop_id,) = sure.tokenizer.encode("t")
    params = msgspec.structs.replace(
        GREEDY,
        stop_token_ids=(stop_id,) if "stop id" in reasons else (),
        max_tokens=7 if "max_tokens" in reasons else 40,
    )
    for prompt in "klmnop":  # so that the end falls on each place of a block
        (out,) = sure.generate(prompt, params)
        assert seen(out) == seen(off.generate(prompt, params)[0])
        assert out.token_ids[-1] in (EOS, stop_id) or len(out.token_ids) == 7
        assert_streamed(sure, prompt, params, out)


def test_d05_min_tokens_hold_inside_a_block(sure: LLM, off: LLM) -> None:
    for min_tokens in range(12):
        params = msgspec.structs.replace(GREEDY, min_tokens=min_tokens, max_tokens=12, stop=("y", "c"))
        (out,) = sure.generate("u", params)
        assert seen(out) == seen(off.generate("u", params)[0]) and len(out.token_ids) >= min_tokens


def test_d09_each_token_of_a_streamed_block_has_its_own_alternatives(sure: LLM) -> None:
    """sglang#39260: those of the first were repeated for the whole chunk."""
    events = list(sure.stream("a", msgspec.structs.replace(GREEDY, logprobs=2, max_tokens=20)))
    assert max(len(event.token_ids) for event in events) > 2
    for event in events:
        assert [next(iter(entry)) for entry in event.logprobs] == event.token_ids
        assert all(len(entry) == 2 for entry in event.logprobs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d11_sixteen_at_once_with_one_draft_give_the_text_of_none(
    on: dict, off: LLM, tokenizer: BpeTokenizer, temperature: float
) -> None:
    """vllm-ascend#9170: a begin-of-sentence token appeared under load, and the answer stopped."""
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=60, ignore_eos=True, logit_bias={BOS: -50.0})
    prompts = [chr(ord("a") + i) for i in range(16)]
    expected = [seen(out) for out in off.generate(prompts, params)]
    for ahead in (0, 1):
        outs = on[1, ahead, 0.5].generate(prompts, params)
        assert [seen(out) for out in outs] == expected
        assert not any(BOS in out.token_ids for out in outs) and all(len(out.token_ids) == 60 for out in outs)


def test_tokens_of_the_step_in_flight_are_dropped(tokenizer: BpeTokenizer, off: LLM) -> None:
    llm = make_llm(tokenizer, draft_depth=4, async_depth=1, acceptance=1.0)
    params = msgspec.structs.replace(GREEDY, stop=("h",), ignore_eos=True, max_tokens=60)
    both = msgspec.structs.replace(params, stop=())
    outs = llm.generate(["a", "d"], [params, both])
    assert [seen(out) for out in outs] == [seen(out) for out in off.generate(["a", "d"], [params, both])]
    assert outs[0].text == "bcdefg" and llm.engine.stats().dropped_results > 0


@pytest.mark.parametrize("stop", [(), ("e",), ("de",), ("x",)])
def test_an_error_behind_accepted_tokens_keeps_them_and_a_stop_before_it_wins(
    sure: LLM, tokenizer: BpeTokenizer, stop: tuple[str, ...]
) -> None:
    plain = make_llm(tokenizer)
    (broken,) = tokenizer.encode("e")
    params = msgspec.structs.replace(GREEDY, stop=stop, logprobs=0)
    sure.engine.executor.broken_at = plain.engine.executor.broken_at = broken
    outs = sure.generate(["a", "s", "c"], params)
    assert [seen(out) for out in outs] == [seen(out) for out in plain.generate(["a", "s", "c"], params)]
    assert outs[0].finish_reason == ("stop" if stop and "e" in stop[0] else "error")
    assert tokenizer.decode(outs[0].token_ids) == "bcde" and (outs[0].error is None) == (
        outs[0].finish_reason == "stop"
    )
    assert_streamed(sure, "a", params, outs[0])


def test_an_error_behind_a_stop_id_is_not_of_the_answer(sure: LLM, off: LLM) -> None:
    (stop_id,) = sure.tokenizer.encode("e")
    sure.engine.executor.broken_at = stop_id
    params = msgspec.structs.replace(GREEDY, stop_token_ids=(stop_id,))
    for prompt in "abcd":  # so that the broken row is in the same block, or never computed
        (out,) = sure.generate(prompt, params)
        assert seen(out) == seen(off.generate(prompt, params)[0]) and out.finish_reason == "stop"


def test_leaving_a_stream_with_a_step_in_flight_spares_its_neighbours(sure: LLM, off: LLM) -> None:
    other = sure.stream("d", GREEDY)
    stream = sure.stream("a", msgspec.structs.replace(GREEDY, ignore_eos=True, max_tokens=200))
    begun = [next(other), next(stream)]
    stream.close()
    (out,) = off.generate("d", GREEDY)
    assert joined([begun[0], *other])[:2] == (out.text, out.token_ids)
    assert sure.engine.unfinished == 0 and sure.engine.stats().finished["abort"] == 1
    assert seen(sure.generate("a", GREEDY)[0]) == seen(off.generate("a", GREEDY)[0])


def test_prompt_logprobs_come_once_and_times_too(sure: LLM, off: LLM) -> None:
    params = msgspec.structs.replace(GREEDY, prompt_logprobs=1, n=2, max_tokens=9)
    prompts = ["ab" * 40, "x"]
    outs = sure.generate(prompts, params)
    assert [seen(out) for out in outs] == [seen(out) for out in off.generate(prompts, params)]
    for out in outs:
        assert len(out.prompt_logprobs) == len(out.prompt_token_ids)
        assert 0 <= out.timings.queue_ms <= out.timings.first_token_ms <= out.timings.total_ms


def test_what_was_drafted_for_each_answer_adds_up_to_the_engines_counts(on: dict, off: LLM) -> None:
    for (depth, _ahead, chance), llm in on.items():
        if not depth:
            continue
        before = llm.engine.stats()
        outs = llm.generate(["a", "d", "g"], SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=30))
        after = llm.engine.stats()
        drafts = [answer.drafts for out in outs for answer in out.outputs]
        assert sum(one.rounds for one in drafts) == after.verify_rounds - before.verify_rounds > 0
        assert sum(one.checked for one in drafts) == sum(after.checked_at) - sum(before.checked_at)
        assert sum(one.accepted for one in drafts) == sum(after.accepted_at) - sum(before.accepted_at)
        assert all(1 <= one.accepted_length <= depth + 1 for one in drafts if one.rounds)
        assert chance < 1 or all(one.accepted == one.checked for one in drafts)
        last = list(llm.stream("a", GREEDY))[-1]
        assert last.drafts.rounds > 0 and llm.generate("a", GREEDY)[0].drafts.checked > 0
    assert off.generate("a", GREEDY)[0].drafts.accepted_length is None
