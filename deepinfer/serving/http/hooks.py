"""What the server tells whoever measures it. All of it is called on the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from deepinfer.serving.answers import Answers


class Metrics(Protocol):
    """Times are seconds."""

    def request_started(self, dialect: str, stream: bool) -> None:
        """A request was handed to the engine."""

    def request_refused(self, dialect: str, status: int, code: str) -> None:
        """A request that got as far as its limits was refused."""

    def step(self, num_tokens: int, intervals_s: list[float]) -> None:
        """A step of the engine brought tokens; `intervals_s` are those since the last token of each answer that had one."""

    def first_token(self, dialect: str, answers: Answers) -> None:
        """The first token of a request came: see `answers.timings`."""

    def finished(self, dialect: str, answers: Answers, seconds: float) -> None:
        """All answers of a request have ended, however."""

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        """An HTTP request was answered; `path` is the route's template, "" for one that there is not."""


class NoMetrics:
    """Counts nothing."""

    def request_started(self, dialect: str, stream: bool) -> None: ...

    def request_refused(self, dialect: str, status: int, code: str) -> None: ...

    def step(self, num_tokens: int, intervals_s: list[float]) -> None: ...

    def first_token(self, dialect: str, answers: Answers) -> None: ...

    def finished(self, dialect: str, answers: Answers, seconds: float) -> None: ...

    def http(self, method: str, path: str, status: int, seconds: float) -> None: ...
