"""The requests that a driver has handed out, and how much each leader has to do."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.engine.world.asked import Asked


class OpenRequests:
    """Unfinished answers by request id. The load of a prompt counts at its leader from `add` until its last answer has ended,
    whoever ended it, and once."""

    def __init__(self, leaders: Sequence[int]) -> None:
        self.load = dict.fromkeys(leaders, 0)  # leader → tokens of its unfinished prompts
        self._asked: dict[int, Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._asked

    def __getitem__(self, request_id: int) -> Asked:
        return self._asked[request_id]

    def least_loaded(self) -> int:
        """The leader with the least to do, the first of them."""
        return min(self.load, key=lambda leader: self.load[leader])

    def add(self, asked: Asked) -> None:
        """A prompt was handed to `asked.leader`."""
        self.load[asked.leader] += asked.load
        self._asked |= dict.fromkeys(asked.open, asked)

    def end(self, request_id: int) -> None:
        """An answer has ended."""
        asked = self._asked.pop(request_id)
        del asked.open[request_id]
        if not asked.open:
            self.load[asked.leader] -= asked.load

    def end_all(self) -> list[int]:
        """All have ended; their ids."""
        request_ids = list(self._asked)
        for request_id in request_ids:
            self.end(request_id)
        return request_ids

    def take_all(self) -> list[Asked]:
        """All unfinished prompts in order, none of which counts at a leader any more: they are to be handed out again."""
        prompts = list(dict.fromkeys(self._asked.values()))
        for asked in prompts:
            self.load[asked.leader] -= asked.load
        self._asked.clear()
        return prompts
