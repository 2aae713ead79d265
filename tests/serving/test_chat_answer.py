"""Chunks of a chat's stream carry the log probabilities of their own tokens."""

import json
from typing import Any

import numpy as np

from deepinfer.interfaces import SamplingParams, TokenLogprobs
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.answers import Piece
from deepinfer.serving.chat_request import ChatCall, chat_call
from deepinfer.serving.codec import Codec
from deepinfer.serving.http.chat_answer import ChatAnswer

EOS = 1


def chunks_of(
    tokenizer: BpeTokenizer, text: str, cuts: list[int], *, thinking: bool = False, stop: Any = ()
) -> list[Any]:
    """(text of the chunk, tokens whose log probabilities it has, why it ends the answer)."""
    call: ChatCall = chat_call(
        json.dumps({"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "stream": True}).encode()
    )
    codec = Codec(tokenizer, (EOS,))
    prompt = codec.encode("hi", SamplingParams(logprobs=0, stop=stop), thinking=thinking)
    answer = ChatAnswer(call, prompt, codec.answer_reader, tokenizer, response_id="c", created=0, model="m")
    ids = [*tokenizer.encode(text), EOS]
    told = b""
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        part = ids[begin:end]
        logprobs = [TokenLogprobs(np.array([each]), np.array([-1.0], np.float32), 1) for each in part]
        reason = "stop" if end == len(ids) else None
        events, _ = answer.events(0, Piece(index=0, token_ids=part, logprobs=logprobs, finish_reason=reason))
        told += events
    found = []
    for line in told.decode().splitlines():
        if line:
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            delta, entries = choice["delta"], choice["logprobs"] or {}
            tokens = [
                "".join(one["token"] for one in entries.get(name) or ()) for name in ("reasoning_content", "content")
            ]
            found.append(
                (
                    (delta.get("reasoning_content") or "", delta.get("content") or ""),
                    tuple(tokens),
                    choice["finish_reason"],
                )
            )
    return found


def test_the_chunk_with_the_text_has_them_and_the_one_that_ends_the_answer_has_none(
    chat_tokenizer: BpeTokenizer,
) -> None:
    for cuts in ([], [1], [2], [1, 2]):
        told = chunks_of(chat_tokenizer, "abc", cuts)
        assert all(text == tokens for text, tokens, _ in told), told
        assert told[-1] == (("", ""), ("", ""), "stop")


def test_those_of_thoughts_stand_with_the_thoughts(chat_tokenizer: BpeTokenizer) -> None:
    thought = chunks_of(chat_tokenizer, "so</think>yes", [], thinking=True)
    assert all(text == tokens for text, tokens, _ in thought) and [text for text, _, _ in thought if any(text)] == [
        ("so", ""),
        ("", "yes"),
    ]


def test_those_of_text_that_is_held_back_come_with_it(chat_tokenizer: BpeTokenizer) -> None:
    held = chunks_of(chat_tokenizer, "ab", [1], stop=("ax",))
    assert [(text, tokens) for text, tokens, _ in held if any(text)] == [(("", "ab"), ("", "ab"))]
    rest = chunks_of(chat_tokenizer, "za", [1], stop=("ax",))
    assert "".join(tokens[1] for _, tokens, _ in rest) == "za"
