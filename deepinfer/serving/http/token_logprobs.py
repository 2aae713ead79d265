"""Log probabilities of tokens in the form of Chat Completions. JSON knows no infinities: they are the smallest finite value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.sampling.outputs import as_dict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepinfer.interfaces import TokenLogprobs
    from deepinfer.sampling.tokenizer import BpeTokenizer

LOWEST = -9999.0  # what OpenAI's API says of a token that cannot come


def entries(logprobs: Iterable[TokenLogprobs], top: int, tokenizer: BpeTokenizer) -> list[dict[str, Any]]:
    """{token, logprob, bytes, top_logprobs} of each token, with the `top` likeliest, of which the chosen one may be."""
    told = []
    for entry in logprobs:
        values = as_dict(entry, top)
        chosen = next(iter(values))
        best = sorted(values.items(), key=lambda item: -item[1])[:top]
        told.append(
            {**_token(chosen, values[chosen], tokenizer), "top_logprobs": [_token(*item, tokenizer) for item in best]}
        )
    return told


def finite(value: float) -> float:
    """A log probability that JSON can hold."""
    return value if value > LOWEST else LOWEST


def _token(token_id: int, logprob: float, tokenizer: BpeTokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}
