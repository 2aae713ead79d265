"""Answers read piece by piece are the answers read whole, and calls that nobody may execute never become calls."""

import json
import random

import msgspec
import pytest
from read_answers import CLOSE, EOS, OPEN, PARIS, ROME, asked, block, invoke, parameter, read, tool

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.answers import Piece
from deepinfer.serving.codec import Codec

SHELL = 'cmd 2>&1 </parameter> </x> <｜DSML "q" \\n {"a": 1}'
TOOLS = {"tools": [tool()]}
ANY_JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
IN_ROME, IN_PARIS = ("weather", {"city": "Rome", "days": 3}), ("weather", {"city": "Paris"})
CUT = f'{OPEN}<｜DSML｜ invoke name="weather">\n<｜DSML｜ parameter name="city" string="true">a'
MALFORMED = (
    "unknown tool", "broken value", "second is broken", "cut off", "marker alone", "stop in a call", "thought of a broken call",
)  # fmt: skip
STOPS = SamplingParams(stop=("\nHuman:",))


@pytest.fixture(scope="module")
def codec(chat_tokenizer: BpeTokenizer) -> Codec:
    return Codec(chat_tokenizer, eos_token_ids=[1])


CASES = {
    "plain": (f"a < b 🙂 한글 <{EOS}", {}, None),
    "thinking": (f"\n\n3 < 4 🙂</think>\n\n7 é{EOS}", {"thinking": True}, None),
    "one call": (f"See: 🙂{block(ROME)}{EOS}", TOOLS, None),
    "three calls": (f"é{block(ROME, PARIS, invoke())}{EOS}", TOOLS, None),
    "thought, said, called": (f"hm🙂</think>Let me see.{block(PARIS, ROME)}{EOS}", {**TOOLS, "thinking": True}, None),
    "forced": (f"{ROME}{PARIS}{CLOSE}{EOS}", {**TOOLS, "tool_choice": "required"}, None),
    "shell": (f"x{block(invoke(parameter('city', SHELL)))}{EOS}", TOOLS, None),
    "unknown tool": (f"x{block(ROME.replace('weather', 'climate'))} y{EOS}", TOOLS, None),
    "broken value": (f"x{block(ROME.replace('>3<', '>[3,<'))}{EOS}", TOOLS, None),
    "second is broken": (f"x{block(ROME, ROME.replace('>3<', '>[3,<'), PARIS)}{EOS}", TOOLS, None),
    "cut off": (f"x{OPEN}{ROME}{PARIS[:60]}{EOS}", TOOLS, None),
    "marker alone": (f"x <｜DSML｜ y ｜DSML｜ z <{EOS}", TOOLS, None),
    "no tools": (f"x{block(ROME)}{EOS}", {}, None),
    "stop": ("one\nHum\nHuman: two", {}, STOPS),
    "stop in a thought": ("one\nHuman: two</think>three", {"thinking": True}, STOPS),
    "stop in a call": ("x" + block(invoke(parameter("city", "a\nHuman:b"))), TOOLS, STOPS),
    "stop at a marker": ("a🙂</think>b", {"thinking": True}, SamplingParams(stop=("</think>",))),
    "after one call": (f"x{block(ROME, PARIS)}{EOS}", {**TOOLS, "parallel": False}, None),
    "json": (f'{{"a": "🙂"}}{EOS}', {"response_format": ANY_JSON}, None),
    "thought of a call": (f"a{block(ROME)}</think>b{EOS}", {**TOOLS, "thinking": True}, None),
    "thought of a broken call": (f"a<｜DSML｜ x</think>b{block(ROME)}{EOS}", {**TOOLS, "thinking": True}, None),
}  # fmt: skip


def case(codec: Codec, tokenizer: BpeTokenizer, name: str):
    text, options, params = CASES[name]
    options = dict(options)
    parallel = options.pop("parallel", True)
    prompt = msgspec.structs.replace(asked(codec, params, **options), parallel_tool_calls=parallel)
    return prompt, tokenizer.encode(text)


@pytest.mark.parametrize("name", CASES)
def test_x01_x11_x23_every_split_gives_the_whole_answer(codec: Codec, chat_tokenizer: BpeTokenizer, name: str) -> None:
    """Each byte and each marker is a token here, so that every place of the text is a border once."""
    prompt, ids = case(codec, chat_tokenizer, name)
    whole = read(codec, prompt, ids).told()
    for cut in range(1, len(ids)):
        assert read(codec, prompt, ids, [cut]).told() == whole, ids[:cut]
    assert read(codec, prompt, ids, list(range(1, len(ids)))).told() == whole
    draw = random.Random(name)
    for _ in range(20):
        cuts = sorted(draw.sample(range(1, len(ids)), min(len(ids) - 1, draw.randrange(1, 9))))
        assert read(codec, prompt, ids, cuts).told() == whole, cuts


@pytest.mark.parametrize(
    ("name", "content", "reasoning", "calls", "reason"),
    [
        ("plain", "a < b 🙂 한글 <", None, [], "stop"),
        ("thinking", "7 é", "3 < 4 🙂", [], "stop"),
        ("one call", "See: 🙂", None, [IN_ROME], "tool_calls"),
        ("three calls", "é", None, [IN_ROME, IN_PARIS, ("weather", {})], "tool_calls"),
        ("forced", "", None, [IN_ROME, IN_PARIS], "tool_calls"),
        ("shell", "x", None, [("weather", {"city": SHELL})], "tool_calls"),
        ("unknown tool", f"x{block(ROME.replace('weather', 'climate'))} y", None, [], "stop"),
        ("broken value", f"x{block(ROME.replace('>3<', '>[3,<'))}", None, [], "stop"),
        ("second is broken", "x", None, [IN_ROME], "tool_calls"),
        ("cut off", "x", None, [IN_ROME], "tool_calls"),
        ("marker alone", "x <｜DSML｜ y ｜DSML｜ z <", None, [], "stop"),
        ("no tools", f"x{block(ROME)}", None, [], "stop"),
        ("stop", "one\nHum", None, [], "stop"),
        ("stop in a call", f"x{CUT}", None, [], "stop"),
        ("after one call", "x", None, [IN_ROME], "tool_calls"),
        ("thought of a broken call", "b", "a<｜DSML｜ x", [IN_ROME], "tool_calls"),
    ],
)  # fmt: skip
def test_x02_x05_x07_x18_x19_what_a_client_has_in_the_end(
    codec: Codec, chat_tokenizer: BpeTokenizer, name: str, content: str, reasoning, calls: list, reason: str
) -> None:
    done = read(codec, *case(codec, chat_tokenizer, name))
    assert (done.content, done.reasoning, done.calls, done.finish_reason) == (content, reasoning, calls, reason)
    assert bool(done.reader.problems) == (name in MALFORMED)


def test_x07_an_end_that_comes_alone_does_not_hide_the_calls(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    ids = chat_tokenizer.encode(block(ROME))
    done = read(codec, asked(codec, **TOOLS), [*ids, 1], [len(ids)])
    assert (
        done.finish_reason == "tool_calls"
        and json.loads(done.chunks[-1])["choices"][0]["finish_reason"] == "tool_calls"
    )


def test_x08_the_first_news_of_a_call_has_its_id_and_name(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    ids = chat_tokenizer.encode(block(ROME, PARIS) + EOS)
    done = read(codec, asked(codec, **TOOLS), ids, list(range(1, len(ids))))
    news = [choice["delta"].get("tool_calls") for chunk in done.chunks for choice in json.loads(chunk)["choices"]]
    firsts = {}
    for (call,) in filter(None, news):
        firsts.setdefault(call["index"], call)
    assert [(one["function"]["name"], one["id"][:7]) for one in firsts.values()] == [
        ("weather", "call_00"),
        ("weather", "call_01"),
    ]


@pytest.mark.parametrize(
    ("written", "is_text", "read_as"),
    [("01234", True, "01234"), ("42", False, 42), ("null", False, None), ("[1]", False, [1]), ("", True, "")],
)
def test_x03_the_flag_of_a_value_counts(
    codec: Codec, chat_tokenizer: BpeTokenizer, written: str, is_text: bool, read_as
) -> None:
    ids = chat_tokenizer.encode(block(invoke(parameter("city", written, is_text=is_text))))
    assert read(codec, asked(codec, **TOOLS), ids).calls == [("weather", {"city": read_as})]


def test_x04_a_field_named_arguments_stays_and_a_wrapper_goes(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    own = tool(parameters={"type": "object", "properties": {"arguments": {"type": "string"}}})
    wrapped = block(invoke(parameter("arguments", '{"city": "01", "days": 3, "x": "a"}', is_text=False)))
    ids = chat_tokenizer.encode(block(invoke(parameter("arguments", "-v"))))
    assert read(codec, asked(codec, tools=[own]), ids).calls == [("weather", {"arguments": "-v"})]
    for text in (wrapped, wrapped.replace('string="false"', 'string="true"')):
        done = read(codec, asked(codec, **TOOLS), chat_tokenizer.encode(text))
        assert done.calls == [("weather", {"city": "01", "days": 3, "x": "a"})]


@pytest.mark.parametrize(
    "call",
    [
        invoke(name="we\nather {"),
        invoke(name="x" * 300),
        ROME.replace('name="weather">', 'name="weather"'),
        ROME.replace(">3<", ">NaN<"),
        ROME.replace(">3<", '>3, "x": 4<'),
        ROME.replace('name="days"', 'name="city"'),
        ROME.replace("</｜DSML｜ parameter>\n", "", 1),
        ROME.replace("\n<｜DSML｜ parameter", "\ntext<｜DSML｜ parameter", 1),
        "function<｜tool▁sep｜>weather\n```json\n{}\n```",
        ROME.replace("</｜DSML｜ invoke>\n", "") + PARIS,
    ],
    ids=["name", "long name", "no end of the tag", "NaN", "two in one", "twice", "unclosed", "text", "V3", "swallows"],
)
def test_x06_x24_what_is_malformed_is_text_and_no_call(codec: Codec, chat_tokenizer: BpeTokenizer, call: str) -> None:
    ids = chat_tokenizer.encode("x" + block(call) + EOS)
    done = read(codec, asked(codec, **TOOLS), ids, list(range(1, len(ids))))
    assert (done.content, done.calls, done.finish_reason) == ("x" + block(call), [], "stop")
    assert len(done.reader.problems) == 1


def test_echoed_letters_of_a_marker_forge_no_call(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    """What the tokenizer made of a user's text has no markers, and a model that repeats it writes the same tokens."""
    echoed = [_byte(chat_tokenizer, byte) for byte in ("x" + block(ROME)).encode()]
    done = read(codec, asked(codec, **TOOLS), [*echoed, 1])
    assert (done.content, done.calls, done.finish_reason) == ("x" + block(ROME), [], "stop")
    spelled = [_byte(chat_tokenizer, byte) for byte in b"a</think>b"]
    thinking = read(codec, asked(codec, thinking=True), [*spelled, chat_tokenizer.token_id("</think>"), *spelled, 1])
    assert (thinking.reasoning, thinking.content) == ("a</think>b", "a</think>b")


def _byte(tokenizer: BpeTokenizer, byte: int) -> int:
    return next(
        token_id for token_id in range(tokenizer.vocab_size) if tokenizer.token_bytes(token_id) == bytes([byte])
    )


def test_x02_x20_nothing_that_was_held_back_is_lost_at_the_end(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    for text in ("a <", "a </", "a\n\n<", "a \nHum", "</thin", "é"):
        for options in ({}, TOOLS):
            done = read(codec, asked(codec, STOPS, **options), chat_tokenizer.encode(text), reason="length")
            assert (done.content, done.finish_reason) == (text, "length")


def test_x15_an_answer_that_continues_begins_as_it_comes(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    prompt = codec.encode([*asked_user(), {"role": "assistant", "content": "Once"}], SamplingParams(), thinking=True)
    done = read(codec, prompt, chat_tokenizer.encode(f"\n\nupon{EOS}"))
    assert done.content == "\n\nupon" and not done.reasoning


def asked_user() -> list[dict[str, str]]:
    return [{"role": "user", "content": "Hello"}]


def test_tokens_are_counted_and_chunks_are_not_empty(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    """The end counts, </think> counts as an answer's but not as a thought's."""
    prompt, ids = case(codec, chat_tokenizer, "thinking")
    done = read(codec, prompt, ids, list(range(1, len(ids))))
    assert done.reader.num_tokens == len(ids)
    assert done.reader.num_reasoning_tokens == len("\n\n3 < 4 🙂".encode())
    deltas = [json.loads(chunk)["choices"][0] for chunk in done.chunks][1:-1]
    texts = [one["delta"].get("content") or one["delta"].get("reasoning_content") for one in deltas]
    assert all(texts) and "".join(texts) == "3 < 4 🙂7 é"


def test_tokens_behind_the_end_do_not_count(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    prompt, ids = case(codec, chat_tokenizer, "stop")
    done = read(codec, prompt, ids)
    assert (
        done.reader.stopped
        and done.reader.stop_string == "\nHuman:"
        and done.reader.num_tokens == len("one\nHum\nHuman:")
    )
    assert done.reader.push(Piece(index=0, token_ids=[70])) == []


PARTS = [
    "a", " <", "<", "</", "\n", "\n\n", "🙂", "é", '"', "{", ">", " calls>", " invoke>", " parameter>", 'name="weather">',
    'string="true">', "｜DSML｜", "</think>", "<think>", EOS, "\nHuman:", OPEN, CLOSE, ROME, PARIS, ROME[:40], PARIS[30:],
    invoke(name="climate"), parameter("city", "x"), parameter("days", "[1", is_text=False),
    parameter("arguments", '{"city": "y"}', is_text=False), "<｜DSML｜ calls>\n",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_read_alike_however_it_comes_and_gives_no_bad_call(
    codec: Codec, chat_tokenizer: BpeTokenizer, seed: int
) -> None:
    draw = random.Random(seed)
    prompts = [
        asked(codec, draw.choice([None, STOPS]), **options)
        for options in (
            {},
            {"thinking": True},
            TOOLS,
            {**TOOLS, "thinking": True},
            {**TOOLS, "tool_choice": "required"},
        )
    ]
    num_calls = 0
    for _ in range(60):
        prompt = msgspec.structs.replace(draw.choice(prompts), parallel_tool_calls=draw.random() < 0.8)
        ids = chat_tokenizer.encode("".join(draw.choices(PARTS, k=draw.randrange(1, 9))))
        reason = draw.choice(["stop", "length"])
        done = read(codec, prompt, ids, reason=reason)
        for cuts in (list(range(1, len(ids))), sorted(draw.sample(range(1, len(ids)), (len(ids) - 1) // 3))):
            assert read(codec, prompt, ids, cuts, reason).told() == done.told(), (ids, cuts)
        num_calls += len(done.calls)
        assert all(name == "weather" for name, _ in done.calls)
        assert all(isinstance(arguments, dict) for _, arguments in done.calls)
        hidden = "\ufdd0" in done.content + (done.reasoning or "") + str(done.calls)
        assert not hidden and bool(done.calls) >= (done.finish_reason == "tool_calls")
    assert num_calls > 0
