"""Loads by step, summed over ranks."""

import numpy as np
import pytest
import torch
from thread_peers import ThreadPeers, run_ranks

from deepinfer.parallel.eplb.loads import LoadWindow

LAYERS, EXPERTS = 2, 5


def picks(rank: int, step: int, layer: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + 10 * step + layer)
    return torch.randint(EXPERTS, ((rank + step) % 4, 3), generator=generator)  # of no row, sometimes


def counted(ranks: int, step: int) -> np.ndarray:
    rows = [[picks(rank, step, layer).flatten().numpy() for rank in range(ranks)] for layer in range(LAYERS)]
    return np.array([np.bincount(np.concatenate(row), minlength=EXPERTS) for row in rows])


@pytest.mark.parametrize("steps", [0, 2, 4, 7])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_window_has_the_newest_steps_of_all_ranks_oldest_first(ranks: int, steps: int) -> None:
    def rank(peers: ThreadPeers) -> np.ndarray:
        window = LoadWindow(4, LAYERS, EXPERTS)
        for step in range(steps):
            for layer in range(LAYERS):
                window.count(layer, picks(peers.rank, step, layer))
            window.end_step()
        return window.gathered(peers)

    expected = np.array([counted(ranks, step) for step in range(max(0, steps - 4), steps)], np.int64)
    for found in run_ranks(ranks, rank):
        assert np.array_equal(found, expected.reshape(-1, LAYERS, EXPERTS)) and found.dtype == np.int64


def test_kept_loads_are_the_oldest_of_a_window() -> None:
    kept = np.arange(6 * LAYERS * EXPERTS).reshape(6, LAYERS, EXPERTS)

    def rank(peers: ThreadPeers) -> np.ndarray:
        window = LoadWindow(4, LAYERS, EXPERTS)
        window.fill(kept if peers.rank == 0 else np.zeros_like(kept))
        window.count(1, torch.tensor([[2, 3]]))
        window.end_step()
        return window.gathered(peers)

    found = run_ranks(2, rank)[1]
    assert np.array_equal(found[:3], kept[3:]) and found[3].tolist() == [[0] * 5, [0, 0, 2, 2, 0]]
