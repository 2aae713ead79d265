"""The answers to the prompts of one completion request as they grow: chunks of a stream, or the whole response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.sampling.outputs import as_dict
from deepinfer.serving.http.openai_shapes import event, usage
from deepinfer.serving.http.token_logprobs import finite
from deepinfer.serving.text_reading import TextReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepinfer.sampling.tokenizer import BpeTokenizer
    from deepinfer.serving.answers import Piece
    from deepinfer.serving.completion_request import CompletionCall
    from deepinfer.serving.http.reading_loop import Read
    from deepinfer.serving.text_reading import PlacedToken

_BYTES = 64  # of JSON for a token with its log probability
_ENCODE = msgspec.json.Encoder().encode


class CompletionAnswer:
    """All answers to all prompts; answer k of prompt i is choice i · n + k."""

    def __init__(self, call: CompletionCall, tokenizer: BpeTokenizer, head: dict[str, Any]) -> None:
        """`head`: id, created and model of the response."""
        self._call, self._tokenizer = msgspec.structs.replace(call, jobs=[], echoes=[]), tokenizer
        self._num_prompt = sum(len(job.prompt_ids) for job in call.jobs)  # an answer outlives long prompts
        self._head = {**head, "object": "text_completion", "system_fingerprint": None}
        self._num = call.jobs[0].params.n
        self._readers = [
            TextReader(tokenizer, job.params, echo=text, echo_ids=job.prompt_ids[len(job.prompt_ids) - num :])
            for job, (text, num) in zip(call.jobs, call.echoes, strict=True)
            for _ in range(self._num)
        ]
        self._echoed = [reader.num_untold for reader in self._readers]
        self._texts: list[list[str]] = [[] for _ in self._readers]
        self._start = _ENCODE(self._head)[:-1] + b',"choices":['
        self._usage_null = b',"usage":null' if call.stream_options.include_usage else b""

    def event_size(self, prompt: int, piece: Piece) -> int:
        """How many bytes an event has, roughly, that tells a prompt token by token; 0 of any other."""
        reader = self._readers[prompt * self._num + piece.index]
        return _BYTES * reader.num_untold if self._call.logprobs is not None and piece.token_ids else 0

    def whole_size(self) -> int:
        """How many bytes the response has, roughly, where log probabilities are told; else 0."""
        if self._call.logprobs is None:
            return 0
        return _BYTES * sum(reader.num_tokens + num for reader, num in zip(self._readers, self._echoed, strict=True))

    def event(self, prompt: int, piece: Piece) -> Read:
        """The event that a piece makes, none while what it adds is held back; and whether the answer ended there."""
        choice = prompt * self._num + piece.index
        reader = self._readers[choice]
        text = reader.push(piece)
        if not (text or reader.finish_reason or (self._call.token_ids and piece.token_ids)):
            return b"", reader.stopped
        body = self._start + _ENCODE(self._choice(choice, text)) + b"]"
        used = (
            b',"usage":' + _ENCODE(self.usage())
            if self._call.stream_options.continuous_usage_stats
            else self._usage_null
        )
        return event(body + used + b"}"), reader.stopped

    def usage_event(self) -> bytes:
        """The chunk behind all others of a stream that asks for usage."""
        if not self._call.stream_options.include_usage:
            return b""
        return event(self._start + b'],"usage":' + _ENCODE(self.usage()) + b"}")

    def add(self, prompt: int, piece: Piece) -> Read:
        """Take a piece for the whole response."""
        choice = prompt * self._num + piece.index
        self._texts[choice].append(self._readers[choice].push(piece))
        return b"", self._readers[choice].stopped

    def whole(self) -> dict[str, Any]:
        """The response, once all answers have ended."""
        choices = [self._choice(number, "".join(texts)) for number, texts in enumerate(self._texts)]
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens so far; a prompt counts once, however many answers it has."""
        return usage(
            self._num_prompt,
            sum(reader.num_cached_tokens for reader in self._readers[:: self._num]),
            sum(reader.num_tokens for reader in self._readers),
        )

    def _choice(self, number: int, text: str) -> dict[str, Any]:
        reader = self._readers[number]
        logprobs = None if self._call.logprobs is None else self._told(reader.take_placed())
        told = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reader.finish_reason}
        return told | {"token_ids": reader.take_token_ids()} if self._call.token_ids else told

    def _told(self, placed: Iterable[PlacedToken]) -> dict[str, Any]:
        told: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        top = self._call.logprobs or 0
        for one in placed:
            values = {} if one.logprobs is None else as_dict(one.logprobs, top)
            told["tokens"].append(self._spelled(one.token_id))
            told["text_offset"].append(one.offset)
            told["token_logprobs"].append(finite(values[one.token_id]) if values else None)
            best = {self._spelled(token_id): finite(value) for token_id, value in values.items()}
            told["top_logprobs"].append(best if values and top else None)
        return told

    def _spelled(self, token_id: int) -> str:
        """A token as text; one that is no UTF-8 by itself as its bytes, so that two such stay two."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
