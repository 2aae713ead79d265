"""What careless or hostile callers do: it costs them their own call or request, and nobody else anything."""

import gc
import signal
from collections.abc import Callable

import numpy as np
import pytest

from deepinfer.api import LLM, SamplingParams
from deepinfer.config.errors import Refused
from deepinfer.serving.call_arguments import all_overrides

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)


@pytest.mark.parametrize("field", ["stop", "bad_words"])
def test_half_a_surrogate_pair_costs_one_request(llm: LLM, field: str) -> None:
    bad = SamplingParams(**{field: ("\ud800",)})
    outs = llm.generate(["x", "x"], [bad, GREEDY])
    assert field in outs[0].error and "surrogate" in outs[0].error and outs[1].text == "yz"
    assert llm.generate("x", GREEDY)[0].text == "yz"


def test_bad_words_are_built_before_a_request_joins_the_line(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words, vocabulary):
        raise ValueError("these words cannot be built")

    monkeypatch.setattr("deepinfer.sampling.slot_params.BadWords", fail)
    outs = llm.generate(["x", "x"], [SamplingParams(bad_words="q"), GREEDY])
    assert "cannot be built" in outs[0].error and outs[1].text == "yz" and llm.engine.unfinished == 0


def test_bad_words_through_the_door(llm: LLM) -> None:
    (out,) = llm.generate("a", SamplingParams(temperature=0.0, max_tokens=4, bad_words=("cd",)))
    assert out.text.startswith("bc") and "cd" not in out.text and len(out.token_ids) == 4


def test_a_bias_that_changes_after_submission_changes_nothing(llm: LLM) -> None:
    (wanted,) = llm.tokenizer.encode("q")
    bias = {wanted: 100.0}
    prompt = np.array(llm.tokenizer.encode("a"))
    llm.engine.submit(prompt, SamplingParams(temperature=0.0, max_tokens=1, logit_bias=bias))
    bias[10**6] = float("nan")
    assert [event.token_ids for event in llm.engine.step()] == [[wanted]]


def test_a_stream_that_is_never_started_holds_nothing(llm: LLM) -> None:
    streams = [llm.stream("a", LONG), llm.stream([{"role": "user", "content": "a"}], LONG)]
    assert llm.engine.unfinished == 0
    del streams
    gc.collect()
    assert llm.engine.unfinished == 0 and llm.engine.stats().submitted == 0


@pytest.mark.parametrize("prompt", ["a", [{"role": "user", "content": "a"}]])
def test_a_started_stream_that_is_forgotten_frees_its_request(llm: LLM, prompt: object) -> None:
    stream = llm.stream(prompt, LONG)
    next(stream)
    assert llm.engine.unfinished == 1
    del stream
    gc.collect()
    assert llm.engine.unfinished == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.generate(["a"] * 5, LONG),
        lambda llm: list(llm.stream("a", LONG)),
        lambda llm: llm.chat("a", LONG),
    ],
)
def test_ctrl_c_during_submission_leaves_nothing_behind(llm: LLM, use: Callable[[LLM], object]) -> None:
    submit = llm.engine.submit

    def interrupted(*args, **keywords):
        ids = submit(*args, **keywords)
        signal.raise_signal(signal.SIGINT)
        return ids

    llm.engine.submit = interrupted
    with pytest.raises(KeyboardInterrupt):
        use(llm)
    del llm.engine.submit
    assert llm.engine.unfinished == 0 and llm.engine.stats().submitted == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert llm.generate("x", GREEDY)[0].text == "yz"


@pytest.mark.parametrize("prompts", [None, 5, {"x"}, frozenset("ab"), b"bytes"])
def test_what_are_no_prompts_is_refused_by_its_kind(llm: LLM, prompts: object) -> None:
    with pytest.raises(ValueError, match=f"prompts is a {type(prompts).__name__}: give a text"):
        llm.generate(prompts)


def test_prompts_may_come_from_a_generator_and_a_wrong_dict_is_an_error(llm: LLM) -> None:
    assert [out.text for out in llm.generate((p for p in "xs"), GREEDY)] == ["yz", "tuvwxyz"]
    assert "one key" in llm.generate({"a": 1}, GREEDY)[0].error


@pytest.mark.parametrize("messages", [None, 5, {"role": "user", "content": "a"}, iter([]), {"a"}])
def test_what_is_no_conversation_is_refused_by_its_kind(llm: LLM, messages: object) -> None:
    with pytest.raises(ValueError, match=f"messages is a {type(messages).__name__}: give a text, a list of messages"):
        llm.chat(messages)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"foo": 1}, "no option 'foo': there are thinking, tools"),
        ({"thinking": "yes"}, "thinking='yes' is neither True nor False"),
        ({"thinking": 1}, "thinking=1 is neither"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": []}, "there are no tools"),
        ({"tools": {"type": "function"}}, "tools is a dict"),
    ],
)
def test_wrong_options_of_a_chat_are_refused(llm: LLM, options: dict, hint: str) -> None:
    for call in (llm.chat, llm.stream):
        with pytest.raises(ValueError, match=hint):
            call([{"role": "user", "content": "a"}], GREEDY, **options)
    assert llm.engine.unfinished == 0


def test_a_surrogate_in_a_message_costs_one_conversation(llm: LLM) -> None:
    outs = llm.chat([[{"role": "user", "content": text}] for text in ("a", "\udc80")], GREEDY)
    assert outs[0].error is None and "surrogate" in outs[1].error


@pytest.mark.parametrize("override", [5, None, ["model=v41_tiny"], {"model": "v41_tiny"}])
def test_an_override_that_is_no_text_is_refused(override: object) -> None:
    with pytest.raises(Refused, match=f"a {type(override).__name__}; overrides are texts"):
        LLM(override)


def test_a_keyword_that_is_none_says_nothing() -> None:
    assert all_overrides(("a=1",), {"model__path": None, "sampling__n": 2}) == ("a=1", "sampling.n=2")
