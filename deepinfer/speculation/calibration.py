"""From a drafter's raw confidence to the chance that a draft is accepted.

`draft_calibration.json` beside a checkpoint holds a scale and an offset per position of a block, for each way to verify and
each temperature it was measured at: a head that was trained at one temperature is biased at another, not only too sharp, so
no single scale repairs it. A request is served by the fit whose temperature is nearest, the lower of two that are equally near.
Nearest is linear in the temperature: 0 (greedy) is one of them and has no logarithm.

Shapes: S sequences · K positions of a block · F fits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

FILE = "draft_calibration.json"
FORMAT = 1
IDENTITY = "drafts are ranked by the drafter's own confidence, which may be off"
_Finite = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """chance of position k = sigmoid(scale[k] · logit + offset[k]), measured at one temperature."""

    verify: Literal["coupled", "rejection"]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)]
    scale: tuple[_Finite, ...]
    offset: tuple[_Finite, ...]


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds; fields that are not named here are for people."""

    format: int
    fits: tuple[Fit, ...]


class Calibration:
    """Fits of one way to verify; without any, logits go through the sigmoid as they are. `notice` says why, else is empty."""

    def __init__(self, fits: tuple[Fit, ...], block_size: int, notice: str = "") -> None:
        fits = tuple(sorted(fits, key=lambda fit: fit.temperature))
        self.notice = notice
        self.temperature_F = np.array([fit.temperature for fit in fits] or [1.0])
        self.scale_FK = np.array([fit.scale for fit in fits] or [(1.0,) * block_size])
        self.offset_FK = np.array([fit.offset for fit in fits] or [(0.0,) * block_size])

    def __call__(self, logits_SK: np.ndarray, temperature_S: np.ndarray) -> np.ndarray:
        """float32 [S, K] in [0, 1] of raw confidences, at most as many positions as were fitted. NaN becomes 0."""
        nearest_S = np.abs(temperature_S[:, None] - self.temperature_F).argmin(1)
        positions = logits_SK.shape[1]
        shifted = logits_SK * self.scale_FK[nearest_S, :positions] + self.offset_FK[nearest_S, :positions]
        with np.errstate(over="ignore"):
            chance_SK = 1.0 / (1.0 + np.exp(-shifted))
        return np.nan_to_num(chance_SK, nan=0.0).astype(np.float32)


def read_calibration(folder: Path | None, verify: str, block_size: int) -> Calibration:
    """The fits for `verify` ("coupled" or "rejection") in a checkpoint's folder; the identity, with a notice, where none are.

    Raises ValueError, naming file and field, for a file that is there and cannot be used.
    """
    path = None if folder is None else folder / FILE
    if path is None or not path.exists():
        where = "these weights have no" if folder is None else f"{folder} has no"
        return Calibration((), block_size, f"{where} {FILE}: {IDENTITY}")
    fits = tuple(fit for fit in _read(path, block_size).fits if fit.verify == verify)
    notice = "" if fits else f"{path} has no fit for speculation.verify={verify}: {IDENTITY}"
    return Calibration(fits, block_size, notice)


def _read(path: Path, block_size: int) -> CalibrationFile:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=CalibrationFile)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError names the field itself
        raise _damaged(path, str(error)) from error
    if found.format != FORMAT:
        raise _damaged(path, f"format {found.format} is not known, this version reads {FORMAT}: at `$.format`")
    for number, fit in enumerate(found.fits):
        for field in ("scale", "offset"):
            if (count := len(getattr(fit, field))) != block_size:
                have = f"{count} value{'s' * (count != 1)} for blocks of {block_size}"
                raise _damaged(path, f"{have}: at `$.fits[{number}].{field}`")
        same = [other.temperature == fit.temperature and other.verify == fit.verify for other in found.fits]
        if sum(same) > 1:
            why = f"temperature {fit.temperature:g} is there twice for {fit.verify}"
            raise _damaged(path, f"{why}: at `$.fits[{number}].temperature`")
    return found


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be used: {why}; write it anew, or remove it to go without calibration")
