"""The rows of decode steps by the kernel: number for number the twin's, drafts written and all."""

import numpy as np
import pytest
import torch
from deepinfer.kernels.triton_decode_rows import decode_rows
from row_cases import DEVICES

from deepinfer.ops import decode_rows as twin
from deepinfer.ops.decode_rows import HEADER, DecodeShape, SequenceTensors

SLOTS, LENGTH, DEPTH, BLOCK = 12, 96, 4, 16
CONFIDENCES = np.array([0.0, 0.5, 0.5, 0.9, 1.0, 1.5, -1.0, np.nan], dtype=np.float32)


def shape_of(rows: int, sequences: int, blocks: int, drafts: bool, ratios: tuple[int, ...] = (1, 2)) -> DecodeShape:
    return DecodeShape(
        rows=rows, sequences=sequences, blocks=blocks, drafts=drafts, verify_length=3, pad=2, ngram=3, window=20,
        ring_slots=25, tail_slots=5, block_tokens=BLOCK, ratios=ratios,
    )  # fmt: skip


def some_sequences(rng: np.random.Generator, device: str) -> SequenceTensors:
    """All slots hold something; the last is the padding slot."""
    tokens = rng.integers(0, 999, (SLOTS + 1, 2 + LENGTH + DEPTH + 1))
    tokens[:, :2] = -1
    num_tokens, ends = rng.integers(1, LENGTH, SLOTS + 1), np.full(SLOTS + 1, LENGTH)
    ends[:4] = num_tokens[:4] + np.arange(4)  # at the end, and close to it
    drafts, confidence = rng.integers(0, 999, (SLOTS + 1, DEPTH)), rng.choice(CONFIDENCES, (SLOTS + 1, DEPTH))
    drafts[rng.random(drafts.shape) < 0.1] = -1
    num_tokens[-1], ends[-1], drafts[-1] = 1, 2, -1
    numbers = [torch.from_numpy(x).to(device, torch.int32) for x in (tokens, num_tokens, ends, drafts)]
    return SequenceTensors(*numbers, torch.from_numpy(confidence).to(device))


def some_plan(rng: np.random.Generator, live: int, budget: int, shape: DecodeShape, device: str) -> torch.Tensor:
    count, columns = shape.sequences + 1, LENGTH // BLOCK
    of_sequences = np.zeros((4, count), dtype=np.int64)
    of_sequences[0] = SLOTS
    of_sequences[0, :live] = rng.permutation(SLOTS)[:live]
    of_sequences[1:, :live] = rng.integers(0, 40, (3, live)) // 2 * 2
    tables = rng.permutation(1000)[: live * columns]
    plan = np.concatenate(([live, budget, columns, 0], of_sequences.ravel(), tables, rng.integers(0, 99, 7)))
    return torch.from_numpy(plan).to(device, torch.int32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("live", "shape", "budget"),
    [
        (5, shape_of(5, 5, 6, drafts=False), 0),
        (1, shape_of(7, 4, 8, drafts=False), 0),
        (0, shape_of(2, 2, 6, drafts=True), 0),
        (6, shape_of(24, 6, 6, drafts=True), 18),
        (11, shape_of(20, 12, 8, drafts=True), 9),
        (12, shape_of(19, 12, 6, drafts=True), 7),
        (3, shape_of(6, 3, 6, drafts=True, ratios=(1,)), 2),
        (3, shape_of(6, 3, 6, drafts=True, ratios=(2,)), 1),
    ],
)
def test_numbers_are_the_twins(live: int, shape: DecodeShape, budget: int, device: str) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        plan_X, mine = some_plan(rng, live, budget, shape, device), some_sequences(rng, device)
        other = SequenceTensors(*(x.clone() for x in mine))
        ropes = [torch.from_numpy(rng.random((LENGTH, 2, 6), dtype=np.float32)).to(device) for _ in range(2)]
        found, wanted = decode_rows(plan_X, mine, *ropes, shape), twin.decode_rows(plan_X, other, *ropes, shape)
        for name, one, two in zip(found._fields, found, wanted):
            if name == "entries":
                pairs = [(f"{ratio}", a, b) for ratio in shape.ratios for a, b in zip(one[ratio], two[ratio])]
            else:
                pairs = [(name, one, two)]
            for what, a, b in pairs:
                assert (a is None) == (b is None), what
                assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), (what, a, b)
        assert torch.equal(mine.tokens_NL, other.tokens_NL)
        assert int(found.checked_S.sum()) <= budget and int(found.row_starts_S1[-1]) == live + int(
            found.checked_S.sum()
        )


def test_a_plan_begins_with_its_header() -> None:
    shape = shape_of(2, 2, 6, drafts=False)
    found = twin.decode_rows(
        some_plan(np.random.default_rng(0), 2, 0, shape, "cpu"), some_sequences(np.random.default_rng(0), "cpu"),
        torch.zeros(LENGTH, 2, 3), torch.zeros(LENGTH, 2, 3), shape,
    )  # fmt: skip
    assert HEADER == 4 and found.slots_S.tolist()[-1] == SLOTS and (found.tables_SB[-1] == -1).all()
    assert (found.tables_SB[:2] >= 0).all()
