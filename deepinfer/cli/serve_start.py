"""From a plan to a service: the engine's start, the names of the model, the keys of the file. Nothing of it needs a socket."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from deepinfer.config.errors import Problem, Refused
from deepinfer.config.paths import user_path
from deepinfer.sampling.params import from_config
from deepinfer.serving.http.auth import Keys, read_keys
from deepinfer.serving.http.service import Service
from deepinfer.serving.jobs import Desk
from deepinfer.serving.served import Served

if TYPE_CHECKING:
    from deepinfer.config.serving import Serving
    from deepinfer.engine.build import EngineGraph
    from deepinfer.engine.build_world import FleetGraph
    from deepinfer.plan.types import Plan
    from deepinfer.serving.http.hooks import Metrics

Tell = Callable[[str], None]


def service_of(
    plan: Plan,
    settings: Serving,
    *,
    asked: frozenset[str] = frozenset(),
    in_process: bool = False,
    metrics: Metrics | None = None,
) -> Service:
    """The service of a plan. `asked` are the sampling fields that somebody chose; `in_process` runs the engine of one rank in
    this process. Raises Refused where the file of keys cannot be read."""
    start = partial(start_engine, plan, asked, in_process, settings.engine_restarts)
    return service_with(plan, settings, start, metrics)


def service_with(
    plan: Plan, settings: Serving, start: Callable[[Tell], Served], metrics: Metrics | None = None
) -> Service:
    """The service of an engine that `start(tell)` builds. Raises Refused."""
    return Service(
        settings,
        start,
        model_names=settings.model_names or names_of(plan),
        plan_json=plan.to_json(),
        keys=None if settings.api_keys is None else keys_in(settings.api_keys),
        metrics=metrics,
    )


def keys_in(path: str) -> Keys:
    """The keys of a file. Raises Refused."""
    try:
        return read_keys(user_path(path, "serving.api_keys"))
    except (OSError, ValueError) as error:
        found = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fix = "deepinfer serve new_key=NAME >> FILE"
        problem = Problem(asked=f"serving.api_keys={path}", found=found, why="it lists who may ask", fix=fix)
        raise Refused([problem]) from error


def start_engine(plan: Plan, asked: frozenset[str], in_process: bool, restarts: int, tell: Tell) -> Served:
    """Build the engine; `tell` hears what it is at. Raises Refused."""
    from deepinfer.engine.build_serving import build_here, build_served

    return served_by(build_here(plan) if in_process else build_served(plan, tell, restarts=restarts), asked)


def served_by(graph: EngineGraph | FleetGraph, asked: frozenset[str] = frozenset()) -> Served:
    """A built engine with all that is needed to hand it requests."""
    plan, limits = graph.plan, graph.limits
    grammar = next((node.option.partition("=")[2] for node in plan.graph if node.name == "grammar"), "none")
    desk = Desk(
        graph.tokenizer,
        vocab_size=limits.vocab_size,
        max_model_len=limits.max_model_len,
        bos_token_id=plan.model.config.bos_token_id,
        eos_token_ids=limits.eos_token_ids,
        grammar=grammar,
    )
    desk.prepare()
    return Served(
        engine=graph.engine,
        desk=desk,
        defaults=from_config(plan.sampling),
        asked=asked,
        num_places=graph.num_engines * limits.max_num_seqs,
        warm_up_s=graph.warm_up_s,
        notices=graph.notices,
    )


def names_of(plan: Plan) -> tuple[str, ...]:
    """What requests may call the model: its name here, and the one that DeepSeek's own API has for it."""
    released = "DeepSeek-V4.1-Flash"
    return (released, plan.model.name) if plan.model.name == "v41_flash" else (plan.model.name,)
