"""Cost curves on disk: one JSON file per key, replaced whole, and nothing else in the folder touched."""

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.speculation.cost_curve import CostCurve

MARK = b'{"deepinfer_cost_curve": 1,'  # a file of ours begins so, whatever has become of the rest of it
MAX_BYTES = 10_000_000
TABLES = ("rows", "forward_s", "sequences", "plain_s", "drafting_s")
DAY_S = 86_400.0
FOREIGN = "what lies there is not a cost curve of deepinfer"


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
        found, notice = self.load()
        if found is not None:
            return found, notice
        measured = measure()
        return measured, "; ".join(dict.fromkeys(filter(None, (notice, self.save(measured)))))

    def load(self) -> tuple[CostCurve | None, str]:
        """The stored curve or None, and a sentence where a file is there that cannot be used ("" where it is only too old)."""
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            return None, self._left_alone(error.strerror or str(error))
        if not text.startswith(MARK):
            return None, self._left_alone(FOREIGN)
        try:
            curve, measured_at_s = self._read(text)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return None, f"the stored cost curve {self.path} is damaged ({error}); it is measured anew and replaced"
        return (curve, "") if 0 <= self.now_s() - measured_at_s < self.max_age_s else (None, "")

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
            why = error.strerror or str(error)
            return (
                f"the cost curve of steps cannot be stored in {self.path.parent}: {why}; it is measured at every start"
            )
        return ""

    def _is_foreign(self) -> bool:
        if not os.path.lexists(self.path):
            return False
        if self.path.is_symlink() or not self.path.is_file():
            return True
        with self.path.open("rb") as file:
            return file.read(len(MARK)) != MARK

    def _read(self, text: bytes) -> tuple[CostCurve, float]:
        """Raises ValueError, KeyError or TypeError with what is wrong."""
        if len(text) > MAX_BYTES:
            raise ValueError("longer than any curve")
        data = json.loads(text)
        if data["key"] != self.key:
            raise ValueError("it is of another key")
        tables = {name: np.array(data[name], dtype=np.float64) for name in TABLES}
        for table in tables.values():
            if table.ndim != 1 or not table.size or not np.isfinite(table).all() or (table < 0).any():
                raise ValueError("a table is not a list of sizes or seconds")
        for sizes, *times in (("rows", "forward_s"), ("sequences", "plain_s", "drafting_s")):
            if (np.diff(tables[sizes]) < 1).any() or any(tables[name].size != tables[sizes].size for name in times):
                raise ValueError(f"its {sizes} do not rise or lack times")
        measured_at_s = float(data["measured_at_s"])
        if not math.isfinite(measured_at_s) or not (tables["forward_s"] > 0).all():
            raise ValueError("a time is missing")
        return CostCurve(**tables, padded=bool(data["padded"])), measured_at_s

    def _left_alone(self, why: str) -> str:
        return (
            f"the cost curve of steps cannot be kept in {self.path}: {why}; that is left alone and the curve measured at every "
            "start; move it away to have it kept"
        )


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
