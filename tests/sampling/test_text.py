"""Text as it streams: no half characters, stop strings over any borders, and always the text of the whole."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.detokenize import Detokenizer
from deepinfer.sampling.stop import StopStrings
from deepinfer.sampling.text_stream import TextStream
from deepinfer.sampling.tokenizer import BpeTokenizer


def byte_ids(tokenizer: BpeTokenizer, data: bytes) -> list[int]:
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)}
    return [single[bytes([byte])] for byte in data]


def stream(tokenizer: BpeTokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def test_a_character_in_four_tokens_comes_whole(tokenizer: BpeTokenizer) -> None:
    assert stream(tokenizer, byte_ids(tokenizer, "B 🙂".encode())) == ["B", " ", "", "", "", "🙂", ""]


def test_bad_bytes_become_replacement_characters_as_soon_as_they_are_sure(tokenizer: BpeTokenizer) -> None:
    assert stream(tokenizer, byte_ids(tokenizer, b"a\xe5\xa5d\xff")) == ["a", "", "", "\ufffdd", "\ufffd", ""]
    assert stream(tokenizer, byte_ids(tokenizer, b"a\xe5\xa5")) == ["a", "", "", "\ufffd"]


def test_a_special_token_inside_a_character_changes_nothing(tokenizer: BpeTokenizer) -> None:
    first, *rest = byte_ids(tokenizer, "é".encode())
    assert "".join(stream(tokenizer, [first, 1, *rest])) == "é"


@given(st.lists(st.integers(0, 318), max_size=20))
def test_pieces_join_to_the_whole_text(tokenizer: BpeTokenizer, ids: list[int]) -> None:
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@given(st.text(max_size=8), st.data())
def test_valid_text_never_shows_a_replacement_character(
    tokenizer: BpeTokenizer, text: str, data: st.DataObject
) -> None:
    pieces = stream(tokenizer, byte_ids(tokenizer, text.encode()))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def whole_text(text: str, stops: list[str], include: bool = False) -> tuple[str, bool]:
    """The rule as it reads: the match that ends first, the longest of those."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], True
    return text, False


def in_pieces(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, bool]:
    filter_ = StopStrings(stops, include=include)
    out = ""
    for piece in pieces:
        text, stopped = filter_.push(piece)
        out += text
        if stopped:
            return out, True
    return out + filter_.flush(), False


def test_every_way_to_cut_a_text() -> None:
    cases = [("xab\nHuman:y", ["\nHuman:"]), ("aabaab", ["aab", "b"]), ("abcab", ["bcd", "ca"]), ("aaaa", ["aaa"])]
    for text, stops in cases:
        for cuts in itertools.product([False, True], repeat=len(text) - 1):
            pieces, start = [], 0
            for i, cut in enumerate(cuts, start=1):
                if cut:
                    pieces.append(text[start:i])
                    start = i
            pieces.append(text[start:])
            for include in (False, True):
                assert in_pieces(pieces, stops, include) == whole_text(text, stops, include)


@settings(max_examples=400)
@given(
    st.lists(st.text("abc", max_size=4), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
def test_pieces_give_the_result_of_the_whole(pieces: list[str], stops: list[str], include: bool) -> None:
    assert in_pieces(pieces, stops, include) == whole_text("".join(pieces), stops, include)


@given(st.lists(st.text("abc", max_size=3), max_size=8), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_only_what_may_still_become_a_stop_is_held_back(pieces: list[str], stops: list[str]) -> None:
    filter_ = StopStrings(stops)
    text = sent = ""
    for piece in pieces:
        text += piece
        new, stopped = filter_.push(piece)
        sent += new
        if stopped:
            return
        held = text[len(sent) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        assert not any(stop in sent for stop in stops)


def test_a_stop_string_over_token_borders_keeps_its_tokens_and_loses_its_text(tokenizer: BpeTokenizer) -> None:
    ids = byte_ids(tokenizer, b"hi\nHuman: more")
    text = TextStream(tokenizer, SamplingParams(stop=("\nHuman:",)))
    assert text.push(ids[:5]) == ("hi", 5)
    assert text.push(ids[5:]) == ("", 4) and text.stopped  # "man:" completes it; " more" is not taken
    assert text.finish() == "" and text.num_tokens == 9
    included = TextStream(tokenizer, SamplingParams(stop=("\nHuman:",), include_stop_str=True))
    assert included.push(ids) == ("hi\nHuman:", 9)


def test_held_text_comes_at_the_end(tokenizer: BpeTokenizer) -> None:
    text = TextStream(tokenizer, SamplingParams(stop=("</end>",)))
    ids = byte_ids(tokenizer, b"a </en")
    assert text.push([*ids, 1], ends_with_stop_token=True) == ("a ", 7)
    assert text.finish() == "</en" and not text.stopped


def test_the_ending_token_is_text_only_where_asked(tokenizer: BpeTokenizer) -> None:
    ids = byte_ids(tokenizer, b"ab")
    assert TextStream(tokenizer, SamplingParams()).push(ids, ends_with_stop_token=True) == ("a", 2)
    assert TextStream(tokenizer, SamplingParams()).push(ids) == ("ab", 2)
    included = TextStream(tokenizer, SamplingParams(include_stop_str=True))
    assert included.push(ids, ends_with_stop_token=True) == ("ab", 2)


def test_special_tokens_are_kept_where_asked(tokenizer: BpeTokenizer) -> None:
    ids = [*byte_ids(tokenizer, b"a"), 2]
    assert TextStream(tokenizer, SamplingParams()).push(ids)[0] == "a"
    assert TextStream(tokenizer, SamplingParams(skip_special_tokens=False)).push(ids)[0] == "a<｜▁pad▁｜>"


def test_stop_strings_wait_for_min_tokens(tokenizer: BpeTokenizer) -> None:
    ids = byte_ids(tokenizer, b"xabab ")
    text = TextStream(tokenizer, SamplingParams(stop=("ab",), min_tokens=4))
    assert text.push(ids) == ("xab", 5) and text.stopped
    exact = TextStream(tokenizer, SamplingParams(stop=("ab",), min_tokens=3))
    assert exact.push(ids) == ("x", 3)
