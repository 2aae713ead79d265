"""The server that a bench starts for itself: where it listens it says itself, and what ended it is told."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from deepinfer.cli import bench_server
from deepinfer.cli.bench_http import Client
from deepinfer.cli.bench_server import ServerFailed, own_server

SERVER = """
import sys, http.server
looks = iter((503, 503))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(next(looks, 200) if self.path == "/health" else 200)
        body = " ".join(sys.argv[1:]).encode()
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("a plan\\ndeepinfer: listening on http://127.0.0.1:%d" % server.server_port, file=sys.stderr, flush=True)
print("deepinfer: ready", file=sys.stderr, flush=True)
server.serve_forever()
"""


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() if os.name == "posix" else False


def test_it_takes_a_port_that_the_server_found_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_server, "SERVE", (sys.executable, "-c", SERVER))

    async def use() -> tuple[bytes, int]:
        async with own_server(["model=v41_tiny"], ready_s=60) as (url, pid):
            client = Client(url)
            assert (await client.get("/health")).status == 200 and is_there(pid)
            asked = (await client.get("/")).body
            client.close()
            return asked, pid

    asked, pid = asyncio.run(use())
    assert asked == b"model=v41_tiny serving.port=0" and not is_there(pid)


@pytest.mark.parametrize(
    ("script", "told"),
    [("print('no such model'); raise SystemExit(2)", "exit code 2.*no such model"), (SERVER, "not ready after 0 s")],
)
def test_one_that_never_gets_ready(script: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_server, "SERVE", (sys.executable, "-c", script))

    async def use() -> None:
        async with own_server([], ready_s=0 if "http" in script else 60):
            raise AssertionError("it is not ready")

    with pytest.raises(ServerFailed, match=f"(?s){told}"):
        asyncio.run(use())
