"""Log probabilities for people: a line for each token, the chosen one first, then the likeliest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer.sampling.outputs import Completion, RequestOutput
    from deepinfer.sampling.tokenizer import BpeTokenizer


def prompt_lines(output: RequestOutput, tokenizer: BpeTokenizer | None) -> Iterator[str]:
    """For every prompt token but the first, where they were asked for."""
    for position, entry in enumerate(output.prompt_logprobs or ()):
        if entry is not None:
            yield f"prompt {position:4}  {_entry(entry, tokenizer)}"


def token_lines(answer: Completion, tokenizer: BpeTokenizer | None) -> Iterator[str]:
    """For every token of an answer, where they were asked for."""
    for number, entry in enumerate(answer.logprobs or ()):
        yield f"token  {number:4}  {_entry(entry, tokenizer)}"


def _entry(entry: dict[int, float], tokenizer: BpeTokenizer | None) -> str:
    texts = [tokenizer.decode([token_id], skip_special_tokens=False) if tokenizer else "" for token_id in entry]
    return "  ".join(f"{token_id} {text!r} {value:.3f}" for (token_id, value), text in zip(entry.items(), texts))
