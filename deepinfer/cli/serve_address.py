"""Where a server listens, and that nobody is let in from other machines by accident."""

from __future__ import annotations

import ipaddress
import socket

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.serving import Serving

IDLE_S = 60  # of a silent connection, until the system asks whether the other end is still there
BACKLOG = 2048  # connections that the system keeps until they are taken


def listen(settings: Serving) -> socket.socket:
    """A socket that listens. Raises Refused where the address cannot be had."""
    host = settings.host
    try:
        family = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        asked = f"serving.host={host} serving.port={settings.port}"
        fix = "serving.port=0" if host in ("127.0.0.1", "localhost", "::1") else "serving.host=127.0.0.1"
        found = error.strerror or str(error)
        problem = Problem(asked=asked, found=found, why="the server listens there", fix=fix, code=ExitCode.NETWORK)
        raise Refused([problem]) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # of all connections: hosts that vanish are noticed
    if hasattr(socket, "TCP_KEEPIDLE"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    return listener


def listen_problems(settings: Serving) -> list[Problem]:
    """Nobody is let in from other machines by accident: that takes API keys, or a word that it is meant."""
    if settings.api_keys is not None or settings.allow_open or is_loopback(settings.host):
        return []
    found = "other machines reach it, and no API key is asked for"
    why = "whoever reaches the port could use the model"
    fix = "serving.api_keys=FILE (deepinfer serve new_key=NAME makes one), or serving.allow_open=true"
    return [Problem(asked=f"serving.host={settings.host}", found=found, why=why, fix=fix)]


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine only. A name counts where it is localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
