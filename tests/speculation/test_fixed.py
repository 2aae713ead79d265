"""The same length for every sequence."""

import numpy as np
import pytest

from deepinfer.speculation.allocation import allocate
from deepinfer.speculation.back_off import BackOff
from deepinfer.speculation.fixed import FixedLengths


@pytest.mark.parametrize("chance", [0.0, 1.0, np.nan])
def test_every_sequence_has_as_many_checked(chance: float) -> None:
    fixed = FixedLengths(3)
    budget, draft = fixed.budget(np.full((7, 5), chance, np.float32), 64)
    assert (budget, draft) == (21, True)
    confidence, drafted = np.random.default_rng(0).random((7, 5), dtype=np.float32), np.array([5, 5, 0, 2, 5, 3, 4])
    lengths = allocate(confidence, np.minimum(drafted, fixed.most_each), budget)
    np.testing.assert_array_equal(lengths, [3, 3, 0, 2, 3, 3, 3])


def test_nothing_is_checked_or_drafted_while_it_does_not_pay() -> None:
    back_off = BackOff(lambda sequences: 1.0, window=10)
    fixed = FixedLengths(2, back_off)
    for _ in range(10):
        assert fixed.budget(np.ones((1, 2), np.float32), 0) == (2, True)
        fixed.observe(num_sequences=1, num_rows=3, num_tokens=1, drafted=True, device_s=2.0)
    assert fixed.budget(np.ones((1, 2), np.float32), 0) == (0, False) and back_off.acceptance == 0.0


def test_prompt_rows_are_no_drafts_where_they_are_told_apart() -> None:
    back_off = BackOff(lambda sequences: 1.0, window=1)
    FixedLengths(2, back_off).observe(
        num_sequences=1, num_rows=103, num_tokens=1, num_checked=2, drafted=True, device_s=9.0
    )
    assert back_off.drafting, "a step with prompt rows is no sign"
