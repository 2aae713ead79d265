"""The text of one answer as its tokens come in: detokenised, cut at stop strings, with the tokens that belong to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer.sampling.detokenize import Detokenizer
from deepinfer.sampling.stop import StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.detokenize import TokenBytes


class TextStream:
    """Grows by tokens; `stopped` says that a stop string was met, after which nothing more is taken.

    A stop string counts from token number `min_tokens` on. The token that ends an answer (end of sequence or a stop id) is
    no part of its text unless `include_stop_str` is set.
    """

    def __init__(self, tokenizer: TokenBytes, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._stops = StopStrings(params.stop, include=params.include_stop_str)
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str
        self.num_tokens = 0
        self.stopped = False

    def push(self, token_ids: Sequence[int], *, ends_with_stop_token: bool = False) -> tuple[str, int]:
        """(new text, how many of the tokens belong to the answer). Fewer than given only where a stop string cut it."""
        text = ""
        if self.stopped:
            return text, 0
        for number, token_id in enumerate(token_ids, start=1):
            self.num_tokens += 1
            if ends_with_stop_token and number == len(token_ids) and not self._include_stop:
                break
            piece, self.stopped = self._stops.push(
                self._detokenizer.push(token_id), may_stop=self.num_tokens >= self._min_tokens
            )
            text += piece
            if self.stopped:
                return text, number
        return text, len(token_ids)

    @property
    def stop_string(self) -> str | None:
        """The stop string that was met."""
        return self._stops.met

    def finish(self) -> str:
        """The rest of the text, once the last token is in."""
        if self.stopped:
            return ""
        piece, self.stopped = self._stops.push(self._detokenizer.flush())
        return piece + self._stops.flush()
