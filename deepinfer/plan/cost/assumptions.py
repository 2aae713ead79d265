"""What the figures of a cost plan take for granted, in words."""

from collections.abc import Iterator, Mapping, Sequence

from deepinfer.config.specs import Spec
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cost.acceptance import UNKNOWN
from deepinfer.plan.cost.both import Estimate
from deepinfer.plan.cost.phases import Side
from deepinfer.plan.cost.timing import computed_in
from deepinfer.plan.cost.types import DecodeCost
from deepinfer.plan.memory import Scene


def assumptions_of(
    spec: Spec, estimate: Estimate, sides: Sequence[Side], scenes: Mapping[str, Scene]
) -> tuple[str, ...]:
    """One clause each, in the order in which a reader would doubt them; what holds for two roles is said once."""
    clauses = (
        *_reckonings(sides),
        *_requests(spec, estimate),
        *(clause for side in sides for clause in _stand_ins(side)),
        *(clause for side in sides for clause in _plain_torch(scenes[side.role])),
    )
    return tuple(dict.fromkeys(clauses))


def _reckonings(sides: Sequence[Side]) -> Iterator[str]:
    yield "roofline: peaks of the data sheet; compute, memory and links overlap perfectly, the longest counts"
    for side in sides:
        own = side.calibrations[-1]
        if not own.is_roofline:
            yield f"{own.label}: {own.source or own.name}"
    yield "experts are chosen evenly; weights are read once a step, a sequence's window and index keys once for its rows"


def _requests(spec: Spec, estimate: Estimate) -> Iterator[str]:
    workload, decode = estimate.workload, estimate.decode
    asked = getattr(spec.workload, "cached_share", 0.0)
    if workload.cached_share:
        yield f"{workload.cached_share:.1%} of a prompt is cached and not computed again"
    elif asked:
        yield (
            f"nothing is taken as cached: cache={spec.cache.kind} keeps no prefixes, so workload.cached_share={asked:g} "
            "does not count; cache=prefix"
        )
    if workload.cached_share and spec.replay.on_hit != "snapshot":
        yield f"rows that replay.on_hit={spec.replay.on_hit} computes again after a hit are not counted"
    if decode.rows_each > 1:
        yield f"{decode.accepted_tokens:.3g} tokens a step: {decode.accepted_source}; all drafts are checked"
    if estimate.takes_turns:
        yield "prompts and answers take turns on the same ranks; the rate of a user counts the turns, those of ranks do not"
    else:
        yield "roles of balanced size; caches travel over the link that joins most devices, while others are computed"


def _stand_ins(side: Side) -> Iterator[str]:
    """Number formats that a chip has no peak for."""
    chip, shape = side.group.chip, side.shape
    dtypes = [*(p.dtype for p in shape.products), *(s.dtype for s in shape.scans), *(e.dtype for e in shape.experts)]
    for dtype in dict.fromkeys(dtypes):
        name, flops_per_s = computed_in(chip, dtype)
        if not name:
            yield f"{chip.name} names no peak, so computation takes no time"
        elif name != dtype and flops_per_s == chip.peak_flops_by_dtype[name].value:
            yield f"{chip.name} has no {dtype} peak: such products run in {name}"
        elif name != dtype:
            yield f"{chip.name} has no {dtype} peak and none wider: such products run as three of {name}"


def _plain_torch(scene: Scene) -> Iterator[str]:
    """Ops without kernels: their formats are reckoned with, their launches and copies are not."""
    if scene.role.chip.kind in ("cuda", "ascend"):
        names = [choice.op for choice in scene.ops if choice.backend == "reference"]
        attention = ", attention among them," * ("attention" in names)
        if names:
            yield f"{len(names)} ops of plain torch{attention} are reckoned at the speed of kernels"


def free_parameters(workload: SteadyWorkload, decode: DecodeCost) -> tuple[str, ...]:
    """Values that decide how large a fleet is and that no model or chip fixes: given, taken from others, or assumed."""
    return tuple(_free(workload, decode))


def _free(workload: SteadyWorkload, decode: DecodeCost) -> Iterator[str]:
    if workload.tokens_per_day is not None and workload.output_share == "auto":
        share = workload.output_tokens / (workload.prompt_tokens + workload.output_tokens)
        yield f"workload.output_share=auto: {share:.3g}, taken from prompt_tokens and output_tokens"
    elif workload.tokens_per_day is not None:
        yield f"workload.output_share={workload.output_share:g}: given, depends on the users"
    if workload.cached_share:
        yield f"workload.cached_share={workload.cached_share:g}: given, depends on the users"
    even = "the busiest hour is like any other" if workload.peak_to_mean == 1 else "depends on the users"
    yield f"workload.peak_to_mean={workload.peak_to_mean:g}: given, {even}"
    if decode.rows_each > 1 and workload.accepted_tokens != "auto":
        yield f"workload.accepted_tokens={workload.accepted_tokens:g}: given, depends on the texts"
    elif decode.rows_each > 1:
        how = "assumed, for nobody published it" if decode.accepted_source == UNKNOWN else "published"
        yield f"workload.accepted_tokens=auto: {decode.accepted_tokens:.3g}, {how}; depends on the texts"
    yield "expert load: assumed even"
