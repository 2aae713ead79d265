import json
import math
from pathlib import Path

import pytest

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.outputs import Completion, DraftCounts, RequestOutput
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.batch_file import Line, job_of, read_lines, record
from deepinfer.serving.jobs import Desk, Job
from deepinfer.serving.result_file import ForeignOutput, ResultFile

DEFAULTS = SamplingParams(temperature=0.5, max_tokens=7)


@pytest.fixture(scope="module")
def desk(chat_tokenizer: BpeTokenizer) -> Desk:
    return Desk(
        chat_tokenizer,
        vocab_size=chat_tokenizer.vocab_size,
        max_model_len=4096,
        bos_token_id=0,
        eos_token_ids=[1],
    )


def job(desk: Desk, value: object, **kwargs) -> Job:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return job_of(Line(3, data, "d"), desk, DEFAULTS, **kwargs)


def test_lines_keep_their_numbers_and_digests_tell_runs_apart(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf"a"\r\n\n  \n"b"')
    lines = list(read_lines(path, "s"))
    assert [(line.number, line.data) for line in lines] == [(1, b'"a"'), (4, b'"b"')]
    assert lines[0].digest != lines[1].digest != next(iter(read_lines(path, "t"))).digest


def test_every_form_of_a_line(desk: Desk) -> None:
    text, prompt = job(desk, "hi"), job(desk, {"prompt": "hi"})
    chat = job(desk, {"messages": [{"role": "user", "content": "hi"}], "id": "x"})
    assert text.prompt_ids == prompt.prompt_ids == chat.prompt_ids and text.chat is not None and text.error is None
    assert text.params == DEFAULTS
    ids = job(desk, {"prompt_token_ids": [0, 70, 71]})
    assert ids.prompt_ids == [0, 70, 71] and ids.chat is None
    thinking = job(desk, {"prompt": "hi", "thinking": True})
    assert thinking.prompt_ids == job(desk, "hi", thinking=True).prompt_ids != text.prompt_ids
    assert job(desk, {"prompt": "hi", "thinking": False}, thinking=True).prompt_ids == text.prompt_ids


def test_a_line_may_change_the_sampling(desk: Desk) -> None:
    params = job(desk, {"prompt": "x", "sampling": {"max_tokens": 3, "stop": ["a"], "logit_bias": {"5": 1}}}).params
    assert (params.max_tokens, params.stop, params.logit_bias, params.temperature) == (3, ("a",), {5: 1.0}, 0.5)


def test_a_line_may_keep_its_prefixes_to_itself(desk: Desk) -> None:
    lines = ({"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}]}, {"prompt_token_ids": [0, 5]})
    assert [job(desk, line | {"cache_salt": "s" * 256}).cache_salt for line in lines] == ["s" * 256] * 3
    assert [job(desk, line).cache_salt for line in lines] == [""] * 3


def test_what_a_line_or_the_command_line_chose_wins_over_the_format(desk: Desk) -> None:
    line = {"prompt": "x", "thinking": True}
    assert job(desk, line).params.temperature == 1.0
    assert job(desk, line | {"sampling": {"temperature": 0.25, "stop": "."}}).params.temperature == 0.25
    assert job(desk, line, asked=frozenset({"temperature"})).params.temperature == 0.5


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (b"{", "no JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 200_000, "no JSON"),
        (5, "holds 5"),
        ({}, "none of prompt"),
        ({"prompt": "a", "messages": []}, "prompt and messages"),
        ({"prompt": 5}, "int"),
        ({"prompts": "a"}, "'prompts'"),
        ({"prompt": "a", "id": [1]}, "id is"),
        ({"prompt": "a", "thinking": "yes"}, "thinking"),
        ({"prompt_token_ids": [1], "tools": []}, "tools"),
        ({"prompt_token_ids": []}, "non-empty"),
        ({"prompt_token_ids": [1.5]}, "token ids"),
        ({"prompt_token_ids": [10**9]}, "vocabulary"),
        ({"messages": []}, "list of messages"),
        ({"prompt": "a", "sampling": {"temprature": 1}}, "temprature"),
        ({"prompt": "a", "sampling": {"max_tokens": "x"}}, "max_tokens='x' is not a whole number"),
        ({"prompt": "a", "sampling": {"stop": 5}}, "stop=5 is a int, not a list of texts"),
        ({"prompt": "a", "sampling": {"logit_bias": {"x": 1}}}, "logit_bias names token 'x'"),
        ({"prompt": "a", "sampling": {"temperature": math.nan}}, "temperature=nan"),
        ({"prompt": "a", "sampling": 3}, "no object"),
        ({"prompt": "a" * 5000}, "4096"),
        ({"prompt": "a", "cache_salt": 5}, "cache_salt=5 is no text of at most 256 characters"),
        ({"prompt_token_ids": [1], "cache_salt": "s" * 257}, "cache_salt='sss"),
        ({"prompt": "a", "cache_salt": "\ud800"}, "cache_salt="),
    ],
)
def test_bad_lines_become_errors_that_name_the_fault(desk: Desk, value: object, hint: str) -> None:
    error = job(desk, value).error
    assert error is not None and hint in error


def test_records_are_finite_json_with_the_lines_id() -> None:
    answers = [Completion(index=i, text=f"t{i}", token_ids=[i], finish_reason="stop") for i in range(2)]
    answers[0].logprobs = [{5: -0.5, 6: -math.inf}]
    output = RequestOutput(prompt_token_ids=[0, 1], outputs=answers, prompt_logprobs=[None, {1: math.nan}])
    made = record(Line(3, b'{"id": 9}', "dd"), output)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert list(made)[:3] == ["line", "digest", "id"] and made["id"] == 9 and made["text"] == "t0"
    assert made["logprobs"] == [{"5": -0.5, "6": None}] and made["prompt_logprobs"] == [None, {"1": None}]
    assert [answer["text"] for answer in made["answers"]] == ["t0", "t1"]
    assert "id" not in record(Line(3, b'{"id": NaN}', "d"), output)


def test_a_record_says_what_was_drafted_for_an_answer() -> None:
    answers = [Completion(index=i, drafts=DraftCounts(rounds=2 * i, checked=5 * i, accepted=3 * i)) for i in range(2)]
    made = record(Line(1, b"{}", "d"), RequestOutput(prompt_token_ids=[0], outputs=answers))
    assert "drafts" not in made, "nothing was checked for the first"
    assert made["answers"][1]["drafts"] == {"rounds": 2, "checked": 5, "accepted": 3, "accepted_length": 2.5}


def test_a_record_says_what_the_cache_gave_where_there_is_one() -> None:
    output = RequestOutput(prompt_token_ids=[0], outputs=[Completion(index=0)], cached_tokens=128, approximate=True)
    made = record(Line(1, b"{}", "d"), output, keeps_prefixes=True)
    assert (made["cached_tokens"], made["approximate"]) == (128, True)
    assert not {"cached_tokens", "approximate"} & record(Line(1, b"{}", "d"), output).keys()


LINES = [Line(number, b"x", f"d{number}") for number in (1, 2, 4)]


def entry(line: Line) -> dict:
    return {"line": line.number, "digest": line.digest, "text": "é\ud800"}


def write_all(path: Path, lines: list[Line]) -> bytes:
    with ResultFile(path, LINES) as results:
        for line in lines[results.done :]:
            results.write(entry(line))
    return path.read_bytes()


def test_a_run_goes_on_after_any_cut(tmp_path: Path) -> None:
    """The file of a killed run may end at any byte."""
    whole = write_all(tmp_path / "whole", LINES)
    assert [json.loads(line)["line"] for line in whole.splitlines()] == [1, 2, 4]
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut"
        path.write_bytes(whole[:cut])
        with ResultFile(path, LINES) as results:
            assert results.done == whole[:cut].count(b"\n")
        assert write_all(path, LINES) == whole


@pytest.mark.parametrize(
    "content",
    [
        b"notes without a line end",
        b"some notes\n",
        b'{"line": 1, "digest": "other"}\n',
        b'{"line": 2, "digest": "d2"}\n',
        b'{"line": 1}\n',
        b"[]\n",
        b'{"line": 1, "digest": "d1"}\n{"line": 2, "digest": "d2"}\n{"line": 4, "digest": "d4"}\n{"line": 5, "digest": ""}\n',
    ],
)
def test_an_output_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(ForeignOutput, match="name another output="):
        ResultFile(path, LINES)
    assert path.read_bytes() == content


def test_two_runs_cannot_share_an_output(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out", LINES), pytest.raises(ForeignOutput, match="another run"):
        ResultFile(tmp_path / "out", LINES)


def test_an_output_without_an_end_is_refused() -> None:
    with pytest.raises(ForeignOutput, match="not a regular file"):
        ResultFile(Path("/dev/full"), LINES)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b'{"prompt": "a", "prompt": "b"}', "'prompt' is given twice"),
        (b'{"prompt": "a", "sampling": {"seed": 1, "seed": 2}}', "'seed' is given twice"),
        (b'"a\xff"', "not UTF-8 (byte 3 is 0xff)"),
    ],
)
def test_what_cannot_be_read_costs_its_line_alone(desk: Desk, data: bytes, hint: str) -> None:
    error = job(desk, data).error
    assert error is not None and error.startswith("line 3") and hint in error
