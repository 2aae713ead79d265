"""Log probabilities of the prompt tokens that a step's rows predict. T rows of the step · D hidden · V vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deepinfer.interfaces import StepInput, TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.sampling.sampler import Sampler

PROMPT_ROWS = 128  # rows of logits held at once: 66 MB at a vocabulary of 129,280


def prompt_logprobs(
    step: StepInput,
    hidden_TD: Tensor,
    wanted: Mapping[int, int],
    logits: Callable[[Tensor], Tensor],
    sampler: Sampler,
) -> dict[int, list[TokenLogprobs]]:
    """Sequence of the step → its entries. `wanted`: slot → tokens of its prompt, where they are asked for."""
    found = {}
    for sequence, slot in enumerate(step.state_slots.tolist()):
        if slot not in wanted:
            continue
        start, end = int(step.row_starts[sequence]), int(step.row_starts[sequence + 1])
        targets = step.positions[start:end] + 1
        targets = targets[targets < wanted[slot]]
        rows: list[TokenLogprobs] = []
        for done in range(0, len(targets), PROMPT_ROWS):
            part = targets[done : done + PROMPT_ROWS]
            logits_RV = logits(hidden_TD[start + done : start + done + len(part)])
            rows += sampler.prompt_logprobs(slot, part, logits_RV)
        if rows:
            found[sequence] = rows
    return found
