"""`deepinfer serve`: answer requests over HTTP until told to stop.

HTTP listens first and says on /health what the start is at; the plan's ranks run in processes of their own.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from deepinfer.api import plan_to_run
from deepinfer.cli.extras import how_to_install
from deepinfer.cli.serve_address import is_loopback, listen, listen_problems, url_of
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.engine.unbuilt import is_simulated
from deepinfer.plan import render
from deepinfer.sampling.params import asked_sampling

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from deepinfer.config.argv import Invocation
    from deepinfer.config.serving import Serving
    from deepinfer.config.specs import Spec
    from deepinfer.engine.build_world import FleetGraph
    from deepinfer.plan.types import Plan
    from deepinfer.serving.http.service import Service


def run(spec: Spec, invocation: Invocation) -> int:
    """Plan, listen, serve. Raises Refused for what cannot be planned, run, or listened at."""
    if invocation.new_key is not None:
        return print_key(invocation.new_key)
    problems = list(listen_problems(spec.serving))
    plan = plan_to_run(spec, invocation.choices, invocation.overrides, problems)
    if problems:
        raise Refused(problems)
    print(render.summary(plan), file=sys.stderr)
    return serve(plan, spec.serving, asked_sampling(invocation.overrides))[0]


def serve(
    plan: Plan,
    settings: Serving,
    asked: frozenset[str],
    start: Callable[[Callable[[str], None]], FleetGraph] | None = None,
) -> tuple[int, bool]:
    """Listen and serve until a signal: the exit code, 0 after a drain, and whether the engine was lost. `start(tell)` gives the
    engine of ranks that somebody else started. Raises Refused where the engine cannot be built."""
    from deepinfer.cli.serve_start import served_by, service_of, service_with

    check_endpoint(settings.otlp_endpoint)
    listener = listen(settings)
    if start is None:
        service = service_of(plan, settings, asked=asked)
    else:
        service = service_with(plan, settings, lambda tell: served_by(start(tell), asked))
    code = run_service(service, listener, lambda: greet(plan, service, listener))
    return code, service.line.served is None or bool(service.line.cause)


def greet(plan: Plan, service: Service, listener: socket.socket) -> None:
    """Say where it listens, and what an operator should know."""
    _say(f"listening on {url_of(listener)}")
    for notice in _notices(plan, service):
        _say(notice)


def run_service(service: Service, listener: socket.socket, on_listening: Callable[[], None]) -> int:
    """Serve until a signal. Raises what kept the engine from starting."""
    from deepinfer.serving.http.server import Server

    line = service.line

    def tell(state: str) -> None:
        if state != "failed" or line.served is not None:  # else it is raised below
            _say(_told(state, service))

    line.on_state = tell
    server = Server(service, listener)
    server.on_listening = on_listening
    code = server.run()
    if code != ExitCode.OK and isinstance(line.failure, ValueError | OSError):
        raise line.failure
    return code


def check_endpoint(endpoint: str | None) -> None:
    """Raises Refused where spans cannot be sent there."""
    from deepinfer.serving.http import tracing

    try:
        tracing.check_extra(endpoint)
    except ValueError as error:
        fix = how_to_install("otel") if not tracing.has_extra() else "serving.otlp_endpoint=http://127.0.0.1:4318"
        why = "spans of requests go there"
        raise Refused(
            [Problem(asked=f"serving.otlp_endpoint={endpoint}", found=str(error), why=why, fix=fix)]
        ) from error


def print_key(name: str) -> int:
    """A new key on stderr, its entry for the file on stdout: `deepinfer serve new_key=NAME >> keys.yaml`."""
    from deepinfer.serving.http.auth import new_key

    try:
        secret, entry = new_key(name)
    except ValueError as error:
        raise Refused([Problem(asked=f"new_key={name}", found=str(error), fix="new_key=alice")]) from error
    print(f"the key of {name}, shown this once:\n  {secret}", file=sys.stderr)
    print("its entry for the file of serving.api_keys, on stdout:", file=sys.stderr, flush=True)
    print(entry, end="", flush=True)
    return ExitCode.OK


def _notices(plan: Plan, service: Service) -> list[str]:
    told = []
    settings = service.settings
    if is_simulated(plan):
        told.append("simulated: tokens are invented, and steps take executor.step_time_s each")
    if settings.allow_open and service.keys is None and not is_loopback(settings.host):
        told.append(f"WARNING: whoever reaches {settings.host} may use this server: serving.api_keys is not set")
    if service.keys is not None:
        told.append(f"{len(service.keys)} API keys from {settings.api_keys}; {os.getpid()} is the process to signal")
    return told


def _told(state: str, service: Service) -> str:
    line = service.line
    if state == "ready" and line.served is not None:
        warm_up_s = line.served.warm_up_s
        return "ready" + (f"; compiling took {warm_up_s:.0f} s" if warm_up_s > 2 else "")
    return f"{state}: {line.cause}" if line.cause else state


def _say(text: str) -> None:
    print(f"deepinfer: {text}", file=sys.stderr, flush=True)
