"""Servers to test against: a real uvicorn in a thread on a free port.

`server` answers with the tiny model, `fake_server` with the constant-step executor; both are shared by the session. A test that
needs settings of its own takes `make_server("serving.max_streams=1", …)`, which ends with the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser import Browser
from running_server import FAKE, TINY, Running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    running = Running(*TINY, "cache=prefix").wait_ready()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def fake_server() -> Iterator[Running]:
    running = Running(*FAKE).wait_ready()
    yield running
    running.stop()


@pytest.fixture
def make_server() -> Iterator[Callable[..., Running]]:
    """make_server(*overrides, base=FAKE, ready=True, in_process=True) gives a Running that ends with the test."""
    made: list[Running] = []

    def make(*overrides: str, base: tuple[str, ...] = FAKE, ready: bool = True, **more: Any) -> Running:
        keys = {override.partition("=")[0] for override in overrides}
        kept = [override for override in base if override.partition("=")[0] not in keys]
        made.append(Running(*kept, *overrides, **more))
        return made[-1].wait_ready() if ready else made[-1]

    yield make
    for running in made:
        running.stop()


@pytest.fixture(scope="session")
def chromium_page() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium_page: Browser) -> Iterator[Browser]:
    chromium_page.dress(1280, 800)
    chromium_page.problems.clear()
    yield chromium_page
    chromium_page.run("sessionStorage.clear(); localStorage.clear()")
    chromium_page.go("about:blank?")
