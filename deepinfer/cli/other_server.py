"""A server that runs already, as task.base_url and task.api_key_file name it."""

from __future__ import annotations

from deepinfer.cli.bench_http import Client
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.paths import user_path


def refuse_no_address(base_url: str) -> None:
    """Raise Refused for what names no server."""
    try:
        Client(base_url)
    except ValueError as error:
        asked, fix = f"task.base_url={base_url}", "task.base_url=http://127.0.0.1:8000"
        raise Refused([Problem(asked=asked, found=str(error), fix=fix)]) from error


def read_key(file: str | None) -> str:
    """The key that task.api_key_file holds; "" without one. Raises Refused where it cannot be read."""
    if file is None:
        return ""
    try:
        return user_path(file, "task.api_key_file").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        asked = f"task.api_key_file={file}"
        raise Refused([Problem(asked=asked, found=str(error), why="it holds the key and nothing else")]) from error
