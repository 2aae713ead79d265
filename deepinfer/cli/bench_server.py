"""The server that a load goes to: one that runs already, or a child of this process for the time of the measurement."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from deepinfer.cli.bench_http import Client
from deepinfer.config.env import for_child
from deepinfer.config.errors import ExitCode, Problem, Refused

if TYPE_CHECKING:
    from deepinfer.config.argv import Invocation

READY_S = 600.0  # for weights, compiled kernels and warm-up
END_S = 60.0  # from SIGTERM until it is killed
POLL_S = 0.1
SERVE = (sys.executable, "-m", "deepinfer.cli.child", "serve")
_LISTENS = re.compile(r"^deepinfer: listening on (http://\S+)$", re.MULTILINE)
_ROOT = Path(__file__).parents[2]


class ServerFailed(Exception):
    """The server that was started ended before it was ready, or never became so."""


@contextlib.asynccontextmanager
async def own_server(arguments: Sequence[str], *, ready_s: float = READY_S) -> AsyncIterator[tuple[str, int]]:
    """`deepinfer serve` with these arguments on a port that it finds free: its URL, and the id of its process.

    Raises ServerFailed with what it said.
    """
    command = [*SERVE, *arguments, "serving.port=0"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=for_child(str(_ROOT)), start_new_session=True
        )
        try:
            yield await _until_ready(process, said, ready_s), process.pid
        finally:
            await _end(process)


def serve_arguments(invocation: Invocation) -> list[str]:
    """What starts a server of the plan that a bench was typed for: all but the bench's own keys."""
    own = ("task", "serving.port", "serving.host")
    overrides = [text for text in invocation.overrides if not _names(text, own)]
    texts = [f"{key}={text}" for key, text in invocation.texts.items() if not key.startswith("task.")]
    flags = ["--config-dir", invocation.config_dir] if invocation.config_dir else []
    return [*flags, *overrides, *texts]


def _names(override: str, keys: Sequence[str]) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return any(key == own or key.startswith(f"{own}.") for own in keys)


async def _until_ready(process: subprocess.Popen[bytes], said: IO[bytes], ready_s: float) -> str:
    """Its URL."""
    until_s = time.monotonic() + ready_s
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise ServerFailed(f"it ended with exit code {process.returncode}:\n{_tail(said)}")
        if (url := _address(said)) and await _is_ready(url):
            return url
        await asyncio.sleep(POLL_S)
    raise ServerFailed(f"it was not ready after {ready_s:.0f} s:\n{_tail(said)}")


def _address(said: IO[bytes]) -> str:
    """Where it says that it listens; "" before."""
    found = _LISTENS.search(_text(said))
    return found[1] if found else ""


async def _is_ready(url: str) -> bool:
    client = Client(url)
    try:
        return (await client.get("/health")).status == 200
    except OSError:
        return False
    finally:
        client.close()


async def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + END_S
        while process.poll() is None and time.monotonic() < until_s:
            await asyncio.sleep(POLL_S)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdin.close()


def _tail(said: IO[bytes], lines: int = 20) -> str:
    return "\n".join(_text(said).splitlines()[-lines:])


def _text(said: IO[bytes]) -> str:
    """All so far. Its place in the file is the child's too, and stays."""
    return os.pread(said.fileno(), os.fstat(said.fileno()).st_size, 0).decode(errors="replace")


async def model_of(client: Client) -> str:
    """The first model that a server offers. Raises Refused where it tells none."""
    reply = await client.get("/v1/models")
    try:
        return str(msgspec.json.decode(reply.body)["data"][0]["id"])
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
        found = f"GET /v1/models answers HTTP {reply.status}: {reply.body[:200].decode(errors='replace')}"
        fix = "task.base_url=http://HOST:PORT"
        raise Refused([Problem(asked="task.base_url", found=found, fix=fix, code=ExitCode.NETWORK)]) from None


async def counters(client: Client) -> dict[str, float]:
    """Sums over all labels of what `/metrics` counts, without the prefix of its maker; empty where there is none."""
    reply = await client.get("/metrics")
    found: dict[str, float] = {}
    if reply.status != 200:
        return found
    for line in reply.body.decode(errors="replace").splitlines():
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        for maker in ("deepinfer_", "vllm:", "sglang:"):
            name = name.removeprefix(maker)
        if name and not line.startswith("#"):
            with contextlib.suppress(ValueError):
                found[name] = found.get(name, 0.0) + float(value)
    return found


def growth(before: dict[str, float], after: dict[str, float]) -> Mapping[str, Any]:
    """What was counted between two looks."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
