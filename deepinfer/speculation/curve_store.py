"""Cost curves on disk: one JSON file per key, replaced whole, and nothing else in the folder touched."""

import contextlib
import hashlib
import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deepinfer.speculation.cost_curve import CostCurve

MARK = b'{"deepinfer_cost_curve": 1,'  # a file of ours begins so, whatever has become of the rest of it
MAX_BYTES = 10_000_000
TABLES = ("rows", "forward_s", "sequences", "plain_s", "drafting_s")
MOST_ROWS = 2**31 - 1
LEAST_S, MOST_S = 1e-9, 1e5  # what a forward pass takes on any machine
DAY_S = 86_400.0
FOREIGN = "what lies there is not a cost curve of deepinfer"


class _Found(NamedTuple):
    curve: CostCurve | None
    notice: str
    is_free: bool = True  # a new curve may be written there


class CurveStore:
    """The curve of one key in `folder`, believed for `max_age_s`.

    `key` is everything that a measured time depends on and JSON can hold: digests of plan and ranks, device, versions of torch,
    deepinfer and Python, the sizes. A curve stored under another key is never read. `now_s` is for tests: seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        key: Mapping[str, Any],
        *,
        max_age_s: float = 30 * DAY_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.key: dict[str, Any] = json.loads(json.dumps(dict(key), sort_keys=True))
        name = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:24]
        self.path = Path(folder) / f"cost_curve_{name}.json"
        self.max_age_s, self.now_s = max_age_s, now_s

    def curve(self, measure: Callable[[], CostCurve]) -> tuple[CostCurve, str]:
        """The stored curve, else a measured one, which is then stored; and what the user should know of it, once, or ""."""
        found = self._look()
        if found.curve is not None:
            return found.curve, found.notice
        measured = measure()
        failed = self.save(measured) if found.is_free else ""
        return measured, failed or found.notice

    def load(self) -> tuple[CostCurve | None, str]:
        """The stored curve or None, and a sentence where a file is there that cannot be used ("" where it is only too old)."""
        found = self._look()
        return found.curve, found.notice

    def _look(self) -> _Found:
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # to open a pipe waits for its other end
                return _Found(None, self._left_alone(FOREIGN), is_free=False)
            with self.path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return _Found(None, "")
        except OSError as error:
            return _Found(None, self._left_alone(error.strerror or str(error)), is_free=False)
        if text and not text.startswith(MARK):  # an empty one is a curve that a full disk cut off
            return _Found(None, self._left_alone(FOREIGN), is_free=False)
        try:
            curve, measured_at_s = self._read(text)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            why = "it is empty" if not text else str(error)
            notice = f"the stored cost curve {self.path} is damaged ({why:.200}); it is measured anew and replaced"
            return _Found(None, notice)
        return _Found(curve if 0 <= self.now_s() - measured_at_s < self.max_age_s else None, "")

    def save(self, curve: CostCurve) -> str:
        """Store `curve` in place of what was stored under this key; a sentence where that is not possible, else ""."""
        tables = {name: getattr(curve, name).tolist() for name in TABLES}
        whole = {"key": self.key, "measured_at_s": self.now_s(), "padded": curve.padded, **tables}
        text = MARK + json.dumps(whole).encode()[1:]
        try:
            if self._is_foreign():
                return self._left_alone(FOREIGN)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, text)
        except OSError as error:
            return not_stored(f"in {self.path.parent}: {error.strerror or error}")
        return ""

    def _is_foreign(self) -> bool:
        if not os.path.lexists(self.path):
            return False
        if self.path.is_symlink() or not self.path.is_file():
            return True
        with self.path.open("rb") as file:
            return file.read(len(MARK)) not in (b"", MARK)

    def _read(self, text: bytes) -> tuple[CostCurve, float]:
        """Raises ValueError, KeyError or TypeError with what is wrong."""
        if len(text) > MAX_BYTES:
            raise ValueError("longer than any curve")
        data = json.loads(text)
        if data["key"] != self.key:
            raise ValueError("it is of another key")
        tables = {name: _numbers(name, data[name]) for name in TABLES}
        for sizes, *times in (("rows", "forward_s"), ("sequences", "plain_s", "drafting_s")):
            if (np.diff(tables[sizes]) < 1).any() or any(tables[name].size != tables[sizes].size for name in times):
                raise ValueError(f"its {sizes} do not rise or lack times")
        measured_at_s, padded = data["measured_at_s"], data["padded"]
        if not _is_number(measured_at_s) or not math.isfinite(measured_at_s) or not isinstance(padded, bool):
            raise ValueError("when it was measured, or padded, is no such value")
        return CostCurve(**tables, padded=padded), float(measured_at_s)

    def _left_alone(self, why: str) -> str:
        return (
            f"the cost curve of steps cannot be kept in {self.path}: {why}; that is left alone and the curve measured at every "
            "start; move it away to have it kept"
        )


def not_stored(why: str) -> str:
    """The sentence for a curve that no later start will find."""
    return f"the cost curve of steps cannot be stored {why}; it is measured at every start"


def _numbers(name: str, values: Any) -> np.ndarray:
    """A table as int64 sizes or float64 seconds. Raises ValueError where JSON holds anything else."""
    are_sizes, least = name in ("rows", "sequences"), LEAST_S if name == "forward_s" else 0.0
    kind = "sizes" if are_sizes else "seconds"
    if not isinstance(values, list) or not values or not all(_is_number(value) for value in values):
        raise ValueError(f"{name} is not a list of {kind}")
    if are_sizes and not all(isinstance(value, int) and 1 <= value <= MOST_ROWS for value in values):
        raise ValueError(f"{name} holds what is no size")
    if not are_sizes and not all(least <= value <= MOST_S for value in values):  # NaN is in no range
        raise ValueError(f"{name} holds what no step takes")
    return np.array(values, dtype=np.int64 if are_sizes else np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _replace(path: Path, text: bytes) -> None:
    """Write a file so that a reader sees all of the old one or all of the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
