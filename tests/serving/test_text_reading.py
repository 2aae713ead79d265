"""Texts that go on, read in any pieces: the same text, and every token at its place in it."""

from itertools import pairwise

import numpy as np
import pytest

from deepinfer.interfaces import SamplingParams, TokenLogprobs
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.answers import Piece
from deepinfer.serving.text_reading import TextReader

EOS = 1


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(np.array([token_id]), np.array([-1.0], np.float32), 1)


def read(tokenizer: BpeTokenizer, params: SamplingParams, ids: list[int], cuts: list[int], reason="stop", **echo):
    """(text, tokens with their places, reader)."""
    reader, text = TextReader(tokenizer, params, **echo), ""
    for begin, end in pairwise([0, *cuts, len(ids)]):
        part = ids[begin:end]
        last = reason if end == len(ids) else None
        prompt = [entry(each) for each in echo.get("echo_ids", ())][1:] if begin == 0 else None
        piece = Piece(
            index=0, token_ids=part, logprobs=[entry(each) for each in part], finish_reason=last, prompt_logprobs=prompt
        )
        text += reader.push(piece)
    return text, [(one.token_id, one.offset) for one in reader.take_placed()], reader


@pytest.mark.parametrize(
    ("text", "stop"), [("a é🙂 b", ()), ("one\nHum\nHuman: x", ("\nHuman:",)), ("a <", (" <x",)), ("é", ("zz",))]
)
def test_x17_x18_x19_x20_every_split_gives_the_whole_text(chat_tokenizer: BpeTokenizer, text: str, stop) -> None:
    ids = [*chat_tokenizer.encode(text), EOS]
    params = SamplingParams(stop=stop, logprobs=0)
    whole, placed, reader = read(chat_tokenizer, params, ids, [])
    assert whole == text.partition("\nHuman:")[0]
    for cut in range(1, len(ids)):
        found = read(chat_tokenizer, params, ids, [cut])
        assert found[:2] == (whole, placed) and found[2].num_tokens == reader.num_tokens
    assert read(chat_tokenizer, params, ids, list(range(1, len(ids))))[:2] == (whole, placed)
    assert reader.stopped == ("Human" in text) and reader.finish_reason == "stop"


def test_places_are_characters_of_the_text_and_the_prompt_comes_first(chat_tokenizer: BpeTokenizer) -> None:
    prompt, answer = "é:", "🙂b"
    ids = [*chat_tokenizer.encode(answer), EOS]
    echo = {"echo": prompt, "echo_ids": chat_tokenizer.encode(prompt)}
    params = SamplingParams(logprobs=0, prompt_logprobs=0)
    text, placed, _ = read(chat_tokenizer, params, ids, [2], **echo)
    assert text == prompt + answer
    assert [offset for _, offset in placed] == [0, 0, 1, 2, 2, 2, 2, 3], "bytes of a character begin where it does"
    one = TextReader(chat_tokenizer, params, echo="a", echo_ids=chat_tokenizer.encode("a"))
    assert one.push(Piece(index=0, token_ids=ids[:1])) == "a", "a prompt of one token has nothing before it"
    assert [(each.offset, each.logprobs) for each in one.take_placed()] == [(0, None)]


def test_an_answer_that_fails_has_no_reason(chat_tokenizer: BpeTokenizer) -> None:
    _, _, reader = read(chat_tokenizer, SamplingParams(), chat_tokenizer.encode("ab"), [1], reason="error")
    assert reader.ended and reader.finish_reason is None and not reader.stopped
    assert reader.push(Piece(index=0, token_ids=[70])) == ""
