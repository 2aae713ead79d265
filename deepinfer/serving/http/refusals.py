"""Why the engine's line takes nothing, as the errors that clients read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deepinfer.serving.http.errors import ApiError

if TYPE_CHECKING:
    from deepinfer.serving.engine_line import NotServing, QueueFull


def unavailable(error: NotServing) -> ApiError:
    return ApiError(503, str(error), code=error.code, retry_after_s=error.retry_after_s)


def busy(error: QueueFull) -> ApiError:
    return ApiError(429, str(error), code="queue_full", retry_after_s=1.0)


def later(message: str, code: str, seconds: float) -> ApiError:
    """A limit that time lifts."""
    return ApiError(429, message, code=code, retry_after_s=max(1.0, math.ceil(seconds)))
