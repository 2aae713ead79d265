"""Chats whose tokens come in blocks: content, thinking and tool calls are those of one token at a time, streamed or not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_llm import EOS, make_llm

from deepinfer.api import LLM, RequestOutput, SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.codec import ChatMessage, Codec

USER = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'
ANSWERS = [
    "thinking</think>content",
    "thinking</think>content" + CALL,
    "thinking" + CALL + "</think>content",  # in the midst of its thinking
    "thinking</think>\n\nconte\nHuman: nt",
    "never ends",
    "</think>",
    "é🙂</think>🙂é\n",
]
SIZES = {"max_model_len": 4096, "num_blocks": 64, "max_num_batched_tokens": 2048, "max_prefill_tokens": 2048}


@pytest.fixture(scope="module")
def llms(tokenizer: BpeTokenizer) -> list[LLM]:
    """One token a step, and two ways to have several."""
    ways = [{}, {"draft_depth": 4, "acceptance": 1.0}, {"draft_depth": 3, "async_depth": 1}]
    return [make_llm(tokenizer, **way, **SIZES) for way in ways]


def told(message: ChatMessage | None) -> tuple:
    """A message without the ids of its calls, which are drawn anew each time."""
    assert message is not None
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return message.content, message.reasoning_content, calls, message.finish_reason, message.problems


def seen(out: RequestOutput) -> tuple:
    return out.text, out.token_ids, out.finish_reason, out.error, told(out.message), out.notices


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), stop=st.sampled_from([(), ("ab",), ("b\n",), ("</think>",)]), thinking=st.booleans())
def test_d04_chats_are_those_of_single_tokens_with_markers_anywhere_in_a_block(
    llms: list[LLM], tokenizer: BpeTokenizer, seed: int, stop: tuple[str, ...], thinking: bool
) -> None:
    """bjk110/spark_vllm_docker#16. `</think>`, the marker of calls and the end come at random."""
    letters = dict.fromkeys(tokenizer.encode("ab\n< calls>"), 11.0)
    markers = dict.fromkeys([tokenizer.token_id("</think>"), tokenizer.token_id("｜DSML｜"), EOS], 10.0)
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=40, stop=stop, logit_bias=letters | markers)
    options = {"thinking": thinking, "tools": [TOOL]}
    outs = [llm.chat(USER, params, **options)[0] for llm in llms]
    assert outs[0].error is None and seen(outs[1]) == seen(outs[2]) == seen(outs[0])
    for llm in llms:
        events = list(llm.stream(USER, params, **options))
        assert "".join(event.reasoning for event in events) == (outs[0].message.reasoning_content or "")
        assert "".join(event.text for event in events) == outs[0].message.content
        assert [t for event in events for t in event.token_ids] == outs[0].token_ids
        assert told(events[-1].message) == told(outs[0].message)
    assert llms[1].engine.stats().accepted_length > 1


@settings(max_examples=12, deadline=None)
@given(text=st.sampled_from(ANSWERS), ends=st.booleans(), data=st.data())
def test_d10_every_cut_into_blocks_gives_the_same_thinking_and_content(
    tokenizer: BpeTokenizer, text: str, ends: bool, data: st.DataObject
) -> None:
    """sglang#39826, and a block that crosses the end before the thinking is over."""
    codec = Codec(tokenizer, eos_token_ids=[EOS])
    prompt = codec.encode(USER, SamplingParams(stop=("\nHuman:",)), thinking=True, tools=[TOOL])
    ids = tokenizer.encode(text) + [EOS] * ends
    whole = codec.parse(prompt, ids, "stop" if ends else "length")
    reader, content, reasoning = codec.reader(prompt), "", ""
    while ids:
        size = data.draw(st.integers(1, 6))
        block, ids = ids[:size], ids[size:]
        more, thought = reader.push(block, last=not ids)
        content, reasoning = content + more, reasoning + thought
        assert "\ufffd" not in more + thought and "｜DSML｜" not in more
    assert (content, reasoning) == (whole.content, whole.reasoning_content or "")


def test_x20_an_answer_that_ends_in_a_control_token_loses_nothing(llms: list[LLM]) -> None:
    """smg-project/smg PR#2203: the last flush skipped the parsers; "xyz" may still grow into the stop string."""
    params = msgspec.structs.replace(SamplingParams(temperature=0.0, max_tokens=40), stop=("xyza",))
    for llm in llms:
        (out,) = llm.chat([*USER, {"role": "assistant", "content": "t"}], params)
        assert out.finish_reason == "stop" and out.message.content.endswith("uvwxyz")
        events = list(llm.stream([*USER, {"role": "assistant", "content": "t"}], params))
        assert "".join(event.text for event in events) == out.message.content
