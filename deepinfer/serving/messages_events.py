"""One answer as events of the Messages API: deepseek-recipe makes them, and here they learn why it ended and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe
import msgspec

if TYPE_CHECKING:
    from deepinfer.serving.answers import Piece
    from deepinfer.serving.codec import ChatPrompt, Codec

_name_of = recipe.MessagesResponse.sse_event_name
_encode = msgspec.json.Encoder().encode


class MessagesEvents:
    """Reads one answer, as events or as a whole."""

    def __init__(self, prompt: ChatPrompt, codec: Codec, message_id: str, model: str) -> None:
        generator = recipe.MessagesRequest.chunk_generator(prompt.request, message_id, model)
        self.reader = codec.answer_reader(prompt, generator)
        self._num_prompt, self._told_before = len(prompt.prompt_ids), prompt.notices  # an answer outlives long prompts
        self._whole = recipe.MessagesResponse(message_id, model, 0, len(prompt.prompt_ids), 0)

    def push(self, piece: Piece) -> bytes:
        """The events that a piece makes."""
        told = []
        for event in self.reader.push(piece):
            name, text = _name_of(event), event.to_json()
            if name in ("message_start", "message_delta"):
                text = _encode(self._patched(msgspec.json.decode(text))).decode()
            told.append(f"event: {name}\ndata: {text}\n\n")
        return "".join(told).encode()

    def add(self, piece: Piece) -> None:
        """Read a piece of an answer that will be told as a whole."""
        for event in self.reader.push(piece):
            self._whole.accumulate(event)

    def whole(self) -> dict[str, Any]:
        """The message, once the answer has ended."""
        message: dict[str, Any] = msgspec.json.decode(self._whole.to_json())
        message["usage"] = self._usage()
        return self._ended(message) | self._notices()

    def _patched(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["type"] == "message_start":
            event["message"]["usage"] = self._usage() | {"output_tokens": 0}
            return event
        event["delta"], event["usage"] = self._ended(event["delta"]), self._usage()
        return event | self._notices()

    def _ended(self, told: dict[str, Any]) -> dict[str, Any]:
        """Which stop sequence it was, where it was one."""
        if self.reader.stop_string is None:
            return told
        return told | {"stop_reason": "stop_sequence", "stop_sequence": self.reader.stop_string}

    def _usage(self) -> dict[str, Any]:
        """Tokens; what the cache held of the prompt is counted once, and not among `input_tokens`."""
        reader = self.reader
        return {
            "input_tokens": self._num_prompt - reader.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reader.num_cached_tokens,
            "output_tokens": reader.num_tokens,
            "output_tokens_details": {"thinking_tokens": reader.num_reasoning_tokens},
            "service_tier": "standard",
        }

    def _notices(self) -> dict[str, Any]:
        notices = [*self._told_before, *self.reader.problems]
        return {"notices": notices} if notices else {}
