from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.sampling.tokenizer import BpeTokenizer


def test_round_trip_and_special_tokens(tokenizer: BpeTokenizer) -> None:
    for text in ("the cat", "naïve 你好 🙂", "", "a\n\t b", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.encode("<｜begin▁of▁sentence｜>cat<think>")
    assert ids[0] == 0 and tokenizer.is_special(0) and tokenizer.token_id("<think>") == ids[-1]
    assert tokenizer.decode(ids) == "cat<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<｜begin▁of▁sentence｜>cat<think>"


@given(st.lists(st.integers(0, 319), max_size=12), st.booleans())
def test_decode_is_the_librarys(tokenizer: BpeTokenizer, ids: list[int], skip: bool) -> None:
    theirs = tokenizers.Tokenizer.from_file(str(tokenizer.path))
    ids = [i for i in ids if i < tokenizer.vocab_size]
    assert tokenizer.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_unknown_ids_and_padding_have_no_bytes(tokenizer: BpeTokenizer) -> None:
    assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(10**6) == b""
    table = tokenizer.text_bytes(512)
    assert len(table) == 512 and table[0] == table[511] == b"" and table[tokenizer.encode("c")[0]] == b"c"
    singles = {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= singles


@pytest.mark.parametrize("content", [None, "{", "[]", '{"decoder": {"type": "Metaspace"}}', '{"decoder": null}'])
def test_what_is_no_byte_level_tokenizer_is_refused_by_path(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=str(path)):
        BpeTokenizer(path)


@given(st.text(max_size=40))
def test_encode_is_the_librarys(tokenizer: BpeTokenizer, text: str) -> None:
    theirs = tokenizers.Tokenizer.from_file(str(tokenizer.path))
    text = text.encode("utf-8", "ignore").decode()
    for each in (text, f"<think>{text}<｜begin▁of▁sentence｜>"):
        assert tokenizer.encode(each) == theirs.encode(each, add_special_tokens=False).ids


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: BpeTokenizer) -> None:
    class Encoding:
        ids = [7]

    class Library:
        """`encode` of the real one holds the GIL, `encode_batch` does not."""

        def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[Encoding]:
            assert texts == ["a"] and not add_special_tokens
            return [Encoding()]

    one = object.__new__(BpeTokenizer)
    one._tokenizer = Library()
    assert one.encode("a") == [7]
