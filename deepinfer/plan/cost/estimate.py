"""The cost of a plan: what its workload takes on its ranks, in rates, times and words."""

from collections.abc import Iterator, Mapping

from msgspec import Struct, structs

from deepinfer.config.specs import PrefixCache, Spec
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.capacity import Fit
from deepinfer.plan.cost.acceptance import yield_of
from deepinfer.plan.cost.advice import Trials, decode_moves, prefill_moves
from deepinfer.plan.cost.assumptions import assumptions_of, free_parameters
from deepinfer.plan.cost.both import Estimate
from deepinfer.plan.cost.expectations import (
    advised,
    beyond_the_site,
    hits_without_a_cache,
    missed,
    tell,
    unreckonable,
)
from deepinfer.plan.cost.fleet import CACHED_SHARES, Replica, fleet_of
from deepinfer.plan.cost.fleet_types import FleetPlan
from deepinfer.plan.cost.links import Route, widest_route
from deepinfer.plan.cost.phases import Side, decode_cost, prefill_cost
from deepinfer.plan.cost.room import Room, free_bytes
from deepinfer.plan.cost.sides import side_of
from deepinfer.plan.cost.sustained import sustained_of
from deepinfer.plan.cost.types import Calibration, CostPlan, DecodeCost, DecodePoint, Figure
from deepinfer.plan.cost.work import Prompt
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.memory import Scene
from deepinfer.plan.types import Layout

TRACE = "a trace has no steady traffic: nothing is reckoned or sized"


class Roles(Struct, frozen=True, kw_only=True):
    """The role that computes prompts and the one that answers, as the cost model sees them; they may be the same."""

    scenes: Mapping[str, Scene]
    sides: dict[str, Side]
    layout: Layout
    fitted: Fit

    @property
    def names(self) -> tuple[str, str]:
        return self.layout.roles[0].name, self.layout.roles[-1].name

    @property
    def takes_turns(self) -> bool:
        return len(self.layout.roles) == 1

    @property
    def stand_ins(self) -> dict[str, str]:
        """By role, the architecture whose calibration stands in for its chip's own; empty for none."""
        return {name: side.calibrations[-1].stand_in for name, side in self.sides.items()}

    def room(self, name: str, workload: SteadyWorkload) -> Room:
        return Room(
            scene=self.scenes[name],
            role=self.layout.role(name),
            workload=workload,
            free_bytes=free_bytes(self.fitted.memory, name),
        )

    def other_nodes(self, name: str) -> int:
        """Nodes of the other roles."""
        return len({rank.node for rank in self.layout.ranks if rank.role != name})


def cost_of(
    scenes: Mapping[str, Scene],
    reckonings: Mapping[str, tuple[Calibration, ...]],
    layout: Layout,
    fitted: Fit,
    ledger: Ledger,
) -> CostPlan:
    """The cost of a plan, `scenes` and `reckonings` by role.

    What a workload asks for and does not get goes to the ledger: as warnings, or as problems where it is strict.
    """
    spec, cache = next(iter(scenes.values())).case.spec, next(iter(scenes.values())).cache
    asked = spec.workload
    if not isinstance(asked, SteadyWorkload):
        return CostPlan(notes=(TRACE,))
    if problem := unreckonable(asked, fitted.capacity, fitted.max_model_len, cache.block_tokens):
        tell([problem], ledger, strict=asked.strict)
        return CostPlan(notes=(f"{problem.asked}: {problem.found}; {problem.why}",))
    tell(hits_without_a_cache(asked, spec.cache), ledger)
    workload = asked if isinstance(spec.cache, PrefixCache) else structs.replace(asked, cached_share=0.0)
    sides: dict[str, Side] = {
        role.name: side_of(scenes[role.name], role, scenes, reckonings[role.name]) for role in layout.roles
    }
    roles = Roles(scenes=scenes, sides=sides, layout=layout, fitted=fitted)
    estimate = _with_advice(_estimate(roles, workload), roles)
    fleet = _fleet(estimate, roles)
    tell([*missed(estimate), *beyond_the_site(fleet, spec.cluster)], ledger, strict=workload.strict)
    tell(advised(estimate, fleet), ledger)
    return _plan(estimate, roles, fleet, spec)


def _plan(estimate: Estimate, roles: Roles, fleet: FleetPlan | None, spec: Spec) -> CostPlan:
    decode = estimate.decode
    stand_ins = roles.stand_ins
    return CostPlan(
        headline=tuple(_headline(estimate, stand_ins, roles.names)),
        prefill=estimate.prefill,
        decode=decode,
        tradeoff=tuple(estimate.tradeoff(point) for point in decode.curve),
        decode_share=estimate.decode_share(decode.point),
        sustained=sustained_of(estimate, roles.layout),
        fleet=fleet,
        stand_ins={name: architecture for name, architecture in stand_ins.items() if architecture},
        assumptions=assumptions_of(spec, estimate, tuple(roles.sides.values()), roles.scenes),
        notes=tuple(_notes(estimate)),
    )


def _estimate(roles: Roles, workload: SteadyWorkload) -> Estimate:
    """Both phases of a workload."""
    first, last = roles.names
    scheduler = roles.scenes[first].case.spec.scheduler
    prompt, chunk = _prompt(workload, roles.scenes[first]), scheduler.max_num_batched_tokens
    prefill = prefill_cost(roles.sides[first], prompt, chunk, _transfer(roles))
    prompt_s = prefill.computed_tokens / prefill.tokens_per_s_per_gpu[-1] if roles.takes_turns else 0.0
    decode = _decode(roles.sides[last], workload, roles.room(last, workload), prompt_s)
    stand_in = next((stand_in for stand_in in roles.stand_ins.values() if stand_in), "")
    return Estimate(workload=workload, prefill=prefill, decode=decode, takes_turns=roles.takes_turns, stand_in=stand_in)


def _with_advice(estimate: Estimate, roles: Roles) -> Estimate:
    """The estimate with what would make either phase faster."""
    (first, last), workload = roles.names, estimate.workload
    prompt = _prompt(workload, roles.scenes[first])

    def trials(name: str) -> Trials:
        return Trials(
            estimate=estimate,
            side=roles.sides[name],
            room=roles.room(name, workload),
            other_nodes=roles.other_nodes(name),
            prompt=prompt,
        )

    faster, more = prefill_moves(trials(first), _transfer(roles)), decode_moves(trials(last))
    prefill, decode = estimate.prefill, estimate.decode
    return structs.replace(
        estimate, prefill=structs.replace(prefill, moves=faster), decode=structs.replace(decode, moves=more)
    )


def _prompt(workload: SteadyWorkload, scene: Scene) -> Prompt:
    numerics = scene.case.numerics
    return Prompt(
        tokens=workload.prompt_tokens,
        cached=workload.prompt_tokens * workload.cached_share,
        keep=numerics.replay_keep_tokens if numerics.replay == "compact" else None,
    )


def _transfer(roles: Roles) -> Route | None:
    """The way of a cache from a prefill rank to a decode rank: the slower one of their two links."""
    if roles.takes_turns:
        return None
    first, last = (roles.sides[name].group.chip for name in roles.names)
    return min(widest_route(first), widest_route(last), key=lambda route: route.bytes_per_s)


def _decode(side: Side, workload: SteadyWorkload, room: Room, prompt_s: float) -> DecodeCost:
    drafting = room.scene.case.drafting
    speculation = yield_of(drafting.kind, drafting.depth, drafting.verify_length, workload.accepted_tokens)
    wanted_rate = workload.tokens_per_s_per_user

    def wanted(point: DecodePoint) -> bool:
        answer_s = workload.output_tokens / point.tokens_per_s_per_gpu[-1]
        rate = point.tokens_per_s_per_user[-1] * answer_s / (answer_s + prompt_s)
        return wanted_rate is None or rate >= wanted_rate

    context = workload.prompt_tokens + workload.output_tokens // 2
    asked = room.now().max_num_seqs
    return decode_cost(side, context, max(1, room.sequences(room.now())), asked, speculation, wanted)


def _headline(estimate: Estimate, stand_ins: Mapping[str, str], names: tuple[str, str]) -> Iterator[Figure]:
    workload, prefill, point = estimate.workload, estimate.prefill, estimate.decode.point
    balanced, computed = estimate.tradeoff(point), prefill.tokens_per_s_per_gpu[-1]
    first, last = (stand_ins[name] for name in names)
    rates = {
        "prefill_tokens_per_s_per_gpu": (computed, first),
        "prompt_tokens_per_s_per_gpu": (computed * workload.prompt_tokens / prefill.computed_tokens, first),
        "decode_tokens_per_s_per_gpu": (point.tokens_per_s_per_gpu[-1], last),
        "tokens_per_s_per_user": (balanced.tokens_per_s_per_user, last),
        "tokens_per_s_per_gpu": (balanced.tokens_per_s_per_gpu, last or first),
    }
    for name, (value, stand_in) in rates.items():
        yield Figure(name=name, value=value, unit="tokens/s", label=estimate.label, stand_in=stand_in)
    yield Figure(name="ttft_s", value=prefill.ttft_s[-1], unit="s", label=estimate.label, stand_in=first)


def _fleet(estimate: Estimate, roles: Roles) -> FleetPlan | None:
    """The fleet for the workload's traffic; None where it names none, or no number of ranks would content its users."""
    if not estimate.contents_users:
        return None
    workload = estimate.workload

    def replicas_at(cached_share: float) -> list[Replica]:
        other = structs.replace(workload, cached_share=cached_share)
        return _replicas(estimate if other == workload else _estimate(roles, other), roles.layout)

    keeps = isinstance(next(iter(roles.scenes.values())).case.spec.cache, PrefixCache)
    free = free_parameters(workload, estimate.decode)
    return fleet_of(workload, replicas_at, estimate.label, free, cached_shares=CACHED_SHARES if keeps else ())


def _notes(estimate: Estimate) -> Iterator[str]:
    decode = estimate.decode
    if not estimate.contents_users:
        yield "no traffic is sized: a user alone on a rank gets less than workload.tokens_per_s_per_user asks for"
    elif decode.limit == "user":
        yield f"figures are those of {decode.point.sequences:,} at once, as workload.tokens_per_s_per_user allows"


def _replicas(estimate: Estimate, layout: Layout) -> list[Replica]:
    rates = {
        "prefill_tokens_per_s_per_gpu": estimate.prefill.tokens_per_s_per_gpu[-1],
        "decode_tokens_per_s_per_gpu": estimate.decode.point.tokens_per_s_per_gpu[-1],
    }
    found = []
    for role in layout.roles:
        ranks = role.num_ranks // role.replicas
        mine = (
            rates if role.name == "all" else {name: rate for name, rate in rates.items() if name.startswith(role.name)}
        )
        found.append(Replica(role=role.name, ranks=ranks, nodes=-(-ranks // role.hardware.node_devices), **mine))
    return found
