"""tokenizer.json, checked so far that the `tokenizers` library cannot fail on it: that one raises bare `Exception`.

What is known is a byte-level BPE: its vocabulary and merges, added tokens, Unicode normalizers, and pre-tokenizers that
split. Truncation, padding and the post-processor play no part in encoding "this text and nothing added", so they are left
out of what the library is given. Format: https://huggingface.co/docs/tokenizers.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import tokenizers
from msgspec import Meta, Struct

from deepinfer.sampling.split_pattern import why_unreadable

if TYPE_CHECKING:
    from pathlib import Path

TokenId = Annotated[int, Meta(ge=0, lt=2**22)]  # thirty times the released vocabulary; a table is made of them


class TokenizerError(ValueError):
    """A tokenizer.json that is missing, broken, or of a kind that is not read."""

    exit_code = 5  # like everything else that is wrong with a checkpoint

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(f"tokenizer {path}: {found}")


class Unicode(Struct, tag_field="type", tag="NFC"):
    """Normalization form C."""


class Compatible(Struct, tag_field="type", tag="NFKC"):
    """Normalization form KC."""


class Normalizers(Struct, tag_field="type", tag="Sequence"):
    normalizers: list[Unicode | Compatible]


class ByteLevel(Struct, tag_field="type", tag="ByteLevel"):
    add_prefix_space: bool
    trim_offsets: bool
    use_regex: bool = True


class Digits(Struct, tag_field="type", tag="Digits"):
    individual_digits: bool


class Pattern(Struct, omit_defaults=True):
    """Exactly one of the two."""

    regex: str | None = msgspec.field(name="Regex", default=None)
    string: str | None = msgspec.field(name="String", default=None)


class Split(Struct, tag_field="type", tag="Split"):
    pattern: Pattern
    behavior: Literal["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    invert: bool


class PreTokenizers(Struct, tag_field="type", tag="Sequence"):
    pretokenizers: list[ByteLevel | Digits | Split]


class Bpe(Struct, tag_field="type", tag="BPE"):
    vocab: dict[str, TokenId]
    merges: list[tuple[str, str] | str]
    dropout: Annotated[float, Meta(ge=0, le=1)] | None = None
    unk_token: str | None = None
    continuing_subword_prefix: Literal[""] | None = None
    end_of_word_suffix: Literal[""] | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


class Added(Struct):
    id: TokenId
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class Decoder(Struct):
    type: str


class TokenizerFile(Struct):
    """What is read of a tokenizer.json; other keys are not looked at."""

    model: Bpe
    decoder: Decoder | None = None
    version: Literal["1.0"] = "1.0"
    added_tokens: list[Added] = []
    normalizer: Unicode | Compatible | Normalizers | None = None
    pre_tokenizer: ByteLevel | Digits | Split | PreTokenizers | None = None


def load_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """The library's tokenizer of the file `path`. Raises TokenizerError, and nothing else."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TokenizerError(path, "it is not a regular file")
        text = path.read_bytes().decode("utf-8")
        kind = _decoder_kind(msgspec.json.decode(text))
        if kind != "ByteLevel":
            raise TokenizerError(path, f"its decoder is {kind}, but only byte-level BPE (ByteLevel) is read")
        file = msgspec.json.decode(text, type=TokenizerFile)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TokenizerError(path, "no such file; a checkpoint folder holds tokenizer.json") from error
    except OSError as error:
        raise TokenizerError(path, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(path, f"not UTF-8 at byte {error.start:,}") from error
    except msgspec.MsgspecError as error:
        raise TokenizerError(path, f"not a tokenizer.json of a byte-level BPE: {error}") from error
    except RecursionError:
        raise TokenizerError(path, "not a tokenizer.json: it is nested too deeply") from None
    if found := _inconsistency(file):
        raise TokenizerError(path, found)
    return tokenizers.Tokenizer.from_str(msgspec.json.encode(_for_library(file)).decode())


def _decoder_kind(raw: Any) -> Any:
    decoder = raw.get("decoder") if isinstance(raw, dict) else None
    return decoder.get("type") if isinstance(decoder, dict) else None


def _inconsistency(file: TokenizerFile) -> str:
    """What the library would stumble over in a file of the right shape; empty where there is nothing."""
    vocabulary = file.model.vocab
    if not vocabulary:
        return "its vocabulary is empty"
    for index, merge in enumerate(file.model.merges):
        pair = tuple(merge.split(" ")) if isinstance(merge, str) else merge
        if len(pair) != 2:
            return f"merge {index:,} does not name two tokens: {merge!r}"
        strange = [token for token in (*pair, "".join(pair)) if token not in vocabulary]
        if strange:
            return f"merge {index:,} makes or takes {strange[0]!r}, which is not in the vocabulary"
        file.model.merges[index] = (pair[0], pair[1])
    pre_tokenizer = file.pre_tokenizer
    steps = pre_tokenizer.pretokenizers if isinstance(pre_tokenizer, PreTokenizers) else [pre_tokenizer]
    for pattern in (step.pattern for step in steps if isinstance(step, Split)):
        if (pattern.regex is None) == (pattern.string is None):
            return "a pattern to split at is not exactly one of Regex and String"
        if pattern.regex is not None and (why := why_unreadable(pattern.regex)):
            return f"the pattern {pattern.regex!r} cannot be read: {why}"
    return ""


def _for_library(file: TokenizerFile) -> dict[str, Any]:
    decoder = ByteLevel(add_prefix_space=True, trim_offsets=True)
    return {
        "version": file.version,
        "truncation": None,
        "padding": None,
        "added_tokens": file.added_tokens,
        "normalizer": file.normalizer,
        "pre_tokenizer": file.pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": file.model,
    }
