"""Verification for drafters on the host: the device's sampler chooses the tokens, the host waits for them.

Under coupled verification their bits, and those of their log probabilities, are those of an engine that drafts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.engine.device_clock import DeviceClock
from deepinfer.interfaces import Verified, Verifier, VerifyRows

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.sampling.device_rows import DeviceSampler


class DeviceVerifier:
    """A Verifier of logits on the device; `coupled` remembers what is drafted. Under rejection sampling drafts are proposed for
    certain, never drawn."""

    def __init__(self, sampler: DeviceSampler, coupled: Verifier, clock: DeviceClock) -> None:
        self._sampler, self._coupled, self._clock = sampler, coupled, clock

    def verify(self, logits_TV: Tensor, rows: VerifyRows) -> Verified:
        launched = self._sampler.launch(logits_TV, rows)
        self._clock.mark().wait()
        return self._sampler.finish(launched)

    def choose(
        self,
        slots: np.ndarray,
        positions: np.ndarray,
        number: int,
        logits_SV: Any,
        masks: Mapping[int, np.ndarray],
        *,
        proposed_S: np.ndarray | None = None,
    ) -> np.ndarray:
        """See `interfaces.Verifier`."""
        return self._coupled.choose(slots, positions, number, logits_SV, masks, proposed_S=proposed_S)
