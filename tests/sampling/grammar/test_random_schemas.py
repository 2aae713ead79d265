"""Answers from noise under random schemas: what ends by itself validates, and nearly all of it ends; drafts change nothing."""

import json
import random

import jsonschema
import pytest
from grammar_walks import Writer
from random_schemas import schema

from deepinfer.interfaces import SamplingParams
from deepinfer.structured import JsonSchema

NUM_PAIRS = 2000
PAIRS_IN_SAMPLE = 60
MAX_TOKENS = 400


def test_answers_under_random_schemas_validate(writer: Writer, full: bool, sample_seed: int) -> None:
    seeds = range(NUM_PAIRS) if full else random.Random(sample_seed).sample(range(NUM_PAIRS), PAIRS_IN_SAMPLE)
    closing = [writer.vocabulary.tokenizer.encode(sign)[0] for sign in ',}]"']
    likely = dict.fromkeys((1, *closing), 4.0)  # noise alone ends no number and no text
    ended = 0
    for seed in seeds:
        wanted = schema(random.Random(seed))
        params = SamplingParams(grammar=JsonSchema(wanted), max_tokens=MAX_TOKENS)
        tokens, by_itself = writer.write(params, seed, bias=likely)
        drafted = writer.write(params, seed, drafts=4, bias=likely)
        assert drafted == (tokens, by_itself), f"drafts changed the answer of pair {seed}: {wanted}"
        if by_itself:
            ended += 1
            value = json.loads(writer.text(tokens))
            jsonschema.validate(value, wanted, cls=jsonschema.Draft202012Validator)
    print(f"{ended} of {len(seeds)} ended by themselves; {writer.accepted} drafts accepted, {writer.rejected} not")
    assert writer.accepted > 0 and writer.rejected > 0
    assert ended >= 0.99 * len(seeds) - 1  # of a sample, one more may be among the few


def test_a_planted_wrong_mask_is_caught(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: were one more token legal, the matcher and the answer would disagree."""
    params = SamplingParams(grammar=JsonSchema({"type": "integer"}), max_tokens=8)
    letter = writer.vocabulary.tokenizer.encode("q")[0]
    whole = writer.desk.masks

    def with_a_letter(slot, drafts):
        rows = whole(slot, drafts)
        rows[:, letter >> 5] |= 1 << (letter & 31)
        return rows

    monkeypatch.setattr(writer.desk, "masks", with_a_letter)
    with pytest.raises(AssertionError):
        writer.write(params, 3, bias={letter: 1e9})
