"""Broken tokenizer.json files: one clear sentence and the exit code of weights for each, never the library's own error."""

import copy
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from deepinfer.sampling.split_pattern import why_unreadable
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.sampling.tokenizer_file import TokenizerError

Json = dict[str, Any]
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@pytest.fixture
def whole(tokenizer: BpeTokenizer) -> Json:
    """A good file, to be spoiled."""
    return json.loads(tokenizer.path.read_text("utf-8"))  # type: ignore[no-any-return]


def put(value: object, *keys: str) -> Callable[[Json], None]:
    """Spoils a file: `value` at a path of keys."""

    def spoil(file: Json) -> None:
        for key in keys[:-1]:
            file = file[key]
        file[keys[-1]] = value

    return spoil


def split_at(pattern: object) -> Callable[[Json], None]:
    return put({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}, "pre_tokenizer")


SPOILED: list[tuple[str, Callable[[Json], None], str]] = [
    ("null vocabulary", put(None, "model", "vocab"), "$.model.vocab"),
    ("list for a vocabulary", put(["a"], "model", "vocab"), "$.model.vocab"),
    ("empty vocabulary", put({}, "model", "vocab"), "its vocabulary is empty"),
    ("ids of texts", put({"a": "0"}, "model", "vocab"), "$.model.vocab[...]"),
    ("negative id", put({"a": -1}, "model", "vocab"), "$.model.vocab[...]"),
    ("enormous id", put({"a": 2**32 - 1}, "model", "vocab"), "$.model.vocab[...]"),
    ("fractional id", put({"a": 0.5}, "model", "vocab"), "$.model.vocab[...]"),
    ("null merges", put(None, "model", "merges"), "$.model.merges"),
    ("a merge of a number", put([5], "model", "merges"), "$.model.merges[0]"),
    ("a merge of one", put(["a"], "model", "merges"), "merge 0 does not name two tokens: 'a'"),
    ("a merge of three", put([["a", "b", "c"]], "model", "merges"), "$.model.merges[0]"),
    ("a merge of strangers", put([["a", "好"]], "model", "merges"), "'好', which is not in the vocabulary"),
    ("a merge into a stranger", put(["~ ~"], "model", "merges"), "'~~', which is not in the vocabulary"),
    ("a subword prefix", put("##", "model", "continuing_subword_prefix"), "$.model.continuing_subword_prefix"),
    ("much dropout", put(2.0, "model", "dropout"), "$.model.dropout"),
    ("another model", put("WordPiece", "model", "type"), "$.model.type"),
    ("no model", put(None, "model"), "$.model"),
    ("added token of a number", put([5], "added_tokens"), "$.added_tokens[0]"),
    ("added tokens of a map", put({}, "added_tokens"), "$.added_tokens"),
    ("half an added token", put([{"id": 0, "content": "x"}], "added_tokens"), "`single_word`"),
    ("added id of a text", put([{"id": "0", "content": "x"} | ADDED], "added_tokens"), "$.added_tokens[0].id"),
    ("added null", put([{"id": 0, "content": None} | ADDED], "added_tokens"), "$.added_tokens[0].content"),
    ("another version", put("2.0", "version"), "$.version"),
    ("unknown normalizer", put({"type": "Nope"}, "normalizer"), "$.normalizer"),
    ("unknown pre-tokenizer", put({"type": "Nope"}, "pre_tokenizer"), "$.pre_tokenizer"),
    ("half a pre-tokenizer", put({"type": "ByteLevel"}, "pre_tokenizer"), "`add_prefix_space`"),
    ("broken pattern", split_at({"Regex": "(a"}), "the pattern '(a' cannot be read: "),
    ("unknown property", split_at({"Regex": r"\p{Nope}"}), r"the pattern '\\p{Nope}' cannot be read: "),
    ("no pattern", split_at({}), "not exactly one of Regex and String"),
    ("two patterns", split_at({"Regex": "a", "String": "a"}), "not exactly one of Regex and String"),
]


def refuse(path: Path) -> str:
    with pytest.raises(TokenizerError) as refused:
        BpeTokenizer(path)
    assert refused.value.exit_code == 5
    assert isinstance(refused.value, ValueError)
    message = str(refused.value)
    assert message.startswith(f"tokenizer {path}: ")
    return message


@pytest.mark.parametrize(("spoil", "sentence"), [row[1:] for row in SPOILED], ids=[row[0] for row in SPOILED])
def test_spoiled_file(tmp_path: Path, whole: Json, spoil: Callable[[Json], None], sentence: str) -> None:
    spoil(whole)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(whole))
    assert sentence in refuse(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[" * 5000, "not a tokenizer.json"),
        (b'{"decoder":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b"\xff{}", "not UTF-8 at byte 0"),
        (b"", "not a tokenizer.json"),
        (b'{"decoder": {"type": "ByteLevel"}}', "`model`"),
        (b'{"decoder": {"type": "ByteLevel"}, "model": "\\ud800"}', "not a tokenizer.json"),
    ],
)
def test_what_is_no_tokenizer_at_all(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    assert sentence in refuse(path)


def test_paths_that_cannot_be_opened(tmp_path: Path) -> None:
    assert "no such file" in refuse(tmp_path / "tokenizer.json")
    assert "it is not a regular file" in refuse(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # reading it would never end
    assert "it is not a regular file" in refuse(tmp_path / "pipe")
    assert "cannot be read: File name too long" in refuse(tmp_path / ("a" * 5000))


KEYS = ["model", "vocab", "merges", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "version", "truncation"]


def test_whatever_is_exchanged_the_library_never_fails(tmp_path: Path, whole: Json) -> None:
    """Every value of the file, here and there, against values of every other type: taken, or refused in our words."""
    path = tmp_path / "tokenizer.json"
    others: list[Any] = [None, True, -1, 0.5, 2**40, "", "x", [], [1], [[]], {}, {"type": "x"}, {"a": None}]
    places = [[key] for key in KEYS] + [["model", key] for key in whole["model"]]
    places += [["added_tokens", 0, key] for key in whole["added_tokens"][0]]
    places += [["pre_tokenizer", key] for key in whole["pre_tokenizer"]]
    taken = refused = 0
    for place in places:
        for other in others:
            file = copy.deepcopy(whole)
            inner: Any = file
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = other
            path.write_text(json.dumps(file))
            try:
                BpeTokenizer(path)
                taken += 1
            except TokenizerError:
                refused += 1
    assert taken > 10 and refused > 100


RELEASED = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?|\p{N}{1,3}",
    "[一-龥\\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
]


@pytest.mark.parametrize("pattern", RELEASED)
def test_patterns_of_released_tokenizers_are_read(pattern: str) -> None:
    assert why_unreadable(pattern) == ""


ATOMS = [
    *r"a b - ^ [ ] ( ) (?: (?=a) (?!\S) (?=[b-z]) (?> (?i: (?<= (?P<n> {2} {1,3} {3,1} {0,} { } * + ? | . $".split(),
    *r"\ \p{L} \P{N} \p{^L} \s \n \u0041 \ud800 \- \] \b \1 \x z , 1 & && # ä [:alpha:] [^".split(),
    *" \n\0",
]


def test_patterns_that_are_taken_are_read_by_the_library() -> None:
    chosen = random.Random(7)
    patterns = {"".join(chosen.choices(ATOMS, k=chosen.randint(1, 9))) for _ in range(20_000)}
    taken = [pattern for pattern in sorted(patterns) if not why_unreadable(pattern)]
    assert 1000 < len(taken) < len(patterns) - 1000
    for pattern in taken:
        tokenizers.Regex(pattern)
