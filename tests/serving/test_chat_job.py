"""The rules that all dialects share: thinking, forced calls, lengths, histories, and whose temperature it is."""

import json

import pytest

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.chat_ask import ChatAsk
from deepinfer.serving.chat_history import ChatError, check_messages
from deepinfer.serving.chat_job import chat_job, rendered
from deepinfer.serving.fields import FieldError
from deepinfer.serving.jobs import Desk, Job
from deepinfer.structured import ToolCalls

USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties": {}}}}
PLAIN = SamplingParams()
FORCED = {"tools": [TOOL], "tool_choice": "required"}


@pytest.fixture(scope="module")
def desk(chat_tokenizer: BpeTokenizer) -> Desk:
    sizes = {"vocab_size": 300, "max_model_len": 2000, "bos_token_id": 0, "eos_token_ids": [1]}
    return Desk(chat_tokenizer, **sizes, grammar="llguidance")


def job(desk: Desk, *, default: bool = False, asked=frozenset(), defaults=PLAIN, messages=(USER,), **ask) -> Job:
    """`default`: whether the server thinks where nobody says."""
    whole = ChatAsk(model="m", messages=list(messages), **ask)
    return chat_job(whole, desk, defaults, asked=asked, thinking=default)


@pytest.mark.parametrize(
    ("default", "asked", "effort", "thinks"),
    [
        (False, None, None, False),
        (True, None, None, True),
        (True, False, None, False),
        (False, True, None, True),
        (False, None, "low", True),
        (True, None, "none", False),
        (False, True, "max", True),
    ],
)
def test_who_says_whether_to_think(desk: Desk, chat_tokenizer, default, asked, effort, thinks) -> None:
    made = job(desk, default=default, thinking=asked, reasoning_effort=effort)
    prompt = chat_tokenizer.decode(made.prompt_ids, skip_special_tokens=False)
    assert prompt.endswith("<think>" if thinks else "</think>")
    assert ("Reasoning Effort: 50" in prompt, "Reasoning Effort: 100" in prompt) == (effort == "low", effort == "max")


def test_x13_a_forced_call_turns_the_default_off_and_says_so(desk: Desk) -> None:
    made = job(desk, default=True, **FORCED)
    assert isinstance(made.params.grammar, ToolCalls) and made.params.grammar.opened
    assert "is off for this answer: a tool call is forced" in made.chat.notices[0]
    assert job(desk, **FORCED).chat.notices == ()
    quiet = job(desk, default=True, thinking=False, **FORCED)
    assert quiet.chat.notices == ()
    for more in ({"thinking": True}, {"reasoning_effort": "high"}):
        with pytest.raises(FieldError, match="turn thinking off with") as refused:
            job(desk, **FORCED, **more)
        assert refused.value.param == "tool_choice"


def test_thinking_and_effort_that_contradict_are_refused(desk: Desk) -> None:
    for thinking, effort in ((True, "none"), (False, "low"), (None, "much")):
        with pytest.raises(FieldError) as refused:
            job(desk, thinking=thinking, reasoning_effort=effort)
        assert refused.value.param == "reasoning_effort"


def test_x22_max_tokens_is_the_clients_within_the_room_left(desk: Desk) -> None:
    num_prompt = len(job(desk).prompt_ids)
    room = 2000 - num_prompt
    assert job(desk).params.max_tokens == room, "8,192 would be DeepSeek's default"
    assert job(desk, max_tokens=40).params.max_tokens == 40 and job(desk, max_tokens=40).chat.notices == ()
    cut = job(desk, max_tokens=room + 1)
    assert cut.params.max_tokens == room
    assert cut.chat.notices == (
        f"max_tokens={room + 1} becomes {room}: the prompt has {num_prompt} of the 2000 tokens of the context",
    )
    planned = job(desk, defaults=SamplingParams(max_tokens=30), asked={"max_tokens"})
    assert planned.params.max_tokens == 30


def test_x21_a_prompt_that_does_not_fit_is_refused_with_the_numbers(desk: Desk) -> None:
    with pytest.raises(
        FieldError, match=r"the prompt has 2,\d\d\d tokens .* at least 1, .* 2,000 tokens .* shorten messages$"
    ) as refused:
        job(desk, messages=[{"role": "user", "content": "x" * 2100}])
    assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")
    with pytest.raises(FieldError, match=r"shorten input or lower min_tokens$") as refused:
        job(desk, place="input", max_tokens=1999, sampling={"min_tokens": 1999})
    assert refused.value.param == "input"


def test_a_temperature_that_was_chosen_stays(desk: Desk) -> None:
    think = {"messages": [USER], "model": "m", "thinking": True}
    chosen = chat_job(ChatAsk(**think, sampling={"temperature": 0.2}), desk, SamplingParams(), asked=(), thinking=False)
    assert chosen.params.temperature == 0.2 and "stays as asked" in chosen.chat.notices[0]
    planned = chat_job(ChatAsk(**think), desk, SamplingParams(temperature=0.3), asked={"temperature"}, thinking=False)
    assert planned.params.temperature == 0.3
    free = chat_job(ChatAsk(**think), desk, SamplingParams(temperature=0.3), asked=(), thinking=False)
    assert free.params.temperature == 1.0


def test_sampling_that_is_wrong_is_refused_before_anything_is_rendered(desk: Desk) -> None:
    with pytest.raises(FieldError, match=r"top_p=2.*seed=-1") as refused:
        job(desk, sampling={"top_p": 2.0, "seed": -1}, messages=[])
    assert refused.value.param == "top_p"


def test_x14_thoughts_that_are_missing_are_empty(desk: Desk, chat_tokenizer: BpeTokenizer) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "w", "arguments": "{}"}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    made = chat_job(
        ChatAsk(model="m", messages=history, tools=[TOOL], thinking=True),
        desk,
        SamplingParams(),
        asked=(),
        thinking=False,
    )
    assert "<｜Assistant｜><think></think>\n\n<｜DSML｜ calls>" in chat_tokenizer.decode(
        made.prompt_ids, skip_special_tokens=False
    )


def test_x16_calls_of_one_turn_are_one_turn_and_others_are_not() -> None:
    def calls(*names: str, **more):
        return {"role": "assistant", "tool_calls": [{"id": name} for name in names], **more}

    def result(name: str):
        return {"role": "tool", "tool_call_id": name, "content": "ok"}

    joined = check_messages(
        [
            USER,
            calls("a", content="So", reasoning_content="hm"),
            calls("b", content=None),
            result("b"),
            result("a"),
            USER,
        ]
    )
    assert joined == [
        USER,
        {**calls("a", "b"), "content": "So", "reasoning_content": "hm"},
        result("b"),
        result("a"),
        USER,
    ]
    apart = [USER, calls("a"), result("a"), calls("b"), result("b")]
    assert check_messages(apart) == apart
    with pytest.raises(ChatError, match="message 2 calls a tool with the id 'b'"):
        check_messages([USER, calls("a"), calls("b"), result("a"), USER])
    with pytest.raises(ChatError, match="message 3 is the result of 'a'"):
        check_messages([USER, calls("a"), result("a"), result("a")])


def test_what_a_client_keeps_of_an_answer_is_taken_back(desk: Desk, chat_tokenizer: BpeTokenizer) -> None:
    """With all its fields, most of them null; a refusal is what was said."""
    nothing = {"annotations": None, "audio": None, "function_call": None, "tool_calls": None, "refusal": None}
    call = {"id": "a", "type": "function", "function": {"name": "w", "arguments": "{}"}}
    history = [
        {"role": "assistant", "content": "Yes", **nothing, "reasoning_content": "hm"},
        {"role": "assistant", "content": None, **nothing, "refusal": "No"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never"}], **nothing},
        {"role": "assistant", "content": "", **nothing, "tool_calls": [call]},
    ]
    messages = [each for one in history[:3] for each in (USER, one)] + [USER, history[3]]
    made = job(desk, messages=[*messages, {"role": "tool", "tool_call_id": "a", "content": "ok"}], tools=[TOOL])
    text = chat_tokenizer.decode(made.prompt_ids, skip_special_tokens=False)
    for said in ("Yes", "No", "Never"):
        assert f"</think>{said}<｜end▁of▁sentence｜>" in text


def test_a_continued_answer_and_a_developer(desk: Desk, chat_tokenizer: BpeTokenizer) -> None:
    """X15: no new turn begins after an assistant's message."""
    messages = [{"role": "developer", "content": "Be kind."}, USER, {"role": "assistant", "content": "Once"}]
    text = chat_tokenizer.decode(job(desk, messages=messages).prompt_ids, skip_special_tokens=False)
    assert text == "<｜begin▁of▁sentence｜><｜System｜>Be kind.<｜User｜>Hello<｜Assistant｜></think>Once"


def test_the_schema_of_a_strict_tool_is_enforced_as_it_was_given(desk: Desk) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "maxLength": 3}},
        "required": ["x"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "w", "parameters": schema, "strict": True}}
    (one,) = job(desk, tools=[tool]).params.grammar.tools
    assert one.strict and json.loads(json.dumps(one.parameters)) == schema


def test_what_the_plan_says_of_several_answers_and_log_probabilities_stays_out_of_dialects_without_them(
    desk: Desk,
) -> None:
    plan = SamplingParams(n=2, logprobs=3, prompt_logprobs=4)
    one = job(desk, defaults=plan).params
    assert (one.n, one.logprobs, one.prompt_logprobs) == (1, None, None)
    several = job(desk, defaults=plan, several=True, sampling={"logprobs": 1}).params
    assert (several.n, several.logprobs, several.prompt_logprobs) == (2, 1, None)


def test_a_prompt_that_is_too_long_can_be_counted(desk: Desk) -> None:
    ask = ChatAsk(model="m", messages=[{"role": "user", "content": "a" * 3000}])
    with pytest.raises(FieldError, match="2,000"):
        chat_job(ask, desk, PLAIN, asked=frozenset(), thinking=False)
    assert len(rendered(ask, desk, PLAIN, asked=frozenset(), thinking=False).prompt_ids) > 3000


def test_only_who_asked_for_a_temperature_hears_of_it(desk: Desk) -> None:
    greedy = SamplingParams(temperature=0.0)
    assert job(desk, defaults=greedy, thinking=True).chat.notices == ()
    assert job(desk, defaults=greedy, thinking=True, asked={"temperature"}).chat.notices == ()
    (notice,) = job(desk, thinking=True, sampling={"temperature": 0.5}).chat.notices
    assert notice.startswith("temperature=0.5 stays as asked")


def test_several_answers_that_must_be_the_same_are_told(desk: Desk) -> None:
    (notice,) = job(desk, several=True, sampling={"n": 3, "temperature": 0.0}).chat.notices
    assert notice.startswith("n=3 with temperature=0 gives the same answer 3 times")
    assert job(desk, several=True, sampling={"n": 3, "temperature": 1.0}).chat.notices == ()
    assert job(desk, sampling={"temperature": 0.0}).chat.notices == ()
