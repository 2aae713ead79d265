"""Rejected drafts are overwritten: whatever was rejected where, all that later rows may see is that of a clean prefill."""

import pytest
import torch
from small_models import Engine, differing, golden_model, random_tokens

from deepinfer.ops import native, reference

DEPTH = 5
FIRST = 90
RING_SLOTS = 22  # window 16 and 6 more: every alignment occurs, and block (16 tokens) and pair borders with them
SETTINGS = [
    (native, "full", "float32"),
    pytest.param((reference, "none", "float64"), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=SETTINGS, ids=["native-full-float32", "reference-none-float64"])
def engine(request: pytest.FixtureRequest) -> Engine:
    ops, numerics, dtype = request.param
    return golden_model().engine(ops(), numerics, dtype, backtrack=DEPTH + 1)


def test_state_after_every_rejection_point_is_that_of_a_clean_prefill(engine: Engine) -> None:
    """Slot k always accepts k drafts. The next round begins one token later: it takes back what slot k had accepted."""
    last = FIRST + RING_SLOTS
    tokens = random_tokens(golden_model().config, last + DEPTH + 2, 41)
    wrong = random_tokens(golden_model().config, len(tokens), 42)
    clean, rows, states = 7, {}, {}
    engine.run(tokens[:FIRST], [], slot=clean)
    for p in range(FIRST, len(tokens)):
        rows[p] = engine.step((tokens, p, p + 1, clean))
        states[p + 1] = engine.visible(clean, p + 1)
    for slot in range(DEPTH + 1):
        engine.run(tokens[:FIRST], [50], slot=slot)
    for newest in range(FIRST, last):
        pieces = []
        for accepted in range(DEPTH + 1):
            guess = tokens[: newest + 1 + accepted] + wrong[newest + 1 + accepted :]
            pieces.append((guess, newest, newest + 1 + DEPTH, accepted))
        hidden = engine.step(*pieces)
        for accepted in range(DEPTH + 1):
            end = newest + 1 + accepted
            mine = hidden[accepted * (DEPTH + 1) :][: accepted + 1]
            assert torch.equal(mine, torch.cat([rows[p] for p in range(newest, end)])), (newest, accepted)
            assert differing(engine.visible(accepted, end), states[end]) == [], (newest, accepted)
    whole = engine.run(tokens[:last], [], slot=6)
    assert torch.equal(whole[FIRST:], torch.cat([rows[p] for p in range(FIRST, last)]))
    assert differing(engine.visible(6, last), states[last]) == [], "token by token is a clean prefill"


def test_one_more_draft_than_there_is_room_for_is_noticed() -> None:
    """The comparison above can fail: with too short a ring a rejected draft destroys a key that is still needed."""
    engine = golden_model().engine(native(), "full", "float32", backtrack=2)
    tokens = random_tokens(golden_model().config, 120, 43)
    wrong = random_tokens(golden_model().config, 120, 44)
    for slot in (0, 1):
        engine.run(tokens[:100], [], slot=slot)
    engine.step((tokens[:101] + wrong[101:], 100, 106, 0))
    engine.step((tokens, 100, 101, 1))
    assert differing(engine.visible(0, 101), engine.visible(1, 101))
