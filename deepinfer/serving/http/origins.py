"""Whose pages a browser may let ask this server: its own, and those of the sites that are named.

Without keys a page must not get at the server under a name of its own either, which its owner has pointed at this machine
(DNS rebinding): then only addresses, names of this network, and names that somebody wrote down are answered.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from deepinfer.serving.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer.config.serving import Serving

FIX = "name it: serving.cors_origins=[http://{}]"


class Origins:
    """The settings' `cors_origins`; "*" stands for all."""

    def __init__(self, settings: Serving) -> None:
        self._origins = frozenset(settings.cors_origins)
        self._names = {host_name(origin.partition("://")[2]) for origin in self._origins} | {settings.host.lower()}

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises ApiError 403 for a name that could be anybody's. Who sends none is no browser."""
        asked = headers.get(b"host", b"").decode("latin-1")
        name = host_name(asked)
        if not asked or "*" in self._origins or name in self._names or is_near(name):
            return
        message = f"this server is not known as {asked!r:.100}, and asks for no key"
        raise ApiError(403, f"{message}: {FIX.format(asked[:100])}", code="host_not_allowed")

    def check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises ApiError 403 for pages of other sites."""
        told = headers.get(b"origin")
        if told is None or told.partition(b"://")[2] == headers.get(b"host"):
            return
        origin = told.decode("latin-1")
        if "*" not in self._origins and origin not in self._origins:
            message = f"pages of {origin!r:.100} may not ask this server (serving.cors_origins)"
            raise ApiError(403, message, code="origin_not_allowed")


def host_name(host: str) -> str:
    """Of a Host header, without its port and in lower case; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def is_near(name: str) -> bool:
    """Whether nobody elsewhere can own this name: an address, localhost, or one label, as containers and machines of a network
    have it."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True
