"""Small copies from the host to a device, which nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer.interfaces import Drafts
from deepinfer.model.fused.glue import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.model.fused.sequences import DeviceSequences


def index_of(rows: np.ndarray, device: torch.device) -> Tensor:
    """Row numbers on the device; nothing waits."""
    host = torch.from_numpy(rows)
    return host if device.type != "cuda" else host.pin_memory().to(device, non_blocking=True)


def keep_on_device(sequences: DeviceSequences, slots: np.ndarray, made: Drafts) -> None:
    """Drafts that the host knows, for the next step of `slots` on the device; nothing waits."""
    bits = made.confidence.view(np.int32)
    sent = to_device({"slots": slots, "tokens": made.token_ids, "confidence": bits}, sequences.device)
    sequences.keep_drafts(sent["slots"], sent["tokens"], sent["confidence"].view(torch.float32))
