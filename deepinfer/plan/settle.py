"""Every "auto" of a spec becomes a value here, once, with the rule that settled it."""

import math
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from deepinfer.arch.config import ConfigErrors, V41Config, parse_config
from deepinfer.config.chips import Chip
from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.facts import FOLDER, Facts
from deepinfer.config.headers import CheckpointFacts
from deepinfer.config.leaves import Auto
from deepinfer.config.specs import (
    CompactReplay,
    DSpark,
    DSparkFixed,
    MaskReplay,
    Ngram,
    PrefixCache,
    Sampling,
    Scheduler,
    Spec,
    Speculation,
)
from deepinfer.config.surroundings import AutoExecutor, Executor
from deepinfer.plan.async_depth import scheduled_ahead
from deepinfer.plan.differences import differences
from deepinfer.plan.hardware import hardware_plan
from deepinfer.plan.ledger import Ledger, plan_problem
from deepinfer.plan.roles import RoleCase, distinct_chips, refuse_crowds, roles_of, top_chip
from deepinfer.plan.types import Drafting, HardwarePlan, Numerics

Verify = Literal["none", "coupled", "rejection"]
Dtype = Literal["float32", "float64", "bfloat16"]
MAX_AUTO_THREADS = 2  # the widths at which batch invariance is tested
NARROW = 1024  # hidden size below which waiting for a second thread costs more than it computes


class Case(Struct, frozen=True, kw_only=True):
    """A spec with nothing left open: what checks, layout and memory work on."""

    spec: Spec
    facts: Facts
    choices: dict[str, str]  # group → option, as chosen; may be empty
    model_name: str
    checkpoint: CheckpointFacts
    config: V41Config
    numerics: Numerics
    sampling: Sampling
    scheduler: Scheduler
    drafting: Drafting
    roles: tuple[RoleCase, ...]
    hardware: dict[str, HardwarePlan]  # by role
    executor: str  # local, distributed, simulated

    @property
    def num_ranks(self) -> int:
        return sum(role.num_ranks for role in self.roles)

    @property
    def approximates_hits(self) -> bool:
        """Whether what follows a prefix hit is not what a cold run computes."""
        return isinstance(self.spec.cache, PrefixCache) and self.numerics.replay_on_hit == "bounded"

    @property
    def is_fused(self) -> bool:
        """Whether runs on all of its chips are made of fused operations."""
        return all(role.is_fused for role in self.roles)

    @property
    def is_cpu(self) -> bool:
        """Whether some ranks are processes of a CPU: their threads are then part of the numerics."""
        return any(role.is_cpu for role in self.roles)

    @property
    def chips(self) -> tuple[Chip, ...]:
        """Every chip of the plan, each once, the first role's first."""
        return distinct_chips(self.roles)


def settle(spec: Spec, facts: Facts, choices: dict[str, str], ledger: Ledger) -> Case | None:
    """The settled case, or None (with the reasons in `ledger`) where there is no model to plan for."""
    top = top_chip(spec, facts, choices, ledger)
    if top is None:
        return None
    roles = roles_of(spec, top, choices, ledger)
    if refuse_crowds(roles, ledger):
        return None
    name, checkpoint = _model(spec, facts, roles, ledger)
    config = _config(spec, name, checkpoint, ledger)
    if config is None:
        return None
    drafting = _drafting(spec.speculation, config)
    cpu_ranks = sum(role.num_ranks for role in roles if role.is_cpu)
    executor = _executor(spec.executor, roles, ledger)
    return Case(
        spec=spec,
        facts=facts,
        choices=choices,
        model_name=name,
        checkpoint=checkpoint,
        config=config,
        numerics=_numerics(spec, facts, roles, config, drafting, ledger),
        sampling=_sampling(spec.sampling, checkpoint, ledger),
        drafting=drafting,
        roles=roles,
        hardware={role.name: hardware_plan(role, facts.machine, cpu_ranks) for role in roles},
        scheduler=scheduled_ahead(spec.scheduler, roles, drafting, executor, ledger),
        executor=executor,
    )


def _model(spec: Spec, facts: Facts, roles: tuple[RoleCase, ...], ledger: Ledger) -> tuple[str, CheckpointFacts]:
    if FOLDER in facts.checkpoints:
        checkpoint, named = facts.checkpoints[FOLDER], spec.model.name
        if named == "auto" or differences(facts, named):  # a name that it is not would mislead
            return Path(checkpoint.folder).name, checkpoint
        return named, checkpoint
    name: str = spec.model.name
    if name == "auto":
        only_cpus = all(role.is_cpu for role in roles)
        name, other = ("v41_tiny", "v41_flash") if only_cpus else ("v41_flash", "v41_tiny")
        where = "a CPU" if only_cpus else "an accelerator"
        rule = f"on {where} the {'tiny' if name == 'v41_tiny' else 'released'} model"
        ledger.decide("model", name, rule, runner_up=other)
    return name, facts.checkpoints[name]


def _config(spec: Spec, name: str, checkpoint: CheckpointFacts, ledger: Ledger) -> V41Config | None:
    asked = f"model.path={spec.model.path}" if spec.model.path else f"model={name}"
    for sentence in checkpoint.problems:
        why = f"it is not a whole checkpoint: {checkpoint.folder}"
        ledger.refuse(Problem(asked=asked, found=sentence, why=why, code=ExitCode.WEIGHTS))
    if checkpoint.config is None:
        return None
    try:
        return parse_config(checkpoint.config)
    except ConfigErrors as error:
        for sentence in error.problems:
            why = "the architecture is read from config.json and computed exactly as written"
            found = f"{checkpoint.folder}/config.json: {sentence}"
            ledger.refuse(Problem(asked=asked, found=found, why=why, code=ExitCode.WEIGHTS))
        return None


def _drafting(speculation: Speculation, config: V41Config) -> Drafting:
    if not isinstance(speculation, DSpark | DSparkFixed | Ngram):
        depth = int(getattr(speculation, "depth", 0))  # a third party's component
    else:
        depth = speculation.depth
    uses_checkpoint = isinstance(speculation, DSpark | DSparkFixed)
    return Drafting(
        kind=speculation.kind,
        depth=depth,
        verify_length=int(getattr(speculation, "verify_length", depth)),
        backtrack=depth + 1 if depth else 0,  # the drafts and the golden token before them
        num_draft_layers=config.num_nextn_predict_layers if uses_checkpoint else 0,
    )


def _numerics(
    spec: Spec, facts: Facts, roles: tuple[RoleCase, ...], config: V41Config, drafting: Drafting, ledger: Ledger
) -> Numerics:
    replay, on_cpu = spec.replay, any(role.is_cpu for role in roles)
    return Numerics(
        numerics=spec.model.numerics,
        dtype=_dtype(spec, roles, ledger),
        threads=_threads(spec, facts, config, ledger, on_cpu=on_cpu),
        verify=_verify(spec, drafting, ledger),
        replay=replay.kind,
        replay_keep_tokens=replay.keep_tokens if isinstance(replay, MaskReplay | CompactReplay) else 0,
        replay_on_hit=replay.on_hit,
        reproducible=spec.sampling.reproducible,
    )


def _dtype(spec: Spec, roles: tuple[RoleCase, ...], ledger: Ledger) -> Dtype:
    """One for all roles: caches of one are read by the other, and the two compute the same model."""
    if spec.model.dtype != "auto":
        return spec.model.dtype
    of_role: dict[str, Dtype] = {role.name: "float32" if role.is_cpu else "bfloat16" for role in roles}
    if len(set(of_role.values())) > 1:
        found = " and ".join(f"{dtype} for the {name} side" for name, dtype in of_role.items())
        why = "both sides compute one model in one dtype"
        ledger.refuse(plan_problem("model.dtype=auto", f"it would mean {found}", why, "model.dtype=bfloat16"))
    dtype = of_role[roles[0].name]
    rule = "CPUs emulate bfloat16 at a quarter of the speed" if roles[0].is_cpu else "the release computes in it"
    ledger.decide("model.dtype", dtype, rule, runner_up="bfloat16" if roles[0].is_cpu else "float32")
    return dtype


def _threads(spec: Spec, facts: Facts, config: V41Config, ledger: Ledger, *, on_cpu: bool) -> int:
    if spec.model.threads != "auto":
        return spec.model.threads
    if not on_cpu:
        return 1  # the host only schedules
    cores = facts.machine.cores
    if config.hidden_size < NARROW:
        rule = f"products of hidden size {config.hidden_size} are too small to share between threads"
        ledger.decide("model.threads", 1, rule, runner_up=min(cores, MAX_AUTO_THREADS) if cores > 1 else "")
        return 1
    threads = min(cores, MAX_AUTO_THREADS)
    rule = f"{cores} cores are free to use; batch invariance is tested at 1 and {MAX_AUTO_THREADS} threads"
    ledger.decide("model.threads", threads, rule, runner_up=cores if cores > threads else "")
    return threads


def _sampling(sampling: Sampling, checkpoint: CheckpointFacts, ledger: Ledger) -> Sampling:
    """The defaults of a request, with the temperature that the checkpoint's makers recommend."""
    if sampling.temperature != "auto":
        return sampling
    recommended = _recommended_temperature(checkpoint.generation)
    temperature = 1.0 if recommended is None else recommended
    if recommended is None:
        rule = "the model's own distribution; no generation_config.json says otherwise"
    else:
        rule = "the checkpoint's generation_config.json asks for it"
    ledger.decide("sampling.temperature", temperature, rule, runner_up=0.0 if temperature else 1.0)
    return structs.replace(sampling, temperature=temperature)


def _recommended_temperature(generation: dict[str, Any]) -> float | None:
    if generation.get("do_sample") is False:
        return 0.0
    value = generation.get("temperature")
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return float(value) if usable else None  # type: ignore[arg-type]


def _verify(spec: Spec, drafting: Drafting, ledger: Ledger) -> Verify:
    if not drafting.depth:
        return "none"
    asked: Verify | Auto = getattr(spec.speculation, "verify", "auto")
    if asked != "auto":
        return asked
    rule, cost = "the text is then the same with and without speculation", "accepts a little more at T > 0"
    ledger.decide("speculation.verify", "coupled", rule, runner_up="rejection", estimate=cost)
    return "coupled"


def _executor(executor: Executor, roles: tuple[RoleCase, ...], ledger: Ledger) -> str:
    if not isinstance(executor, AutoExecutor):
        return executor.kind
    num_ranks = sum(role.num_ranks for role in roles)
    if any(role.chip.kind == "virtual" for role in roles):
        kind, rule = "simulated", "a virtual chip exists on the virtual clock only"
    elif num_ranks == 1:
        kind, rule = "local", "one rank needs no other process"
    else:
        kind, rule = "distributed", f"{num_ranks} ranks"
    ledger.decide("executor", kind, rule, runner_up="simulated" if kind != "simulated" else "local")
    return kind
