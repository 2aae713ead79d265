"""The answers to one chat as they grow: chunks of a stream, or the whole response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deepseek_recipe as recipe
import msgspec

from deepinfer.serving.http.openai_shapes import event, usage
from deepinfer.serving.http.token_logprobs import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from deepinfer.interfaces import TokenLogprobs
    from deepinfer.sampling.tokenizer import BpeTokenizer
    from deepinfer.serving.answers import Piece
    from deepinfer.serving.chat_request import ChatCall
    from deepinfer.serving.codec import ChatPrompt
    from deepinfer.serving.http.reading_loop import Read
    from deepinfer.serving.reading import AnswerReader

_ENCODE = msgspec.json.Encoder().encode


class _Choice(msgspec.Struct):
    """Of a chunk of the library, what is kept as it is."""

    delta: msgspec.Raw
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


_DECODE_DELTA = msgspec.json.Decoder(_Delta).decode
_DECODE = msgspec.json.Decoder(_Chunk).decode


class ChatAnswer:
    """All answers to one chat. `answer_reader` makes the reader of one (`Codec.answer_reader`)."""

    def __init__(
        self,
        call: ChatCall,
        prompt: ChatPrompt,
        answer_reader: Callable[[ChatPrompt, Any], AnswerReader],
        tokenizer: BpeTokenizer,
        *,
        response_id: str,
        created: int,
        model: str,
    ) -> None:
        self._top_logprobs, self._token_ids, self._tokenizer = call.top_logprobs, call.token_ids, tokenizer
        self._num_prompt, self._told_before = len(prompt.prompt_ids), prompt.notices  # an answer outlives long prompts
        self._head = {"id": response_id, "created": created, "model": model}
        generator = recipe.ChatCompletionRequest.chunk_generator
        self._readers = [
            answer_reader(prompt, generator(prompt.request, response_id, model)) for _ in range(prompt.params.n)
        ]
        self._held: list[tuple[list[TokenLogprobs], list[TokenLogprobs]]] = [([], []) for _ in self._readers]
        self._wholes = [recipe.ChatCompletionResponse(response_id, model, created, 0, 0) for _ in self._readers]
        start = _ENCODE({**self._head, "object": "chat.completion.chunk", "system_fingerprint": None})
        self._start = start[:-1] + b',"choices":[{"index":'
        self._no_choices = start[:-1] + b',"choices":[]'
        options = call.stream_options
        self._include_usage = options.include_usage
        self._continuous = options.continuous_usage_stats
        self._usage_null = b',"usage":null' if options.include_usage else b""

    def events(self, _: int, piece: Piece) -> Read:
        """The events that a piece makes, one after the other, and whether its answer ended there."""
        reader, out = self._readers[piece.index], []
        choices = [_DECODE(chunk.to_json()).choices[0] for chunk in reader.push(piece)]
        start = self._start + b"%d" % piece.index + b',"delta":'
        all_logprobs = self._logprobs(piece.index, choices)
        for choice, logprobs in zip(choices, all_logprobs, strict=True):
            reason = b"null" if choice.finish_reason is None else b'"%s"' % choice.finish_reason.encode()
            ids = b',"token_ids":' + _ENCODE(reader.take_token_ids()) if self._token_ids else b""
            body = (
                start + bytes(choice.delta) + b',"logprobs":' + logprobs + b',"finish_reason":' + reason + ids + b"}]"
            )
            used = b',"usage":' + _ENCODE(self.usage()) if self._continuous else self._usage_null
            out.append(event(body + used + self._notices(reader, choice) + b"}"))
        return b"".join(out), reader.stopped

    def add(self, _: int, piece: Piece) -> Read:
        """Take a piece for the whole response."""
        reader = self._readers[piece.index]
        for chunk in reader.push(piece):
            self._wholes[piece.index].accumulate(chunk)
        return b"", reader.stopped

    def whole(self) -> dict[str, Any]:
        """The response, once all answers have ended."""
        told = {**self._head, "object": "chat.completion", "system_fingerprint": None}
        told["choices"] = [self._whole_choice(index) for index in range(len(self._readers))]
        told["usage"] = self.usage()
        notices = [*self._told_before, *(problem for reader in self._readers for problem in reader.problems)]
        return told | ({"notices": notices} if notices else {})

    def _whole_choice(self, index: int) -> dict[str, Any]:
        (choice,) = msgspec.json.decode(self._wholes[index].to_json())["choices"]
        message = choice["message"] | {"refusal": None}
        for call in message.get("tool_calls") or ():
            del call["index"]  # which belongs to a stream
            message["content"] = message.get("content") or None  # as OpenAI tells a message of calls alone
        logprobs = None if self._top_logprobs is None else self._told(*self._readers[index].take_logprobs())
        told = {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice["finish_reason"]}
        return told | {"token_ids": self._readers[index].take_token_ids()} if self._token_ids else told

    def usage_event(self) -> bytes:
        """The chunk behind all others of a stream that asks for usage."""
        if not self._include_usage:
            return b""
        return event(self._no_choices + b',"usage":' + _ENCODE(self.usage()) + b"}")

    def usage(self) -> dict[str, Any]:
        """Tokens so far, of all answers together."""
        readers = self._readers
        return usage(
            self._num_prompt,
            readers[0].num_cached_tokens,
            sum(reader.num_tokens for reader in readers),
            sum(reader.num_reasoning_tokens for reader in readers),
        )

    def _notices(self, reader: AnswerReader, choice: _Choice) -> bytes:
        """With the end of an answer, what was not done to the letter."""
        notices = (*self._told_before, *reader.problems) if choice.finish_reason else ()
        return b',"notices":' + _ENCODE(notices) if notices else b""

    def _logprobs(self, index: int, choices: Sequence[_Choice]) -> list[bytes]:
        """For each chunk: with the last one that has text of their kind, those of all tokens read until then.

        Where no chunk has any (text is held back) they wait, at the latest for the chunk that ends the answer.
        """
        told = [b"null"] * len(choices)
        if self._top_logprobs is None or not choices:
            return told
        held = self._held[index]
        for kept, new in zip(held, self._readers[index].take_logprobs(), strict=True):
            kept += new
        deltas = [_DECODE_DELTA(choice.delta) for choice in choices]
        has_text = (
            [bool(delta.reasoning_content) for delta in deltas],
            [bool(delta.content or delta.tool_calls) for delta in deltas],
        )
        last = len(choices) - 1 if choices[-1].finish_reason else None
        parts: dict[int, tuple[list[TokenLogprobs], list[TokenLogprobs]]] = {}
        for kind, has in enumerate(has_text):
            at = max((number for number, one in enumerate(has) if one), default=last)
            if at is not None and held[kind]:
                parts.setdefault(at, ([], []))[kind].extend(held[kind])
                held[kind].clear()
        for at, part in parts.items():
            told[at] = _ENCODE(self._told(*part))
        return told

    def _told(self, reasoning: Iterable[TokenLogprobs], content: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """In DeepSeek's form, where those of reasoning stand beside those of content."""
        top, tokenizer = self._top_logprobs or 0, self._tokenizer
        told: dict[str, Any] = {"content": entries(content, top, tokenizer), "refusal": None}
        if thought := entries(reasoning, top, tokenizer):
            told["reasoning_content"] = thought
        return told
