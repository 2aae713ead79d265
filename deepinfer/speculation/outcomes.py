"""Tokens of verified sequences as they are found, row by row, and the result they make up. R sequences · E tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer.interfaces import TokenLogprobs, Verified

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer.interfaces import VerifyRows
    from deepinfer.speculation.row_sampler import Sampled


class Outcomes:
    """Collects what `rows` give; row d of a sequence is asked for only where its first d drafts were accepted."""

    def __init__(self, rows: VerifyRows) -> None:
        self.rows = rows
        self.num_drafts_R = np.diff(rows.row_starts) - 1
        self._num_rows_R = self.num_drafts_R + 1
        for r, masks in rows.masks.items():
            assert len(masks), f"sequence {r} has a grammar and no mask for its first row"
            self._num_rows_R[r] = min(self._num_rows_R[r], len(masks))
        num_sequences = len(rows.slots)
        self._tokens_RD = np.full((num_sequences, int(self._num_rows_R.max(initial=1))), -1)
        self._counts_R = np.zeros(num_sequences, np.int64)
        self._failures: dict[int, str] = {}
        self._logprobs: list[tuple[int, int, TokenLogprobs]] = []  # (r, depth, …)

    def depths(self) -> Iterator[tuple[int, np.ndarray]]:
        """(d, the sequences whose row d is next), until no sequence goes on."""
        going = np.arange(len(self.rows.slots))
        for depth in range(self._tokens_RD.shape[1]):
            going = going[(self._counts_R[going] == depth) & (self._num_rows_R[going] > depth)]
            going = going[self._accepted(going, depth)]
            if not len(going):
                return
            yield depth, going

    def _accepted(self, going: np.ndarray, depth: int) -> np.ndarray:
        """bool: whether the token before row `depth` is the draft that the row was computed for."""
        if depth == 0:
            return np.ones(len(going), bool)
        return self._tokens_RD[going, depth - 1] == self.rows.drafts[going, depth - 1]

    def places(self, going: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of logits, slots and positions of row `depth` of these sequences."""
        rows = self.rows
        return rows.row_starts[going] + depth, rows.slots[going], rows.positions[going] + depth

    def masks(self, going: np.ndarray, depth: int) -> dict[int, np.ndarray]:
        """Index into `going` → mask of its row `depth`."""
        if not self.rows.masks:
            return {}
        return {i: self.rows.masks[r][depth] for i, r in enumerate(going.tolist()) if r in self.rows.masks}

    def add(self, going: np.ndarray, depth: int, sampled: Sampled) -> None:
        """Row `depth` of these sequences gave these tokens."""
        fine = ~sampled.failed
        self._tokens_RD[going[fine], depth] = sampled.token_ids[fine]
        self._counts_R[going[fine]] = depth + 1
        for i, why in sampled.failures.items():
            self._failures[int(going[i])] = why
        self._logprobs += [(int(going[i]), depth, one) for i, one in sampled.logprobs.items()]

    def verified(self) -> Verified:
        """All of it, sequence after sequence."""
        starts_R = np.cumsum(self._counts_R) - self._counts_R
        depths_D = np.arange(self._tokens_RD.shape[1])
        failed_R = np.zeros(len(self._counts_R), bool)
        failed_R[list(self._failures)] = True
        return Verified(
            token_ids=self._tokens_RD[depths_D < self._counts_R[:, None]],
            counts=self._counts_R,
            failed=failed_R,
            failures=dict(sorted(self._failures.items())),
            logprobs={int(starts_R[r]) + depth: one for r, depth, one in sorted(self._logprobs, key=lambda x: x[:2])},
        )
