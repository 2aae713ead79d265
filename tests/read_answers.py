"""Answers read in pieces, for tests: what a chat client would have in the end."""

import json
from itertools import pairwise
from typing import Any

import deepseek_recipe as recipe

from deepinfer.interfaces import SamplingParams
from deepinfer.serving.answers import Piece
from deepinfer.serving.codec import ChatPrompt, Codec
from deepinfer.serving.reading import AnswerReader

USER = [{"role": "user", "content": "Hello"}]
EOS = "<｜end▁of▁sentence｜>"
OPEN, CLOSE = "\n\n<｜DSML｜ calls>\n", "</｜DSML｜ calls>"
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


def tool(name: str = "weather", parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or CITY, **more}}


def parameter(name: str, value: str, is_text: bool = True) -> str:
    flag = str(is_text).lower()
    return f'<｜DSML｜ parameter name="{name}" string="{flag}">{value}</｜DSML｜ parameter>\n'


def invoke(*parameters: str, name: str = "weather") -> str:
    return f'<｜DSML｜ invoke name="{name}">\n{"".join(parameters)}</｜DSML｜ invoke>\n'


def block(*invokes: str) -> str:
    return OPEN + "".join(invokes) + CLOSE


ROME = invoke(parameter("city", "Rome"), parameter("days", "3", is_text=False))
PARIS = invoke(parameter("city", "Paris"))


class Read:
    """One answer read to its end: the message (calls as (name, arguments)), and the reader."""

    def __init__(self, reader: AnswerReader, chunks: list[str], message: dict[str, Any]) -> None:
        self.reader, self.chunks = reader, chunks
        self.content = message["message"].get("content") or ""
        self.reasoning = message["message"].get("reasoning_content")
        self.calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message["message"].get("tool_calls") or ()
        ]
        self.finish_reason = message["finish_reason"]

    def told(self) -> tuple[Any, ...]:
        """All that must not depend on how the tokens came."""
        counts = self.reader.num_tokens, self.reader.num_reasoning_tokens
        parts = self.content, self.reasoning, self.calls, self.finish_reason, counts
        return (*parts, self.reader.problems, self.reader.stop_string)


def read(
    codec: Codec, prompt: ChatPrompt, token_ids: list[int], cuts: list[int] | None = None, reason: str = "stop"
) -> Read:
    """The tokens in pieces that end at `cuts`; the last piece has the reason."""
    reader = codec.answer_reader(prompt, recipe.ChatCompletionRequest.chunk_generator(prompt.request, "id", "m"))
    whole, chunks = recipe.ChatCompletionResponse("id", "m", 0, 0, 0), []
    for begin, end in pairwise([0, *(cuts or ()), len(token_ids)]):
        last = end == len(token_ids)
        piece = Piece(index=0, token_ids=token_ids[begin:end], finish_reason=reason if last else None)  # type: ignore[arg-type]
        for chunk in reader.push(piece):
            chunks.append(chunk.to_json())
            whole.accumulate(chunk)
    return Read(reader, chunks, json.loads(whole.to_json())["choices"][0])


def asked(codec: Codec, params: SamplingParams | None = None, **options: Any) -> ChatPrompt:
    return codec.encode(USER, params or SamplingParams(), **options)
