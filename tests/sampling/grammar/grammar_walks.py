"""A sampler without a model: answers drawn from random logits under the masks of a desk, with drafts and without."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.grammar.backend import Compiled, Vocabulary, is_legal
from deepinfer.sampling.grammar.desk import GrammarDesk

_IDS = itertools.count()


def legal_ids(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def allows(compiled: Compiled, text: str, vocabulary: Vocabulary) -> bool:
    """Whether a whole answer may be this text, each token of it legal by its mask."""
    matcher = compiled.matcher()
    for token in vocabulary.tokenizer.encode(text):
        legal = is_legal(matcher.mask(), token)
        assert legal == (matcher.accept([token]) is None), "the mask and the matcher differ"
        if not legal:
            return False
    return matcher.is_complete


class Writer:
    """Draws each token of an answer from noise of (seed, position), so that drafts cannot change it."""

    def __init__(self, desk: GrammarDesk, vocabulary: Vocabulary) -> None:
        self.desk = desk
        self.vocabulary = vocabulary
        self.accepted = self.rejected = 0

    def attach(self, params: SamplingParams, slot: int = 0) -> None:
        """Compile and attach. Raises ParamsError or ValueError with the desk's reason."""
        request_id = next(_IDS)
        self.desk.prepare(params)
        self.desk.start(request_id, params)
        found: list[Any] = []
        while not found:
            self.desk.wait(1.0)
            found = self.desk.ready()
        assert found[0][0] == request_id
        if found[0][1] is not None:
            raise ValueError(found[0][1])
        request = Request(request_id=request_id, prompt_ids=np.array([0]), params=params, seed=0)
        self.desk.attach(slot, request)

    def write(
        self, params: SamplingParams, seed: int, *, drafts: int = 0, slot: int = 0, bias: dict[int, float] | None = None
    ) -> tuple[list[int], bool]:
        """(tokens, whether the answer ended by itself). A draft is the answer's own token, or noise, by the seed."""
        self.attach(params, slot)
        tokens: list[int] = []
        while len(tokens) < params.max_tokens:
            proposals = self._proposals(tokens, seed, drafts, bias, slot)
            rows = self.desk.masks(slot, np.array(proposals, dtype=np.int64))
            new: list[int] = []
            for number, mask in enumerate(rows):
                new.append(self._draw(mask, seed, len(tokens) + number, bias))
                if number == len(proposals) or new[-1] != proposals[number] or new[-1] == 1:
                    break
            self.accepted += len(new) - 1
            self.rejected += drafts - len(new) + 1
            assert self.desk.advance(slot, new) is None
            tokens += new
            if tokens[-1] == 1:
                self.desk.detach(slot)
                return tokens, True
        self.desk.detach(slot)
        return tokens[: params.max_tokens], False

    def text(self, tokens: list[int]) -> str:
        return self.vocabulary.tokenizer.decode([token for token in tokens if token != 1], skip_special_tokens=False)

    def _proposals(
        self, tokens: list[int], seed: int, drafts: int, bias: dict[int, float] | None, slot: int
    ) -> list[int]:
        """Drafts under the grammar (lookahead), some of them replaced by noise."""
        rng = np.random.default_rng((seed, len(tokens), 7))
        found: list[int] = []
        for _ in range(drafts):
            mask = self.desk.lookahead(slot, found)
            if mask is None or not mask.any() or rng.random() < 0.15:
                found.append(int(rng.integers(self.vocabulary.num_tokens)))
            else:
                found.append(self._draw(mask, seed, len(tokens) + len(found), bias))
        return found

    def _draw(self, mask: np.ndarray, seed: int, position: int, bias: dict[int, float] | None) -> int:
        noise = np.random.default_rng((seed, position)).gumbel(size=self.vocabulary.vocab_size)
        for token, value in (bias or {}).items():
            noise[token] += value
        legal = legal_ids(mask)
        assert len(legal), "nothing is legal"
        return int(legal[np.argmax(noise[legal])])
