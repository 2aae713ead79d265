"""Sequences decoded on a toy model whose logits depend on every token before: plainly, and by drafting and verifying.

The logits of a row that follows a wrong draft are those of the wrong text, as in a real verify pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from deepinfer.interfaces import Request, SamplingParams, TokenLogprobs, Verified, VerifyRows
from deepinfer.sampling.sampler import Sampler

V = 37  # no multiple of 32, nor of a vector's width
EOS = 1
WORDS = [bytes([97 + i % 26]) * (1 + i // 26) for i in range(V)]  # a … z, aa … kk
MaskOf = Callable[[int, Sequence[int]], np.ndarray | None]  # (sequence, tokens so far) → legal tokens


def logits_after(tokens: Sequence[int], what: int = 0, size: int = V) -> np.ndarray:
    """float32 [V]. Depends on all tokens and on `what`."""
    seed = crc32(np.array([what, *tokens], np.int64).tobytes())
    return np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3


def draft_logits_after(tokens: Sequence[int]) -> np.ndarray:
    """Like the target's, but not the same."""
    return logits_after(tokens) + logits_after(tokens, 1) * np.float32(0.3)


def packed(token_ids: Sequence[int], size: int = V) -> np.ndarray:
    """uint32 words of a mask that allows these tokens."""
    words = np.zeros(-(-size // 32), np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def no_mask(s: int, tokens: Sequence[int]) -> None:
    """Nothing is forbidden."""


def random_mask(tokens: Sequence[int]) -> np.ndarray:
    """About half of the tokens are legal; which ones depends on the text."""
    rng = np.random.default_rng(crc32(np.array([2, *tokens], np.int64).tobytes()))
    return packed(np.flatnonzero(rng.random(V) < 0.5).tolist())


@dataclass
class Text:
    """A decoded sequence."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    failure: str | None = None


def new_sampler(requests: Sequence[Request], size: int = V) -> Sampler:
    sampler = Sampler(size, len(requests), [EOS], WORDS[:size])
    for slot, request in enumerate(requests):
        sampler.admit(slot, request)
    return sampler


def requests_for(params: Sequence[SamplingParams], prompt: Sequence[int] = (3, 4, 3), seed: int = 7) -> list[Request]:
    return [Request(i, np.array(prompt), one, seed + i) for i, one in enumerate(params)]


def plain(
    requests: Sequence[Request], num_tokens: int, mask_of: MaskOf = no_mask, target=logits_after
) -> tuple[Sampler, list[Text]]:
    """One token a step for every sequence."""
    sampler = new_sampler(requests)
    texts = [Text(request.prompt_ids.tolist()) for request in requests]
    for _ in range(num_tokens):
        logits = np.stack([target(text.tokens) for text in texts])
        masks = {s: mask for s, text in enumerate(texts) if (mask := mask_of(s, text.tokens)) is not None}
        positions = np.array([len(text.tokens) for text in texts])
        sampled = sampler.sample(logits, np.arange(len(texts)), positions, masks)
        for s, text in enumerate(texts):
            text.tokens.append(int(sampled.token_ids[s]))
            text.logprobs.append(sampled.logprobs.get(s))
    return sampler, texts


def draft(
    verifier, texts: Sequence[Text], depth: int, mask_of: MaskOf = no_mask, drafter=draft_logits_after, propose=None
):
    """int64 [S, depth] through `choose`; `propose(tokens) -> id or -1` brings tokens instead of logits."""
    slots, drafts = np.arange(len(texts)), np.full((len(texts), depth), -1)
    for number in range(depth):
        seen = [text.tokens + drafts[s, :number].tolist() for s, text in enumerate(texts)]
        masks = {s: mask for s, tokens in enumerate(seen) if (mask := mask_of(s, tokens)) is not None}
        positions = np.array([len(tokens) for tokens in seen])
        if propose is None:
            drafts[:, number] = verifier.choose(slots, positions, number, np.stack([drafter(t) for t in seen]), masks)
        else:
            proposed = np.array([propose(tokens) for tokens in seen])
            drafts[:, number] = verifier.choose(slots, positions, number, None, masks, proposed_S=proposed)
    return drafts


def verify(
    verifier,
    texts: Sequence[Text],
    drafts: np.ndarray,
    lengths: np.ndarray,
    mask_of: MaskOf = no_mask,
    target=logits_after,
):
    """Check the first `lengths` drafts of each sequence, and add what it got to the texts. Returns the Verified."""
    logits, masks = [], {}
    for s, text in enumerate(texts):
        seen = [text.tokens + drafts[s, :d].tolist() for d in range(lengths[s] + 1)]
        logits += [target(tokens) for tokens in seen]
        found = [mask_of(s, tokens) for tokens in seen]
        for d, mask in enumerate(found[:-1]):  # rows end where a draft is illegal
            if mask is not None and not (mask[drafts[s, d] // 32] >> (drafts[s, d] % 32)) & 1:
                found = found[: d + 1]
                break
        if found[0] is not None:
            masks[s] = np.stack(found)
    positions = np.array([len(text.tokens) for text in texts])
    row_starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    rows = VerifyRows(np.arange(len(texts)), positions, row_starts, drafts, masks)
    verified = verifier.verify(np.stack(logits), rows)
    ends = np.cumsum(verified.counts)
    for s, text in enumerate(texts):
        for e in range(ends[s] - verified.counts[s], ends[s]):
            text.tokens.append(int(verified.token_ids[e]))
            text.logprobs.append(verified.logprobs.get(e))
        text.failure = verified.failures.get(s)
    return verified


def num_usable(drafts: np.ndarray) -> np.ndarray:
    """int64 [S]: drafts before the first -1."""
    return np.cumprod(drafts >= 0, axis=1).sum(axis=1)


def same_logprobs(left: TokenLogprobs | None, right: TokenLogprobs | None) -> bool:
    """Bit for bit."""
    if left is None or right is None:
        return left is right
    return (
        left.rank == right.rank
        and np.array_equal(left.token_ids, right.token_ids)
        and left.logprobs.tobytes() == right.logprobs.tobytes()
    )


def history_of(sampler: Sampler, slot: int, position: int) -> tuple | None:
    """What a slot's penalties and bad words know before `position`, and how far its history reaches."""
    edits = sampler._params.edits[slot]
    if edits is None or edits.history is None:
        return None
    history = edits.history
    return history._length, history.before(position).tobytes(), history.answer_counts(position).tobytes()


def peaks(*tokens: int) -> np.ndarray:
    """Rows whose best tokens are these, nearly for certain at low temperatures; the next best is the token after it."""
    logits = np.zeros((len(tokens), V), np.float32)
    for row, token in enumerate(tokens):
        logits[row, token], logits[row, (token + 1) % V] = 9, 8
    return logits


def one_round(kind: type, params: SamplingParams, logits: np.ndarray, drafts: Sequence[int], masks=None) -> Verified:
    """Rows `logits` [1 + n, V] of one sequence whose answer begins; the drafts are proposed for certain."""
    requests = requests_for([params])
    verifier = kind(new_sampler(requests))
    for number, token in enumerate(drafts):
        verifier.choose(np.array([0]), np.array([3 + number]), number, None, {}, proposed_S=np.array([token]))
    rows = VerifyRows(
        np.array([0]), np.array([3]), np.array([0, len(logits)]), np.array([drafts], np.int64), masks or {}
    )
    return verifier.verify(logits, rows)
