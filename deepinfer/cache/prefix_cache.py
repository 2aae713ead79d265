"""The prefix cache: what a new sequence may share with earlier ones, and what it leaves behind for later ones.

Whole blocks are shared. Compressed keys lie in the blocks; the window keys of a sequence lie in its own rings, so a hit also
needs a snapshot of those (`on_hit=snapshot`), or computes the newest cached tokens again (`exact`, `bounded`): cache.replay.

n blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepinfer.cache.cached_blocks import CachedBlocks
from deepinfer.cache.cached_sequence import CachedSequence, Hit
from deepinfer.cache.prefix_diagnosis import NO_BUDGET, NO_SNAPSHOT, SHORTER, MissDiagnosis
from deepinfer.cache.prefix_index import PrefixIndex
from deepinfer.cache.replay import Replay
from deepinfer.cache.snapshots import SnapshotPool
from deepinfer.cache.token_chain import TokenChain, approximate, chain_root


@dataclass(slots=True)
class PrefixCounts:
    """Running totals. Tokens are those of admitted sequences; `saved_tokens` were not computed."""

    queries: int = 0
    hits: int = 0
    query_tokens: int = 0
    saved_tokens: int = 0
    duplicate_blocks: int = 0  # computed although another sequence had entered them meanwhile
    lost_snapshots: int = 0  # wanted, with no room for them


class PrefixCache:
    """Owns the blocks, the index over them and the snapshots. Sequences are known by their request id."""

    def __init__(
        self,
        *,
        num_blocks: int,
        num_snapshots: int,
        block_tokens: int,
        snapshot_every: int,
        replay: Replay,
        numerics_digest: str,
        more_snapshots: str = "",
        on_evicted: Callable[[np.ndarray], None] = lambda blocks: None,
    ) -> None:
        """`snapshot_every`: blocks of a prompt between two snapshots. `more_snapshots` is what a user would type to have more
        of them. `on_evicted(blocks)` hears of blocks that serve nobody
        any more, before they have a new owner."""
        self.block_tokens, self.replay = block_tokens, replay
        self.blocks = CachedBlocks(num_blocks, on_evicted=self._evicted)
        self.index = PrefixIndex(num_blocks)
        self.snapshots = SnapshotPool(num_snapshots if replay.on_hit == "snapshot" else 0, num_blocks)
        self.counts = PrefixCounts()
        self.diagnosis = MissDiagnosis(block_tokens)
        self._more_snapshots = f": type {more_snapshots}" if more_snapshots else ""
        self._snapshot_every, self._numerics_digest = snapshot_every, numerics_digest
        self.on_evicted = on_evicted
        self._sequences: dict[int, CachedSequence] = {}

    def match(self, request_id: int, tokens: np.ndarray, salt: str, *, num_prompt: int, usable: bool = True) -> Hit:
        """What is cached of `tokens` [all that are known of the sequence, `num_prompt` of them its prompt].

        At least the last token is left to compute. `usable` False: the sequence computes everything, because somebody wants to
        see its rows (prompt log probabilities).
        """
        sequence = self._sequences.get(request_id)
        if sequence is None:
            sequence = CachedSequence(TokenChain(chain_root(self._numerics_digest, salt), self.block_tokens))
            self._sequences[request_id] = sequence
        sequence.chain.extend(tokens)
        length = num_prompt if self.replay.keep_tokens else len(tokens)  # bounded replay begins in the prompt, for good
        limit = self.replay.longest_hit(length) if usable else 0
        found = self._find(sequence.chain.digests[: limit // self.block_tokens])
        count, snapshot = len(found), None
        if self.replay.on_hit == "snapshot":
            count, snapshot = self.snapshots.deepest(found)
        floors = self.replay.floors(length, count * self.block_tokens)
        return Hit(found[:count], floors, snapshot, len(found), limit)

    def enter(self, request_id: int, tokens: np.ndarray, salt: str, hit: Hit, *, resumed: bool = False) -> None:
        """The sequence takes what it was found to share: its blocks have one more owner, its snapshot stays until `unpin`."""
        sequence = self._sequences[request_id]
        self.blocks.share(hit.blocks)
        if hit.snapshot is not None:
            self.snapshots.pin(hit.snapshot)
        sequence.start(hit, len(tokens), self._snapshot_every if self.snapshots.size else 0)
        if not resumed:
            sequence.cached_tokens = hit.floors.start
            self._count(tokens, salt, hit)

    def leave(self, request_id: int) -> None:
        """The sequence has ended; what it entered stays."""
        self._sequences.pop(request_id, None)

    def use_of(self, request_id: int) -> CachedSequence:
        """What a sequence got so far."""
        return self._sequences[request_id]

    def advance(self, request_id: int, tokens: np.ndarray, num_computed: int, blocks: np.ndarray) -> None:
        """The first `num_computed` of a sequence's tokens are in its `blocks` for good: enter what is full."""
        sequence = self._sequences[request_id]
        first, end = sequence.num_entered, num_computed // self.block_tokens
        if end <= first:
            return
        sequence.chain.extend(tokens[: end * self.block_tokens])
        mine = np.ascontiguousarray(blocks[first:end])
        holders = self.index.insert(sequence.names(first, end), mine)
        taken = mine[holders == mine]
        self.blocks.mark_cached(taken)
        sequence.own_blocks += taken.tolist()
        sequence.num_entered = end
        self.counts.duplicate_blocks += len(mine) - len(taken)

    def forget(self, request_id: int) -> None:
        """The sequence has failed: nothing that it computed shall reach another one."""
        sequence = self._sequences[request_id]
        own = np.array(sequence.own_blocks, dtype=np.int64)
        sequence.own_blocks = []
        self.index.remove(own)
        self.snapshots.forget(own)
        self.blocks.unmark(own)

    def reserve(self, request_id: int, first: int, end: int) -> list[tuple[int, int]]:
        """(boundary, snapshot) of those that a chunk of positions `first` … `end` - 1 shall write."""
        sequence, found = self._sequences[request_id], []
        while sequence.due and sequence.due[0] <= end:
            boundary = sequence.due.pop(0)
            if boundary > first and (snapshot := self._reserve(sequence, boundary)) is not None:
                found.append((boundary, snapshot))
        return found

    def reserve_decoding(self, request_id: int, boundary: int) -> int | None:
        """The snapshot for a boundary that a running answer may cross in a step; None where there is no room. The one of its
        boundary before gives way first."""
        sequence = self._sequences[request_id]
        if sequence.newest is not None:
            self.snapshots.demote(*sequence.newest)
        return self._reserve(sequence, boundary)

    def settle(self, request_id: int | None, boundary: int, snapshot: int, *, decoding: bool) -> None:
        """A reserved snapshot was written, and the sequence (after `advance`) is past the boundary; None: it was not."""
        block = None if request_id is None else self._holder(self._sequences[request_id], boundary)
        if request_id is None or block is None or self.snapshots.of(block) is not None:
            self.snapshots.drop(snapshot)
            return
        self.snapshots.keep(snapshot, block)
        if decoding:
            self._sequences[request_id].newest = (snapshot, block)

    def unpin(self, snapshots: np.ndarray) -> None:
        """Restores from these are through."""
        for snapshot in snapshots.tolist():
            self.snapshots.unpin(snapshot)

    def take_notice(self) -> str | None:
        """What a user should know by now, once."""
        return self.diagnosis.take_notice()

    def _find(self, digests_n4: np.ndarray) -> np.ndarray:
        """Cached blocks of the first digests; under `bounded` also those whose contents are approximate."""
        found = self.index.find(digests_n4)
        if self.replay.on_hit != "bounded":
            return found
        runs, count, exact_was_last = [found], len(found), True
        while count < len(digests_n4):
            rest = digests_n4[count:]
            run = self.index.find(approximate(rest) if exact_was_last else rest)
            if not len(run):
                break
            runs.append(run)
            count, exact_was_last = count + len(run), not exact_was_last
        return np.concatenate(runs)

    def _reserve(self, sequence: CachedSequence, boundary: int) -> int | None:
        if not self.snapshots.size:
            return None
        number = boundary // self.block_tokens
        if number <= sequence.chain.num_blocks:
            block = self._holder(sequence, boundary)
            if block is not None and self.snapshots.of(block) is not None:
                return None
        snapshot = self.snapshots.reserve()
        self.counts.lost_snapshots += snapshot is None
        return snapshot

    def _holder(self, sequence: CachedSequence, boundary: int) -> int | None:
        """The block that is cached for the tokens before `boundary`."""
        number = boundary // self.block_tokens
        found = self.index.find(sequence.names(number - 1, number))
        return int(found[0]) if len(found) else None

    def _evicted(self, blocks: np.ndarray) -> None:
        self.index.remove(blocks)
        self.snapshots.forget(blocks)
        self.on_evicted(blocks)

    def _count(self, tokens: np.ndarray, salt: str, hit: Hit) -> None:
        counts, saved = self.counts, hit.floors.start
        counts.queries += 1
        counts.query_tokens += len(tokens)
        counts.saved_tokens += saved
        if saved:
            counts.hits += 1
            self.diagnosis.hit()
            return
        cause = ""
        if hit.limit < self.block_tokens:
            cause = self._why_limited(len(tokens), hit.limit)
        elif hit.num_matched:
            cause = (NO_SNAPSHOT if self.snapshots.size else NO_BUDGET) + self._more_snapshots
            if self.replay.on_hit != "snapshot":
                cause = f"replay.on_hit={self.replay.on_hit} computes all that was cached again"
        self.diagnosis.miss(
            tokens, salt, num_matched=hit.num_matched, cause=cause, evictions=self.blocks.num_evicted > 0
        )

    def _why_limited(self, num_tokens: int, limit: int) -> str:
        if num_tokens <= self.block_tokens:
            return SHORTER
        if self.replay.keep_tokens and limit:
            return f"replay.keep_tokens={self.replay.keep_tokens} leaves less than a block to share"
        return "prompt log probabilities were asked for" if not limit else SHORTER
