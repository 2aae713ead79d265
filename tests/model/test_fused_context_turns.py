"""Ranks of one device that take turns: on a GPU too kernels give divided steps the bits of undivided ones."""

from __future__ import annotations

import threading
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
from chunk_worlds import ChunkWorlds
from fused_models import golden, pair
from test_decode_graphs import on_kernels
from thread_peers import Board, ThreadPeers, run_ranks

from deepinfer.model.fused.model import FusedModel
from deepinfer.parallel.context import ContextDivision

MODELS = ["twins", pytest.param("wide", marks=pytest.mark.gpu), pytest.param("trained", marks=pytest.mark.gpu)]


class Turns(Board):
    """Only one rank launches at a time: they share a stream, and with it the workspaces of kernels."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.turn = threading.Lock()

    def meet(self, rank: int, what: Any) -> list[Any]:
        self.turn.release()
        try:
            return super().meet(rank, what)
        finally:
            self.turn.acquire()


def model_of(name: str) -> FusedModel:
    return pair(golden, "bfloat16").fused.model if name == "twins" else on_kernels(name)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_divided_steps_are_the_undivided_ones_bit_for_bit(name: str, size: int) -> None:
    """Two prompts in chunks of odd lengths beside short pieces, longer than windows and lists, with snapshots."""
    model = model_of(name)
    length, chunk = (150, 50) if name == "twins" else (1900, 517)
    worlds = ChunkWorlds(model, num_slots=3, max_model_len=length, most_rows=length, seed=size)
    steps, done = [], 0
    while done < length - 1:
        end = min(done + chunk, length - 1)
        pieces = [(0, done, end), (1, done // 2, end // 2), (2, 3 * len(steps), 3 * len(steps) + 3)]
        upper = {"upper_from": [length // 3] * 3, "sample_rows": []}
        steps.append(worlds.input(*pieces, snapshots=[[0, end, len(steps) % 4]], **upper))
        done = end
    wanted = [forward(model, step, worlds.direct) for step in steps]
    turns = Turns(size)

    def rank(peers: ThreadPeers) -> int:
        mine, cache = copy(model), worlds.cache(0)
        mine.division = division = ContextDivision(ThreadPeers(turns, peers.rank), least_rows=30)
        with turns.turn:
            try:
                for step, parts in zip(steps, wanted, strict=True):
                    found = forward(mine, step, cache)
                    assert all(torch.equal(one, other) for one, other in zip(found, parts, strict=True))
            except BaseException:
                turns.barrier.abort()
                raise
        return sum(division.divide(step) is not None for step in steps)

    assert run_ranks(size, rank) == [len(steps)] * size


def forward(model: FusedModel, step: Any, cache: Any) -> tuple[torch.Tensor, ...]:
    """Hidden states and features, and all bytes of the caches behind the step."""
    hidden_TD, features_TF = model.forward_with_features(step, cache)
    slots = np.arange(3)
    return hidden_TD, features_TF, cache.blocks.clone(), cache.state[torch.from_numpy(slots)].clone()
