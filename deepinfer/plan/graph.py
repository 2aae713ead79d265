"""The engine graph as data: one node for each part, what it is built from and what it needs.

Implementations are "module:attribute" strings, looked up only when an engine is built; an empty one means that the
seam's trivial answer needs no part at all.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from deepinfer.config.balancers import StaticBalancer
from deepinfer.config.leaves import Component
from deepinfer.config.runnable import plan_only
from deepinfer.config.specs import DSpark, NoReplay, NoSpeculation, PrefixCache
from deepinfer.config.surroundings import DistributedExecutor, LocalExecutor, NoGrammar, SimulatedExecutor
from deepinfer.plan.catalog import Backend, used_backends
from deepinfer.plan.settle import Case
from deepinfer.plan.types import Node, OpChoice

EXECUTORS: dict[str, type[Component]] = {
    "local": LocalExecutor,
    "distributed": DistributedExecutor,
    "simulated": SimulatedExecutor,
}
AUTO_SETTINGS: dict[str, dict[str, Any]] = {  # of an executor that "auto" chose: the values of conf/executor
    "local": {},
    "distributed": {
        "backend": "auto",
        "join_timeout_s": 60.0,
        "heartbeat_s": 2.0,
        "silence_s": 10.0,
        "on_rank_loss": "fail",
        "max_restarts": 3,
    },
    "simulated": {"step_time_s": 0.001, "acceptance": 0.8},
}
PACKAGE = Path(__file__).parents[1]
WEIGHTS = {
    "checkpoint": "deepinfer.model.checkpoint.weights:load_weights",
    "dummy": "deepinfer.model.checkpoint.dummy:dummy_weights",
}
FUSED = {  # what stands for another implementation where the model is made of fused operations
    WEIGHTS["checkpoint"]: "deepinfer.model.checkpoint.weights:load_stored",
    WEIGHTS["dummy"]: "deepinfer.model.checkpoint.dummy:dummy_stored",
    "deepinfer.model.v41:V41Model": "deepinfer.model.fused.model:FusedModel",
    "deepinfer.sampling.sampler:Sampler": "deepinfer.sampling.device_rows:DeviceSampler",
    "deepinfer.parallel.all_to_all:AllToAllDispatch": "deepinfer.parallel.device_dispatch:DeviceDispatch",
    LocalExecutor.implementation: "deepinfer.engine.device_executor:DeviceExecutor",
    DSpark.implementation: "deepinfer.speculation.dspark_device:DeviceDSpark",
}


def build_graph(case: Case, ops: tuple[OpChoice, ...]) -> tuple[Node, ...]:
    """Nodes in an order in which each stands after what it needs."""
    nodes = [
        *_model_nodes(case, ops),
        _node("cache", "cache", "deepinfer.model.cache_storage:ModelCache", option="cache", spec=case.spec.cache),
        _node("sampler", "sampler", "deepinfer.sampling.sampler:Sampler", reason="one sampler serves every option"),
        *_speculation_nodes(case),
        *_option_nodes(case),
    ]
    drafter = ("drafter", "verifier") if case.drafting.depth else ()
    nodes.append(_executor(case, ("model", "cache", "sampler", *drafter)))
    spec = case.scheduler
    index = ("prefix_index",) if isinstance(case.spec.cache, PrefixCache) else ()
    needs = ("cache", *index)
    nodes.append(_node("scheduler", "scheduler", spec.implementation, needs=needs, option="scheduler", spec=spec))
    needs = ("scheduler", "executor", *(("grammar",) if not isinstance(case.spec.grammar, NoGrammar) else ()))
    nodes.append(_node("engine", "engine", "deepinfer.engine.engine:Engine", needs=needs))
    return tuple(map(_fused, nodes) if case.is_fused else nodes)


def _fused(node: Node) -> Node:
    """The same part for a model of fused operations."""
    implementation = FUSED.get(node.implementation)
    if implementation is None:
        return node
    return msgspec.structs.replace(node, implementation=implementation, planned=not in_this_version(implementation))


def _model_nodes(case: Case, ops: tuple[OpChoice, ...]) -> list[Node]:
    kind = case.spec.model.weights
    backends = {backend.name: backend for backend in used_backends(ops)}
    names = sorted(backends)
    reason = f"model.weights={kind}"
    spread = any(role.parallel.expert > 1 for role in case.roles)
    dispatch = "deepinfer.parallel.all_to_all:AllToAllDispatch" if spread else ""
    dispatch_reason = "experts are spread over ranks" if spread else "every rank holds all experts"
    return [
        _node("weights", "weights", WEIGHTS[kind], reason=reason, runner_up="dummy" if kind == "checkpoint" else ""),
        *(_ops_node(backends[name], ops, case) for name in names),
        _node("dispatch", "expert_dispatch", dispatch, option="parallel", reason=dispatch_reason),
        _node(
            "model",
            "model",
            "deepinfer.model.v41:V41Model",
            needs=("weights", *(f"ops.{name}" for name in names), "dispatch"),
            reason="the only architecture",
        ),
    ]


def _speculation_nodes(case: Case) -> list[Node]:
    spec = case.spec.speculation
    if isinstance(spec, NoSpeculation):
        return [_node("drafter", "drafter", "", option="speculation", spec=spec, reason="nothing is drafted")]
    other = "rejection" if case.numerics.verify == "coupled" else "coupled"
    verifier, reason = _verifier(case)
    return [
        _node("drafter", "drafter", spec.implementation, needs=("model",), option="speculation", spec=spec),
        _node(
            "verifier",
            "verifier",
            verifier,
            needs=("drafter", "sampler"),
            option="speculation",
            reason=reason,
            runner_up=other,
        ),
    ]


def _verifier(case: Case) -> tuple[str, str]:
    """Implementation and reason; a device's sampler judges the draft module's drafts itself."""
    rejection = case.numerics.verify == "rejection"
    if case.is_fused and case.drafting.num_draft_layers:
        return "", "the sampler judges drafts where they are"
    if case.is_fused and (not rejection or case.drafting.kind == "ngram"):
        return "deepinfer.engine.device_verifier:DeviceVerifier", ""
    if rejection:
        return "deepinfer.speculation.rejection:RejectionVerifier", ""
    return "deepinfer.speculation.coupled:CoupledVerifier", ""


def _option_nodes(case: Case) -> list[Node]:
    """Parts that are there only when an option other than the trivial one is chosen."""
    found: list[tuple[str, Component, tuple[str, ...], str, str]] = []
    cache, replay, grammar = case.spec.cache, case.spec.replay, case.spec.grammar
    if not isinstance(case.spec.balancer, StaticBalancer):
        found.append(("balancer", case.spec.balancer, ("dispatch",), "balancer", "static"))
    if isinstance(cache, PrefixCache):
        found.append(("prefix_index", cache, ("cache",), "cache", "paged"))
    if not isinstance(replay, NoReplay):
        found.append(("replay", replay, ("model",), "replay", "none"))
    if not isinstance(grammar, NoGrammar):
        found.append(("grammar", grammar, (), "grammar", "none"))
    return [
        _node(name, name, spec.implementation, needs=needs, option=option, spec=spec, runner_up=runner_up)
        for name, spec, needs, option, runner_up in found
    ]


def _executor(case: Case, needs: tuple[str, ...]) -> Node:
    chosen = case.spec.executor
    spec = chosen if chosen.kind == case.executor else None
    implementation = spec.implementation if spec else EXECUTORS[case.executor].implementation
    reason = f"executor={chosen.kind}" + (f", hence {case.executor}" if spec is None else "")
    runner_up = "simulated" if case.executor != "simulated" else "local"
    node = _node(
        "executor",
        "executor",
        implementation,
        needs=needs,
        option="executor",
        spec=spec,
        reason=reason,
        runner_up=runner_up,
    )
    if spec is not None:
        return node
    return msgspec.structs.replace(node, option=f"executor={case.executor}", settings=AUTO_SETTINGS[case.executor])


def _node(
    name: str,
    seam: str,
    implementation: str,
    *,
    needs: tuple[str, ...] = (),
    option: str = "",
    spec: Component | None = None,
    reason: str = "",
    runner_up: str = "",
) -> Node:
    return Node(
        name=name,
        seam=seam,
        implementation=implementation,
        needs=needs,
        option=f"{option}={spec.kind}" if option and spec else option,
        reason=reason or (f"{option}={spec.kind}" if option and spec else ""),
        runner_up=runner_up,
        settings=_settings(spec) if spec else {},
        planned=not in_this_version(implementation),
    )


def _ops_node(backend: Backend, ops: tuple[OpChoice, ...], case: Case) -> Node:
    """Planned where no run takes these ops, or kernels on such a chip, whether or not they are written."""
    implementation = next(choice.implementation for choice in ops if choice.backend == backend.name)
    node = _node(f"ops.{backend.name}", "ops", implementation, reason="see the ops of the plan")
    unrun = any(plan_only(role.chip.kind, role.chip.architecture.value) for role in case.roles)
    return msgspec.structs.replace(node, planned=not backend.in_this_version or bool(backend.architectures and unrun))


@cache
def in_this_version(implementation: str) -> bool:
    """Whether the module of "module:attribute" is there, by its file: nothing is imported. Others' modules count as there."""
    package, *names = implementation.partition(":")[0].split(".")
    if package != "deepinfer":
        return True
    file = PACKAGE.joinpath(*names)
    return file.with_suffix(".py").is_file() or file.is_dir()


def _settings(spec: Component) -> dict[str, Any]:
    """The keys of an option as plain data, without its tag."""
    data: dict[str, Any] = msgspec.to_builtins(spec)
    return {key: value for key, value in data.items() if key != "kind"}
