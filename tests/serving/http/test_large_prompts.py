"""A text that cannot fit is refused before it is taken apart: that takes seconds for megabytes."""

from __future__ import annotations

import pytest

TEXT = "7" * 2_000_000


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/completions", {"prompt": TEXT}),
        ("/v1/completions", {"prompt": ["hi", TEXT]}),
        ("/v1/completions", {"prompt": TEXT, "add_special_tokens": False}),
        ("/tokenize", {"prompt": TEXT}),
        ("/tokenize", {"prompt": TEXT, "add_special_tokens": False}),
    ],
)
def test_what_cannot_fit_is_not_tokenised(server, monkeypatch, path, body):
    tokenizer, encode = server.service.tokenizer, server.service.tokenizer.encode

    def short(text):
        assert len(text) < 1000, "a text that cannot fit was taken apart"
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode", short)
    reply = server.post(path, body)
    assert reply.status_code == 400 and "at least" in reply.json()["error"]["message"]


def test_no_text_has_fewer_tokens_than_its_size_allows(server):
    tokenizer = server.service.tokenizer
    for text in ("", "x", "What is 1 + 1?", " " * 300, "é" * 50, "<｜Assistant｜>" * 9, "the " * 100):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.fewest_tokens(TEXT) > 4096
