"""A headless Chromium over its DevTools pipe: no driver, no library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe"),
)
WAIT_S = 60.0


def chromium() -> str | None:
    """Where it is installed, None where it is not."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page. `problems` are what its console complained about: errors, exceptions, violations of its policy."""

    def __init__(self) -> None:
        program = chromium()
        assert program is not None, "Chromium is installed"
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (their_in, their_out)]
        words = [program, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        script = f'exec "$@" 3<&{passed[0]} 4>&{passed[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words], pass_fds=passed, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for fd in (their_in, their_out, *passed):
            os.close(fd)
        self._in, self._out = our_in, our_out
        self._rest, self._number = b"", 0
        self.problems: list[str] = []
        self._session = ""
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in pages if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A DevTools command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + WAIT_S
        while True:
            heard = self._hear(deadline_s)
            if heard.get("id") == self._number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                found: dict[str, Any] = heard["result"]
                return found
            self._note(heard)

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, f"{script}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def until(self, condition: str, within_s: float = WAIT_S) -> None:
        """Wait until an expression is true in the page."""
        deadline_s = time.monotonic() + within_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline_s, f"never: {condition}\n{self.run('document.body.innerText')}"
            time.sleep(0.05)

    def dress(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window in CSS pixels, and what the reader's system prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(WAIT_S)
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def _hear(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(message)
        return heard

    def _note(self, heard: dict[str, Any]) -> None:
        params = heard.get("params", {})
        if heard.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        if heard.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
