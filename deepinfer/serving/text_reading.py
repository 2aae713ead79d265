"""The text of an answer that is no chat, piece by piece, with the place of each of its tokens."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Literal

import msgspec

from deepinfer.sampling.text_stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deepinfer.interfaces import SamplingParams, TokenLogprobs
    from deepinfer.sampling.tokenizer import BpeTokenizer
    from deepinfer.serving.answers import Piece


class PlacedToken(msgspec.Struct, frozen=True):
    """A token, the character of the text at which it begins, and its log probabilities (None: nothing before it)."""

    token_id: int
    offset: int
    logprobs: TokenLogprobs | None


class Places:
    """Where tokens begin in the text that they make."""

    def __init__(self, tokenizer: BpeTokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def place(self, token_ids: Iterable[int], logprobs: Iterable[TokenLogprobs | None]) -> list[PlacedToken]:
        """The next tokens, one for each entry of `logprobs`."""
        placed = []
        for token_id, entry in zip(token_ids, logprobs, strict=False):
            placed.append(PlacedToken(token_id, self._offset, entry))
            if not (self._skip and self._tokenizer.is_special(token_id)):
                self._offset += len(self._utf8.decode(self._tokenizer.token_bytes(token_id)))
        return placed


class TextReader:
    """Reads one answer, after its prompt where `echo` is a text (`echo_ids`: its tokens, as they stand in the prompt).

    `ended` says that nothing more comes; `stopped` that a stop string ended it, so that the engine must hear. An answer that
    failed has ended without `finish_reason`.
    """

    def __init__(
        self, tokenizer: BpeTokenizer, params: SamplingParams, *, echo: str = "", echo_ids: Sequence[int] = ()
    ) -> None:
        self.ended = self.stopped = False
        self.finish_reason: Literal["stop", "length"] | None = None
        self.num_tokens = self.num_cached_tokens = 0
        self._text = TextStream(tokenizer, params)
        self._places = Places(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._places_of_prompt = Places(tokenizer, skip_special_tokens=False)
        self._include_stop = params.include_stop_str
        self._echo, self._echo_ids = echo, list(echo_ids)
        self._tells_prompt = params.prompt_logprobs is not None
        self._shift = len(echo)
        self._of_prompt: list[TokenLogprobs] = []
        self._placed: list[PlacedToken] = []
        self._token_ids: list[int] = []

    @property
    def num_untold(self) -> int:
        """Tokens of the prompt that are still to be echoed with their log probabilities."""
        return len(self._echo_ids) if self._echo and self._tells_prompt else 0

    def push(self, piece: Piece) -> str:
        """New text. The prompt comes with the first token."""
        if self.ended:
            return ""
        self._of_prompt += piece.prompt_logprobs or ()
        self.num_cached_tokens = piece.cached_tokens or self.num_cached_tokens
        ends = piece.finish_reason == "stop"
        text, number = self._text.push(piece.token_ids, ends_with_stop_token=ends)
        self.num_tokens += number
        self._token_ids += piece.token_ids[:number]
        self.stopped = self._text.stopped
        if self.stopped or piece.finish_reason is not None:
            self.ended = True
            text += self._text.finish()
            self.stopped = self._text.stopped
            reason = "stop" if self.stopped else piece.finish_reason
            self.finish_reason = reason if reason in ("stop", "length") else None
        prompt = self._prompt() if number or self.ended else ""
        if piece.logprobs:
            silent = ends and number == len(piece.token_ids) and not self._include_stop
            kept = number - 1 if silent else number
            placed = self._places.place(piece.token_ids[:kept], piece.logprobs)
            self._placed += [msgspec.structs.replace(one, offset=one.offset + self._shift) for one in placed]
        return prompt + text

    def take_placed(self) -> list[PlacedToken]:
        """Tokens with log probabilities since the last take."""
        placed, self._placed = self._placed, []
        return placed

    def take_token_ids(self) -> list[int]:
        """Tokens of the answer since the last take, the one that ended it included."""
        taken, self._token_ids = self._token_ids, []
        return taken

    def _prompt(self) -> str:
        """The prompt, once."""
        prompt, self._echo = self._echo, ""
        if prompt and self._tells_prompt:
            entries: list[TokenLogprobs | None] = [None, *self._of_prompt]  # nothing comes before the first token
            self._placed = self._places_of_prompt.place(self._echo_ids, entries[-len(self._echo_ids) :])
        return prompt
