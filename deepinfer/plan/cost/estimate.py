"""The cost of a plan: what its workload takes on its ranks, in rates, times and words."""

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct

from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cost.acceptance import yield_of
from deepinfer.plan.cost.assumptions import assumptions_of, free_parameters
from deepinfer.plan.cost.fleet import Replica, fleet_of
from deepinfer.plan.cost.links import Group, Route, widest_route
from deepinfer.plan.cost.phases import Side, decode_cost, prefill_cost
from deepinfer.plan.cost.types import Calibration, CostPlan, DecodeCost, DecodePoint, Figure, PrefillCost
from deepinfer.plan.cost.v41 import shape_of, widened
from deepinfer.plan.cost.work import Prompt
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.memory import Scene
from deepinfer.plan.types import Capacity, Layout, RolePlan

ITEM = {"float32": ("f32", 4), "float64": ("f64", 8), "bfloat16": ("bf16", 2)}
TRACE = "a trace has no steady traffic: nothing is reckoned or sized"


class Estimate(Struct, frozen=True, kw_only=True):
    """Both phases of one workload, on ranks of their own or in turns on the same."""

    workload: SteadyWorkload
    prefill: PrefillCost
    decode: DecodeCost
    takes_turns: bool

    def gpu_seconds(self, point: DecodePoint | None = None) -> tuple[float, float]:
        """Seconds of a rank that a request takes: of prefill and of decode, at `point` instead of the chosen one."""
        rate = (point or self.decode.point).tokens_per_s_per_gpu[-1]
        answer = self.workload.output_tokens / rate
        return self.prefill.computed_tokens / self.prefill.tokens_per_s_per_gpu[-1], answer


def cost_of(
    scenes: Mapping[str, Scene],
    reckonings: Mapping[str, tuple[Calibration, ...]],
    layout: Layout,
    capacity: Capacity,
    longest: int,
    ledger: Ledger,
) -> CostPlan:
    """The cost of a plan, `scenes` and `reckonings` by role.

    What a workload asks for and does not get goes to the ledger as a warning.
    """
    case = next(iter(scenes.values())).case
    workload = case.spec.workload
    if not isinstance(workload, SteadyWorkload):
        return CostPlan(notes=(TRACE,))
    if problem := _too_long(workload, capacity, longest, next(iter(scenes.values())).cache.block_tokens):
        return CostPlan(notes=(problem,))
    first, last = layout.roles[0], layout.roles[-1]
    sides = {role.name: _side(scenes[role.name], role, scenes, reckonings[role.name]) for role in (first, last)}
    prefill = _prefill(sides[first.name], sides[last.name], workload, scenes[first.name])
    most = _most_sequences(workload, capacity, scenes[last.name])
    decode = _decode(sides[last.name], workload, prefill, most, scenes[last.name], takes_turns=first is last)
    estimate = Estimate(workload=workload, prefill=prefill, decode=decode, takes_turns=first is last)
    ledger.warnings += _missed(estimate)
    label = prefill.steps[-1].label
    return CostPlan(
        headline=tuple(_headline(estimate)),
        prefill=prefill,
        decode=decode,
        decode_share=_decode_share(estimate, decode.point),
        fleet=fleet_of(workload, _replicas(estimate, layout), label, free_parameters(workload, decode)),
        assumptions=assumptions_of(case.spec, workload, tuple(sides.values()), decode, takes_turns=first is last),
    )


def _too_long(workload: SteadyWorkload, capacity: Capacity, longest: int, block_tokens: int) -> str:
    """Why no request of the workload can run here; empty where one can."""
    tokens = workload.prompt_tokens + workload.output_tokens
    if tokens > longest:
        return f"requests of {tokens:,} tokens are longer than model.max_model_len={longest}: nothing is reckoned"
    held = capacity.num_blocks * block_tokens
    return f"requests of {tokens:,} tokens do not fit into {held:,} tokens of cache" if held < tokens else ""


def _side(scene: Scene, role: RolePlan, scenes: Mapping[str, Scene], calibrations: tuple[Calibration, ...]) -> Side:
    case, resident, chip = scene.case, scene.resident, scene.role.chip
    dtype, item_bytes = ITEM[case.numerics.dtype]
    shape = widened(
        shape_of(case.config, scene.cache, num_draft_layers=case.drafting.num_draft_layers),
        dtype,
        item_bytes,
        dense=resident["dense"] == "expanded",
        experts=resident["experts"] == "expanded",
        engram=resident["engram"] == "expanded",
    )
    on_cpu = sum(other.role.num_ranks for other in scenes.values() if other.role.is_cpu)
    group = Group(
        chip=chip,
        num_ranks=role.num_ranks // role.replicas,
        context=role.context,
        expert=role.expert,
        redundant_experts=role.redundant_experts,
        engram=role.engram,
        sharers=max(1, on_cpu) if chip.kind == "cpu" else 1,
    )
    return Side(role=role.name, shape=shape, group=group, calibrations=calibrations)


def _prefill(side: Side, other: Side, workload: SteadyWorkload, scene: Scene) -> PrefillCost:
    numerics = scene.case.numerics
    prompt = Prompt(
        tokens=workload.prompt_tokens,
        cached=workload.prompt_tokens * workload.cached_share,
        keep=numerics.replay_keep_tokens if numerics.replay == "compact" else None,
    )
    transfer = None if side is other else _slower(widest_route(side.group.chip), widest_route(other.group.chip))
    return prefill_cost(side, prompt, scene.case.spec.scheduler.max_num_batched_tokens, transfer)


def _slower(one: Route, two: Route) -> Route:
    return min(one, two, key=lambda route: route.bytes_per_s)


def _most_sequences(workload: SteadyWorkload, capacity: Capacity, scene: Scene) -> int:
    blocks = math.ceil((workload.prompt_tokens + workload.output_tokens) / scene.cache.block_tokens)
    return max(1, min(scene.case.spec.scheduler.max_num_seqs, capacity.num_blocks // blocks))


def _decode(
    side: Side, workload: SteadyWorkload, prefill: PrefillCost, most: int, scene: Scene, *, takes_turns: bool
) -> DecodeCost:
    drafting = scene.case.drafting
    speculation = yield_of(drafting.kind, drafting.depth, drafting.verify_length, workload.accepted_tokens)
    prompt_s = prefill.computed_tokens / prefill.tokens_per_s_per_gpu[-1] if takes_turns else 0.0

    def wanted(point: DecodePoint) -> bool:
        answer_s = workload.output_tokens / point.tokens_per_s_per_gpu[-1]
        rate = point.tokens_per_s_per_user[-1] * answer_s / (answer_s + prompt_s)
        return workload.tokens_per_s_per_user is None or rate >= workload.tokens_per_s_per_user

    context = workload.prompt_tokens + workload.output_tokens // 2
    return decode_cost(side, context, most, speculation, wanted)


def _decode_share(estimate: Estimate, point: DecodePoint) -> float:
    """Part of a rank's time that answers get."""
    prompt_s, answer_s = estimate.gpu_seconds(point)
    return answer_s / (prompt_s + answer_s) if estimate.takes_turns else 1.0


def _headline(estimate: Estimate) -> Iterator[Figure]:
    workload, prefill, point = estimate.workload, estimate.prefill, estimate.decode.point
    total = workload.prompt_tokens + workload.output_tokens
    computed = prefill.tokens_per_s_per_gpu[-1]
    rates = {
        "prefill_tokens_per_s_per_gpu": computed,
        "prompt_tokens_per_s_per_gpu": computed * workload.prompt_tokens / prefill.computed_tokens,
        "decode_tokens_per_s_per_gpu": point.tokens_per_s_per_gpu[-1],
        "tokens_per_s_per_user": point.tokens_per_s_per_user[-1] * _decode_share(estimate, point),
        "tokens_per_s_per_gpu": total / sum(estimate.gpu_seconds()),
    }
    label = prefill.steps[-1].label
    for name, value in rates.items():
        yield Figure(name=name, value=value, unit="tokens/s", label=label)
    yield Figure(name="ttft_s", value=prefill.ttft_s[-1], unit="s", label=label)


def _missed(estimate: Estimate) -> Iterator[str]:
    workload, decode, prefill = estimate.workload, estimate.decode, estimate.prefill
    wanted, label = workload.tokens_per_s_per_user, prefill.steps[-1].label
    found = decode.point.tokens_per_s_per_user[-1] * _decode_share(estimate, decode.point)
    if wanted is not None and found < wanted:
        yield (
            f"a user alone on a rank gets {found:.0f} tokens/s ({label}), workload.tokens_per_s_per_user asks for "
            f"{wanted:g}; {decode.moves}"
        )
    if workload.ttft_s is not None and prefill.ttft_s[-1] > workload.ttft_s:
        yield (
            f"the first token takes {prefill.ttft_s[-1]:.3g} s on an idle engine ({label}), workload.ttft_s asks for "
            f"{workload.ttft_s:g} s; {prefill.moves}"
        )


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
