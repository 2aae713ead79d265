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
    Parallel,
    Sampling,
    Spec,
    Speculation,
)
from deepinfer.config.surroundings import AutoExecutor, Executor
from deepinfer.plan.differences import differences
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.roles import roles_of
from deepinfer.plan.types import Drafting, Numerics

Verify = Literal["none", "coupled", "rejection"]
MAX_AUTO_THREADS = 2  # the widths at which batch invariance is tested
NARROW = 1024  # hidden size below which waiting for a second thread costs more than it computes


class Case(Struct, frozen=True, kw_only=True):
    """A spec with nothing left open: what checks, layout and memory work on."""

    spec: Spec
    facts: Facts
    option: str  # of conf/hardware; may be empty
    chip: Chip
    model_name: str
    checkpoint: CheckpointFacts
    config: V41Config
    numerics: Numerics
    sampling: Sampling
    drafting: Drafting
    roles: tuple[tuple[str, int, Parallel], ...]  # name, replicas, degrees
    executor: str  # local, distributed, simulated

    @property
    def num_ranks(self) -> int:
        return sum(replicas * parallel.num_ranks for _, replicas, parallel in self.roles)

    @property
    def is_cpu(self) -> bool:
        return self.chip.kind == "cpu"


def settle(spec: Spec, facts: Facts, choices: dict[str, str], ledger: Ledger) -> Case | None:
    """The settled case, or None (with the reasons in `ledger`) where there is no model to plan for."""
    option, chip = _hardware(spec, facts, choices, ledger)
    name, checkpoint = _model(spec, facts, chip, ledger)
    config = _config(spec, name, checkpoint, ledger)
    if config is None:
        return None
    roles = roles_of(spec)
    drafting = _drafting(spec.speculation, config)
    num_ranks = sum(replicas * parallel.num_ranks for _, replicas, parallel in roles)
    return Case(
        spec=spec,
        facts=facts,
        option=option,
        chip=chip,
        model_name=name,
        checkpoint=checkpoint,
        config=config,
        numerics=_numerics(spec, facts, chip, config, drafting, ledger),
        sampling=_sampling(spec.sampling, checkpoint, ledger),
        drafting=drafting,
        roles=roles,
        executor=_executor(spec.executor, chip, num_ranks, ledger),
    )


def _hardware(spec: Spec, facts: Facts, choices: dict[str, str], ledger: Ledger) -> tuple[str, Chip]:
    if isinstance(spec.hardware, Chip):
        return choices.get("hardware", ""), spec.hardware
    assert facts.chip is not None, "a probe of hardware=auto names a chip"
    devices = facts.machine.devices
    rule = f"the first accelerator here is {devices[0].name}" if devices else "no accelerator was found here"
    if devices and facts.chip.kind == "cpu":
        rule = f"{devices[0].name} is none of the known chips"
    ledger.decide("hardware", facts.chip_option, rule, runner_up="cpu" if facts.chip.kind != "cpu" else "")
    return facts.chip_option, facts.chip


def _model(spec: Spec, facts: Facts, chip: Chip, ledger: Ledger) -> tuple[str, CheckpointFacts]:
    if FOLDER in facts.checkpoints:
        checkpoint, named = facts.checkpoints[FOLDER], spec.model.name
        if named == "auto" or differences(facts, named):  # a name that it is not would mislead
            return Path(checkpoint.folder).name, checkpoint
        return named, checkpoint
    name: str = spec.model.name
    if name == "auto":
        name, other = ("v41_tiny", "v41_flash") if chip.kind == "cpu" else ("v41_flash", "v41_tiny")
        where = "a CPU" if chip.kind == "cpu" else "an accelerator"
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
        verify_length=speculation.verify_length if isinstance(speculation, DSparkFixed) else depth,
        backtrack=depth + 1 if depth else 0,  # the drafts and the golden token before them
        num_draft_layers=config.num_nextn_predict_layers if uses_checkpoint else 0,
    )


def _numerics(spec: Spec, facts: Facts, chip: Chip, config: V41Config, drafting: Drafting, ledger: Ledger) -> Numerics:
    dtype = spec.model.dtype
    if dtype == "auto":
        dtype = "float32" if chip.kind == "cpu" else "bfloat16"
        rule = "CPUs emulate bfloat16 at a quarter of the speed" if chip.kind == "cpu" else "the release computes in it"
        ledger.decide("model.dtype", dtype, rule, runner_up="bfloat16" if chip.kind == "cpu" else "float32")
    replay = spec.replay
    return Numerics(
        numerics=spec.model.numerics,
        dtype=dtype,
        threads=_threads(spec, facts, chip, config, ledger),
        verify=_verify(spec, drafting, ledger),
        replay=replay.kind,
        replay_keep_tokens=replay.keep_tokens if isinstance(replay, MaskReplay | CompactReplay) else 0,
        reproducible=spec.sampling.reproducible,
    )


def _threads(spec: Spec, facts: Facts, chip: Chip, config: V41Config, ledger: Ledger) -> int:
    if spec.model.threads != "auto":
        return spec.model.threads
    if chip.kind != "cpu":
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


def _executor(executor: Executor, chip: Chip, num_ranks: int, ledger: Ledger) -> str:
    if not isinstance(executor, AutoExecutor):
        return executor.kind
    if chip.kind == "virtual":
        kind, rule = "simulated", "a virtual chip exists on the virtual clock only"
    elif num_ranks == 1:
        kind, rule = "local", "one rank needs no other process"
    else:
        kind, rule = "distributed", f"{num_ranks} ranks"
    ledger.decide("executor", kind, rule, runner_up="simulated" if kind != "simulated" else "local")
    return kind
