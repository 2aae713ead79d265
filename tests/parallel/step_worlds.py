"""Random steps of a few sequences, as a scheduler might make them: chunks beside decoding rows, replay, snapshots, hits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from small_models import Engine, make_step

from deepinfer.interfaces import StepInput

LENGTHS = (1, 1, 2, 3, 4, 9, 33, 70)


class StepWorld:
    """Sequence s has slot s. A sequence starts over from a snapshot, or behind a rebuilt window, as after a prefix hit."""

    def __init__(self, seed: int, engine: Engine, *, num_sequences: int = 4, length: int = 190, replay: bool) -> None:
        self._rng, self._engine, self._length = np.random.default_rng(seed), engine, length
        config = engine.model.config
        self._window, self._snapshots = config.sliding_window, engine.cache.num_snapshots
        self._tokens = [self._rng.integers(3, config.vocab_size - 100, length).tolist() for _ in range(num_sequences)]
        self._done = [0] * num_sequences
        self._floor = [0] * num_sequences  # window_from
        self._write = [0] * num_sequences
        self._upper = [int(self._rng.integers(0, 150)) if replay else 0 for _ in range(num_sequences)]
        self._kept: dict[int, tuple[int, int]] = {}  # snapshot → sequence and position

    def step(self) -> StepInput:
        rng = self._rng
        several = sorted(rng.choice(len(self._done), rng.integers(1, len(self._done) + 1), replace=False).tolist())
        restores = [found for s in several if (found := self._start_over(s)) is not None]
        ends = {s: min(self._done[s] + int(rng.choice(LENGTHS)), self._length) for s in several}
        snapshots = self._snapshots_of(several, ends, {number for _, number in restores})
        pieces = [(self._tokens[s], self._done[s], ends[s], s, self._engine.table(s)) for s in several]
        step = replace(
            make_step(pieces),
            sample_rows=np.zeros(0, dtype=np.int64),
            window_from=np.array([self._floor[s] for s in several]),
            upper_from=np.array([max(self._upper[s], self._floor[s]) for s in several]),
            write_from=np.array([self._write[s] for s in several]),
            restores=np.array(restores, dtype=np.int64).reshape(-1, 2),
            snapshots=np.array(snapshots, dtype=np.int64).reshape(-1, 3),
        )
        for s in several:
            self._done[s] = ends[s]
        return step

    def _start_over(self, s: int) -> tuple[int, int] | None:
        """Where a sequence is at its end, or rarely before: [slot, snapshot] of a restore, or None where it computes."""
        if self._done[s] < self._length and self._rng.random() > 0.15:
            return None
        mine = [(number, at) for number, (owner, at) in self._kept.items() if owner == s and at < self._length]
        self._write[s] = 0
        if mine:
            number, self._done[s] = mine[self._rng.integers(len(mine))]
            return s, number
        hit = self._done[s] // 2 * 2  # whole entries up to here are in its blocks
        self._done[s] = self._floor[s] = max(0, min(hit, self._length - 1) - self._window - 3)
        self._write[s] = hit if hit < self._length else 0
        return None

    def _snapshots_of(self, several: list[int], ends: dict[int, int], in_use: set[int]) -> list[list[int]]:
        found, free = [], [n for n in range(self._snapshots) if n not in in_use]
        for number, s in zip(self._rng.permutation(free).tolist(), several):
            if self._rng.random() < 0.6:
                at = int(self._rng.integers(self._done[s], ends[s] + 1))
                if at >= self._write[s]:
                    found.append([several.index(s), at, number])
                    self._kept[number] = (s, at)
        return found
