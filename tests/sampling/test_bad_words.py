"""Bad words against the rule as it reads: no token may complete a word."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling import slot_params
from deepinfer.sampling.bad_words import BadWords, TokenBytes
from deepinfer.sampling.params import ParamsError
from deepinfer.sampling.sampler import Sampler

PIECES = st.binary(max_size=14).map(lambda data: bytes(b"ab"[byte % 2] for byte in data))
WORDS = st.text("ab", min_size=1, max_size=12)


@settings(max_examples=300)
@given(
    st.lists(PIECES, min_size=1, max_size=12),
    st.lists(WORDS, min_size=1, max_size=4),
    st.lists(st.integers(0, 11), max_size=5),
)
def test_banned_are_exactly_the_tokens_that_complete_a_word(
    vocabulary: list[bytes], words: list[str], choices: list[int]
) -> None:
    answer = [choice % len(vocabulary) for choice in choices]
    text = b"".join(vocabulary[token] for token in answer)
    expected = {
        token
        for token, piece in enumerate(vocabulary)
        for word in (word.encode() for word in words)
        if any(
            (text + piece)[start:].startswith(word)
            for start in range(max(0, len(text) - len(word) + 1), len(text + piece))
        )
    }
    banned = BadWords(words, TokenBytes(vocabulary)).banned(np.array(answer, np.int64))
    assert set(banned.tolist()) == expected


@given(st.lists(PIECES, max_size=12), st.lists(WORDS, min_size=1, max_size=6))
def test_holding_is_what_in_says(vocabulary: list[bytes], words: list[str]) -> None:
    parts = [word.encode() for word in words]
    expected = [token for token, piece in enumerate(vocabulary) if any(part in piece for part in parts)]
    assert TokenBytes(vocabulary).holding(parts).tolist() == expected


def test_word_lists_are_built_once_shared_and_only_so_many_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    real = slot_params.BadWords
    monkeypatch.setattr(slot_params, "BadWords", lambda *args: built.append(args[0]) or real(*args))
    sampler = Sampler(3, 2, token_bytes=[b"ca", b"t", b"s"])
    params = [SamplingParams(bad_words=(f"word {i}",)) for i in range(70)]
    for slot in (0, 1):
        sampler.prepare(params[0])
        sampler.admit(slot, Request(slot, np.array([0]), params[0], 3))
    assert built == [("word 0",)]
    for one in params:
        sampler.prepare(one)
    assert len(built) == 70 and len(sampler._params._bad_words) == 64
    sampler.admit(0, Request(0, np.array([0]), params[0], 3))
    assert len(built) == 71


def test_bad_words_without_the_bytes_of_tokens_are_refused_when_prepared() -> None:
    with pytest.raises(ParamsError, match=r"tokenizer\.json"):
        Sampler(3, 1).prepare(SamplingParams(bad_words=("a",)))
