"""The prefix cache at the library's door: who shares with whom, and what a result says of it."""

from typing import Any

import pytest
from toy_llm import make_llm

from deepinfer.api import LLM
from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer

PROMPT = [0, *range(60, 260)]  # one full block of 128, and some
TEXT = "It was a dark and stormy night. " * 5
CHAT = [{"role": "user", "content": TEXT}]
PARAMS = SamplingParams(temperature=0.0, max_tokens=3)


@pytest.fixture
def keeping(tokenizer: BpeTokenizer) -> LLM:
    return make_llm(tokenizer, keeps_prefixes=True, num_blocks=40)


def ask(llm: LLM, door: str, **options: Any) -> None:
    """One request through a door of the library."""
    if door == "generate":
        llm.generate(TEXT, PARAMS, **options)
    elif door == "chat":
        llm.chat(CHAT, PARAMS, **options)
    else:
        list(llm.stream(TEXT if door == "stream" else CHAT, PARAMS, **options))


@pytest.mark.parametrize("door", ["generate", "chat", "stream", "stream of a chat"])
def test_prefixes_are_shared_within_one_salt(keeping: LLM, door: str) -> None:
    hits = []
    for options in ({}, {}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}, {"cache_salt": ""}):
        ask(keeping, door, **options)
        hits.append(keeping.engine.stats().prefix.hits)
    assert hits == [0, 1, 1, 1, 2, 3]


def test_a_result_says_what_was_not_computed(keeping: LLM) -> None:
    (cold,), (warm,) = keeping.generate(PROMPT, PARAMS), keeping.generate(PROMPT, PARAMS)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 128 - 16)
    assert not cold.approximate and not warm.approximate and cold.token_ids == warm.token_ids
    assert keeping.keeps_prefixes


def test_a_salt_means_nothing_without_a_cache(llm: LLM) -> None:
    (out,) = llm.generate(PROMPT, PARAMS, cache_salt="a")
    assert out.error is None and out.cached_tokens == 0 and not llm.keeps_prefixes


@pytest.mark.parametrize("door", ["generate", "chat", "stream", "stream of a chat"])
@pytest.mark.parametrize("salt", [None, 5, b"a", "x" * 257, "\ud800"])
def test_what_is_no_salt_is_refused(llm: LLM, door: str, salt: Any) -> None:
    with pytest.raises(ValueError, match=r"cache_salt=.* is no text of at most 256 characters"):
        ask(llm, door, cache_salt=salt)
    assert llm.engine.stats().submitted == 0


def test_prompt_logprobs_that_bounded_replay_cannot_give_cost_their_request_alone(tokenizer: BpeTokenizer) -> None:
    llm = make_llm(tokenizer, replay="compact", replay_keep=20)
    asked = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=2)
    (alone,) = llm.generate(PROMPT, asked)
    wanted = (
        "prompt_logprobs=2 of a prompt of 201 tokens: with replay=compact the later layers see its last 20 only, and there "
        "is nothing to tell of the tokens before them; type prompt_logprobs=None, or replay=none"
    )
    assert alone.error == wanted and alone.finish_reason == "error"
    first, refused, short = llm.generate([PROMPT, PROMPT, PROMPT[:20]], [PARAMS, asked, asked])
    assert refused.error == wanted and first.error is None and len(first.token_ids) == 3
    assert short.error is None and short.prompt_logprobs is not None and len(short.prompt_logprobs) == 20
    assert llm.engine.stats().refused == 2
