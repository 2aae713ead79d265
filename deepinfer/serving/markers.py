"""Markers of V4.1's format, told from text that spells them the same way.

｜DSML｜ and </think> are tokens of their own, but a model may also write their letters: a page about this format, or what a
user wants repeated. deepseek-recipe reads text, where both look alike. So the text that it reads carries a spelling of each
marker that nobody can write, since it is drawn when the process starts; letters stay letters, and no echo forges a call.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import deepseek_recipe as recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deepinfer.sampling.tokenizer import BpeTokenizer

_NONCE = secrets.token_hex(8)
CALL_MARKER = f"\ufdd0{_NONCE}d\ufdd1"  # ｜DSML｜; noncharacters, so that ordinary text is never held back for them
THINK_END = f"\ufdd0{_NONCE}t\ufdd1"  # </think>
_KINDS = recipe.SpecialToken
_TURNS = (_KINDS.Bos, _KINDS.System, _KINDS.User, _KINDS.Assistant, _KINDS.LatestReminder)  # where an answer is over
_SPELLINGS = {CALL_MARKER: "｜DSML｜", THINK_END: "</think>"}


class MarkedTokens:
    """A tokenizer's bytes, markers in their own spelling, ends of sequence and begins of turns (which
    come where `ignore_eos` goes beyond the answer) as nothing. `think_end` is the id of </think>, -1
    where there is none."""

    def __init__(self, tokenizer: BpeTokenizer, eos_token_ids: Collection[int]) -> None:
        ids = {tokenizer.token_id(spelling): private for private, spelling in _SPELLINGS.items()}
        self._other = {token_id: private.encode() for token_id, private in ids.items() if token_id is not None}
        turns = (tokenizer.token_id(kind.default_str()) for kind in _TURNS)
        self._other |= {token_id: b"" for token_id in (*eos_token_ids, *turns) if token_id is not None}
        self._bytes_of = tokenizer.token_bytes
        found = tokenizer.token_id(_SPELLINGS[THINK_END])
        self.think_end = -1 if found is None else found

    def token_bytes(self, token_id: int) -> bytes:
        found = self._other.get(token_id)
        return self._bytes_of(token_id) if found is None else found

    def is_silent(self, token_id: int) -> bool:
        """Whether a token is </think>, an end of sequence or the begin of a turn, which no client sees as a token."""
        return token_id == self.think_end or self._other.get(token_id) == b""

    def is_special(self, token_id: int) -> bool:
        """No token is skipped: what is no marker and no end of sequence belongs to the answer."""
        return False


def as_letters(text: str) -> str:
    """Text with markers in it as a client may see it."""
    for private, spelling in _SPELLINGS.items():
        text = text.replace(private, spelling)
    return text


def with_marked(stops: Sequence[str]) -> tuple[str, ...]:
    """Stop strings and, of those that spell markers, a second form that meets the markers themselves."""
    marked = []
    for stop in stops:
        other = stop
        for private, spelling in _SPELLINGS.items():
            other = other.replace(spelling, private)
        marked += [stop] if other == stop else [stop, other]
    return tuple(marked)


def private_options(options: recipe.ParsingOptions) -> recipe.ParsingOptions:
    """How the library reads text with such markers. It begins outside of calls, and looks for no stop strings."""
    return recipe.ParsingOptions(
        parse_tool_calls=options.parse_tool_calls,
        parse_json_output=options.parse_json_output,
        thinking_initial_stage=options.thinking_initial_stage,
        special_tokens=recipe.SpecialTokens(dsml=CALL_MARKER, thinking_end=THINK_END),
    )
