"""The page at /: the plan, live charts and a chat box. Plain files that this server sends; they ask it for everything else."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from deepinfer.serving.http.errors import ApiError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from deepinfer.serving.http.service import Service

TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
# Nothing runs or loads but these files, and they ask nobody but this server; no other page may frame them.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def parts() -> dict[str, bytes]:
    """The files by name, as they ship."""
    folder = files("deepinfer.serving.http") / "page"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in TYPES}


def add_routes(app: FastAPI, service: Service) -> None:
    del service  # the page asks the API, as anybody does
    found = parts()
    tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in found.items()}

    def sent(request: Request, name: str) -> Response:
        headers = HEADERS | {"ETag": tags[name]}
        if tags[name] in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        content_type = f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8"
        return Response(found[name], headers=headers | {"content-type": content_type})

    async def page(request: Request) -> Response:
        return sent(request, "index.html")

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in found:
            raise ApiError(404, f"the page has no part {name!r:.100}")
        return sent(request, name)

    app.add_api_route("/", page, methods=["GET", "HEAD"], response_class=Response, include_in_schema=False)
    app.add_api_route("/page/{name}", part, methods=["GET", "HEAD"], response_class=Response, include_in_schema=False)
