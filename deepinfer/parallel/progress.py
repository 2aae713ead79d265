"""How far a rank is with others in a step, exchange by exchange, as its host launches them."""

import torch

from deepinfer.model.fused.rehearsal import is_rehearsal


class Progress:
    """`done`: exchanges that are through as far as others go; `open`: one that they were told of, and need the rest of.

    Of what is said to nobody yet, because it is rehearsed or captured, nothing is noted.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self.done, self.open = 0, False

    def reset(self, done: int) -> None:
        self.done, self.open = done, False

    def begin(self) -> None:
        self.open = self._is_said

    def end(self) -> None:
        if self._is_said:
            self.done, self.open = self.done + 1, False

    @property
    def _is_said(self) -> bool:
        return not is_rehearsal() and not (self._on_cuda and torch.cuda.is_current_stream_capturing())
