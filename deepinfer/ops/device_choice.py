"""Which fused operations a model gets on a Hopper GPU: the fast kernel of each where it takes the model's widths, else a
general one of any width. The rules are in arch/kernel_widths.py. Importing this module needs no triton.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.arch import kernel_widths
from deepinfer.arch.kernel_widths import BLOCK_TOKENS, CHOICES, lacks, reasons
from deepinfer.ops.arguments import checked

if TYPE_CHECKING:
    from deepinfer.arch.config import V41Config
    from deepinfer.ops.device import DeviceOps


def device_ops(
    config: V41Config, dtype: torch.dtype, *, block_tokens: int = BLOCK_TOKENS
) -> tuple[DeviceOps, tuple[str, ...]]:
    """The operations, and one sentence for each group of them that is general.

    Raises ValueError where no kernel takes the model: another dtype than bfloat16, or widths that no tile has.
    """
    problems = refusals(config, dtype, block_tokens=block_tokens)
    if problems:
        raise ValueError("; ".join(problems) + ". Type kernels=reference for the operations of torch")
    from deepinfer.ops.hopper import hopper

    general = [choice for choice in CHOICES if lacks(choice, config, block_tokens)]
    if not general:
        return hopper(), ()
    from deepinfer.ops.general import general_ops

    have = general_ops()
    asked: dict[str, Any] = {name: checked(name, have[name]) for choice in general for name in choice.operations}
    return replace(hopper(), name="hopper and general", **asked), reasons(config, block_tokens=block_tokens)


def refusals(config: V41Config, dtype: torch.dtype, *, block_tokens: int = BLOCK_TOKENS) -> list[str]:
    """What neither a fast nor a general kernel takes, one sentence each."""
    problems = kernel_widths.refusals(config, block_tokens=block_tokens)
    if dtype == torch.bfloat16:
        return problems
    name = str(dtype).removeprefix("torch.")
    return [f"model.dtype={name}: kernels take bfloat16, type model.dtype=bfloat16", *problems]
