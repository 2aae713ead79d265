"""Engram constants: the released primes and multipliers, and the golden tokenizer's classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from deepinfer.arch.config import parse_config
from deepinfer.arch.engram import engram_multipliers, engram_tables, token_classes

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"


def test_multipliers_of_the_release() -> None:
    assert engram_multipliers(1, 99092, 4) == (76632096046245, 4839876093313, 35959672319349, 73987337458391)
    assert engram_multipliers(14, 99092, 4) == (67716810739261, 51510806800915, 30921347202721, 82619226485591)


def test_table_rows_equal_the_config(tiny_a: dict[str, Any]) -> None:
    config = parse_config(tiny_a)
    tables = engram_tables(config)
    assert tuple(table.num_rows for table in tables) == config.engram_num_embeddings
    primes = [prime for table in tables for prime in table.primes]
    assert len(set(primes)) == len(primes)


def test_classes_of_the_golden_tokenizer(tiny_a: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(GOLDEN / "tiny_a" / "tokenizer.json"))
    classes = token_classes(2048, lambda i: tokenizer.decode([i], skip_special_tokens=False), tokenizer.id_to_token)
    trace = np.load(GOLDEN / "trace_a.npz")
    assert np.array_equal(classes, trace["token_class"])
    assert classes.max() + 1 == parse_config(tiny_a).engram_compressed_vocab_size


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("Ä", "a", True),  # case and combining marks
        ("\n", " ", True),  # a lone white space run is one space
        ("\t\t", "   ", True),
        ("ﬁ", "fi", True),  # compatibility forms
        (" word", "word", True),  # surrounding white space
        ("a b", "a  b", True),
        ("a", "b", False),
        ("1", "2", False),
    ],
)
def test_what_shares_a_class(left: str, right: str, same: bool) -> None:
    texts = [left, right]
    classes = token_classes(2, texts.__getitem__, texts.__getitem__)
    assert bool(classes[0] == classes[1]) is same


def test_broken_bytes_use_the_raw_piece() -> None:
    classes = token_classes(2, ["\ufffd", "\ufffd"].__getitem__, ["Ã", "Ä"].__getitem__)
    assert classes[0] != classes[1]
