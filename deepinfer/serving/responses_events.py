"""One answer as events of the Responses API: deepseek-recipe makes them, and here they learn what was asked and its cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe
import msgspec

from deepinfer.serving.answers import Piece
from deepinfer.serving.responses_object import as_told, usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepinfer.interfaces import TokenLogprobs
    from deepinfer.serving.codec import ChatPrompt, Codec
    from deepinfer.serving.responses_request import ResponsesAsk

Entries = Callable[[list["TokenLogprobs"]], list[dict[str, Any]]]
_BEGIN = ("response.created", "response.in_progress")
_END = ("response.completed", "response.incomplete")
_ITEM = ("response.output_item.added", "response.output_item.done")
_TEXT = ("response.output_text.delta", "response.output_text.done", "response.content_part.done")
_name_of = recipe.ResponsesResponse.sse_event_name
_encode = msgspec.json.Encoder().encode


class ResponsesEvents:
    """Reads one answer. `final` is the response that its last event tells, once there is one; `last` makes that event."""

    def __init__(
        self, ask: ResponsesAsk, prompt: ChatPrompt, codec: Codec, *, response_id: str, model: str, entries: Entries
    ) -> None:
        """`entries` tells log probabilities in OpenAI's form."""
        self.id = response_id
        self.final: dict[str, Any] | None = None
        self.reader = codec.answer_reader(prompt, self._generator(prompt, response_id, model))
        self._ask, self._entries, self._num_prompt = ask, entries, len(prompt.prompt_ids)
        self._prompt = msgspec.structs.replace(prompt, prompt_ids=[])  # an answer outlives long prompts
        stream = recipe.StreamProcessor(
            self._generator(prompt, response_id, model), prompt.request.parsing_options
        )  # of which only the first events are asked, before there is a token
        self._first = [_decoded(event) for event in stream.push(recipe.InferenceChunk.ready())]
        self._created_s = self._first[0]["response"]["created_at"]
        self._end: dict[str, Any] = {}
        self._logprobs: list[dict[str, Any]] = []  # of the message that is being written
        self._untold: list[dict[str, Any]] = []  # of these, those that no event has carried yet

    def begin(self) -> bytes:
        """The events before the first token: the client has the response's id while it waits."""
        for event in self._first:
            event["response"] = self._told(event["response"])
        return b"".join(map(_sse, self._first))

    def push(self, piece: Piece) -> bytes:
        """The events that a piece makes, the last one of the response apart. `begin` comes before."""
        return self._events(self.reader.push(piece))

    def end(self, status: str, error: dict[str, Any] | None = None) -> bytes:
        """The events that close what is open of a response that was cancelled or has failed."""
        closing = self._events(self.reader.push(Piece(index=0, token_ids=[], finish_reason="length")))
        assert self.final is not None, "a piece that ends the answer ends the response"
        self.final |= {"status": status, "error": error, "incomplete_details": None}
        self._end["type"] = "response.failed" if status == "failed" else "response.incomplete"
        return closing

    def last(self) -> bytes:
        """The event that ends the stream, with the response as `final` is now."""
        return _sse(self._end | {"response": self.final})

    def snapshot(self) -> dict[str, Any]:
        """The response while it is being made."""
        return self._told(self._first[0]["response"])

    @staticmethod
    def _generator(prompt: ChatPrompt, response_id: str, model: str) -> Any:
        return recipe.ResponsesRequest.chunk_generator(prompt.request, response_id, model)

    def _events(self, chunks: Iterable[Any]) -> bytes:
        if self._ask.logprobs:
            self._take_logprobs()
        told = []
        for chunk in chunks:
            name = _name_of(chunk)
            if name in _BEGIN:
                continue
            if name in _END:
                self._end = _decoded(chunk)
                self.final = self._told(self._end["response"])
                self.final["usage"] = usage(self.reader, self._num_prompt)
                if notices := [*self._prompt.notices, *self.reader.problems]:
                    self.final["notices"] = notices
            elif name in _ITEM or (self._ask.logprobs and name in _TEXT):
                told.append(_sse(self._patched(_decoded(chunk))))
            else:
                told.append(f"event: {name}\ndata: {chunk.to_json()}\n\n".encode())
        return b"".join(told)

    def _told(self, response: dict[str, Any]) -> dict[str, Any]:
        told = as_told(response, self._ask, self._prompt) | {"created_at": self._created_s}
        told["output"] = [self._item(item) for item in told["output"]]
        return told

    def _patched(self, event: dict[str, Any]) -> dict[str, Any]:
        if "item" in event:
            event["item"] = self._item(event["item"])
        elif event["type"] == "response.output_text.delta":
            event["logprobs"], self._untold = self._untold, []
        elif event["type"] == "response.output_text.done":
            event["logprobs"] = self._logprobs
        elif event["part"]["type"] == "output_text":
            event["part"]["logprobs"] = self._logprobs
        return event

    def _item(self, item: dict[str, Any]) -> dict[str, Any]:
        """An output item; thinking is told in full, so nothing of it is told again in a form that only we can read."""
        if item["type"] == "reasoning":
            return item | {"encrypted_content": None}
        for part in item.get("content") or ():
            part["logprobs"] = self._logprobs
        return item

    def _take_logprobs(self) -> None:
        _, content = self.reader.take_logprobs()
        found = self._entries(content)
        self._logprobs += found
        self._untold += found


def _decoded(event: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(event.to_json())
    return decoded


def _sse(event: dict[str, Any]) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + _encode(event) + b"\n\n"
