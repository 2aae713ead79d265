"""Snapshots that are copied behind a pass serve as those that the host's way writes row by row."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decode_worlds import Worlds
from fused_models import golden, pair

from deepinfer.interfaces import StepInput
from deepinfer.model.fused.state_copies import restore_states, save_states

LENGTH, BLOCK = 120, 16  # of tokens


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_goes_on_from_a_snapshot_with_the_bits_that_it_had(seed: int) -> None:
    """Drafts cross the boundary, and some of them are taken back. The slot that is restored was full of NaN before."""
    model = pair(golden, "bfloat16").fused.model
    both = Worlds(model, num_slots=3, max_model_len=LENGTH, depth=5, seed=seed, num_snapshots=3)
    step, boundary = both.step(), 48
    both.admit(0, int(both.rng.integers(boundary - 9, boundary)), LENGTH)
    both.admit(1, 20, LENGTH)
    both.go_on(np.arange(2), np.ones(2, dtype=np.int64))
    slots, taken = np.array([1, 0]), 0
    while both.state.num_tokens[0] <= boundary:
        before = int(both.state.num_tokens[0]) - 1
        asked = np.array([[1, boundary, 2]])
        plan = both.plan(slots, 100)
        resolved = both.state.resolve(replace(plan, snapshots=asked)).step
        hidden_TD = model.forward(resolved, both.host)
        rows = step(plan)
        save_states(both.device, slots, asked)
        assert torch.equal(rows.hidden_TD[: len(hidden_TD)], hidden_TD)
        both.accept(slots, rows.checked_S[:2].numpy())
        taken += before <= boundary <= int(both.state.num_tokens[0]) - 1
    assert taken, "the boundary was reached"
    known = both.state.tokens_NL[0, both.state.pad :][: both.state.num_tokens[0] + 1].astype(np.int64)
    both.tables[2, : boundary // BLOCK] = both.tables[0, : boundary // BLOCK]
    found = []
    for end in (boundary + 1, len(known)):
        both.state.admit(2, known[:end], LENGTH)
        chunk = replace(
            both.plan(np.array([2]), reach=end), num_decode=0, chunk_starts=np.array([boundary]),
            chunk_rows=np.array([end - boundary]), chunk_tokens=known[boundary:end], chunk_sampled=np.ones(1, bool),
        )  # fmt: skip
        restores = np.array([[2, 2]])
        resolved = both.state.resolve(chunk).step
        for cache in (both.host, both.device):
            cache.fill_nan_slots([2])
        host_TD = model.forward(_with_restores(resolved, restores), both.host)
        restore_states(both.device, restores)
        device_TD = model.forward(resolved, both.device)
        assert host_TD.isfinite().all() and torch.equal(host_TD, device_TD)
        found.append(host_TD[0])
    assert torch.equal(found[0], found[1])


def test_nothing_else_is_written() -> None:
    model = pair(golden, "bfloat16").fused.model
    both = Worlds(model, num_slots=3, max_model_len=LENGTH, depth=5, seed=9, num_snapshots=3)
    both.admit(1, 40, LENGTH)
    before, first = both.device.state.clone(), both.device.num_slots
    save_states(both.device, np.array([1]), np.zeros((0, 3), dtype=np.int64))
    restore_states(both.device, np.zeros((0, 2), dtype=np.int64))
    assert torch.equal(both.device.state, before)
    save_states(both.device, np.array([2, 1]), np.array([[1, 32, 2], [0, 16, 0]]))
    before[first + 2], before[first] = before[1], before[2]
    assert torch.equal(both.device.state, before)
    restore_states(both.device, np.array([[0, 2]]))
    before[0] = before[1]
    assert torch.equal(both.device.state, before)


def _with_restores(step: StepInput, restores: np.ndarray) -> StepInput:
    return replace(step, restores=restores)
