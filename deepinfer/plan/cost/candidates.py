"""Settings that might move what holds a step up, most promising first. Each obeys the rules of a plan and fits."""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct, structs

from deepinfer.config.clusters import SiteCluster
from deepinfer.plan.cost.room import DRAFT_DEPTH, Room, Setting
from deepinfer.plan.cost.types import DecodeCost, StepTime
from deepinfer.plan.layout import valid_expert_degrees
from deepinfer.plan.roles import OPTIONS, choose, key_of
from deepinfer.plan.types import Drafting

MOST = 3
EXPERTS = ("experts", "draft_experts")


class Candidate(Struct, frozen=True, kw_only=True):
    """An override and what it changes."""

    override: str
    setting: Setting
    compacts: bool = False  # replay=compact
    sequences: int = 0  # that then fit


def decode_candidates(room: Room, decode: DecodeCost, other_nodes: int) -> list[Candidate]:
    """At most three for a step of answers; `other_nodes` are taken by other roles of the site."""
    now, step = room.now(), decode.point.steps[-1]
    found = [*_speculation(room, now), *_depth(room, now, step)]
    if decode.limit == "scheduler":
        more = 2 * now.max_num_seqs
        seats = structs.replace(now, max_num_seqs=more)
        found.append(Candidate(override=f"scheduler.max_num_seqs={more}", setting=seats))
    found += _experts(room, now, step, other_nodes, crowded=decode.limit == "cache")
    return list(islice(_fitting(room, found, decode.point.sequences if decode.limit == "user" else 1), MOST))


def prefill_candidates(room: Room, step: StepTime, other_nodes: int) -> list[Candidate]:
    """At most two for a step of prompts."""
    now, key = room.now(), key_of(room.role.name)
    found = []
    if step.bound == "link host":
        found.append(Candidate(override=f"{key}.engram=sharded", setting=structs.replace(now, engram="sharded")))
    if _can_compact(room):
        found.append(Candidate(override="replay=compact", setting=now, compacts=True))
    if not step.bound.startswith("compute"):
        more = structs.replace(now, step_tokens=2 * now.step_tokens)
        found.append(Candidate(override=f"scheduler.max_num_batched_tokens={more.step_tokens}", setting=more))
    found += _experts(room, now, step, other_nodes)
    return list(islice(_fitting(room, found, 1), MOST - 1))


def _fitting(room: Room, found: list[Candidate], least: int) -> Iterator[Candidate]:
    for candidate in found:
        setting = candidate.setting
        rows = setting.max_num_seqs * (1 + setting.drafting.depth)
        sequences = room.sequences(setting) if rows <= setting.step_tokens else 0
        if sequences >= least:
            yield structs.replace(candidate, sequences=sequences)


def _speculation(room: Room, now: Setting) -> Iterator[Candidate]:
    case = room.scene.case
    config, replay = case.config, case.numerics.replay
    cut = replay != "none" and config.boundary_cuts_drafter
    short = replay != "none" and case.numerics.replay_keep_tokens < config.sliding_window + DRAFT_DEPTH + 1
    if now.drafting.depth or not config.num_nextn_predict_layers or room.workload.accepted_tokens != "auto":
        return
    degrees = valid_expert_degrees(config, now.ranks, room.role.redundant_experts, drafting=True)
    if cut or short or config.dspark_block_size < DRAFT_DEPTH or now.expert not in degrees:
        return
    drafting = Drafting(
        kind="dspark",
        depth=DRAFT_DEPTH,
        verify_length=DRAFT_DEPTH,
        backtrack=DRAFT_DEPTH + 1,
        num_draft_layers=config.num_nextn_predict_layers,
    )
    rows, steps = now.max_num_seqs * (1 + DRAFT_DEPTH), now.step_tokens
    while steps < rows:
        steps *= 2
    wider = f" scheduler.max_num_batched_tokens={steps}" if steps > now.step_tokens else ""
    setting = structs.replace(now, drafting=drafting, step_tokens=steps)
    yield Candidate(override=f"speculation=dspark{wider}", setting=setting)


def _depth(room: Room, now: Setting, step: StepTime) -> Iterator[Candidate]:
    """Fewer rows that are rejected, where computation holds the step up."""
    drafting, depth = now.drafting, now.drafting.depth // 2
    if drafting.kind != "dspark" or not depth or not step.bound.startswith("compute"):
        return
    if room.workload.accepted_tokens == "auto":
        shorter = structs.replace(drafting, depth=depth, verify_length=depth, backtrack=depth + 1)
        yield Candidate(override=f"speculation.depth={depth}", setting=structs.replace(now, drafting=shorter))


def _experts(
    room: Room, now: Setting, step: StepTime, other_nodes: int, *, crowded: bool = False
) -> Iterator[Candidate]:
    """Narrower groups where a link holds a step up; wider ones where the experts' weights do, or fill the memory."""
    case, key = room.scene.case, key_of(room.role.name)
    drafting = bool(now.drafting.num_draft_layers)
    redundant = room.role.redundant_experts
    degrees = valid_expert_degrees(case.config, now.ranks, redundant, drafting=drafting)
    if step.bound.startswith("link") and step.bound != "link host":
        narrower = [degree for degree in degrees if degree < now.expert and degree <= _near(room, step)]
        if narrower:
            setting = structs.replace(now, expert=max(narrower))
            yield Candidate(override=f"{key}.expert={setting.expert}", setting=setting)
    if not crowded and not (step.bound == "memory" and step.bound_part in EXPERTS):
        return
    wider = [degree for degree in degrees if degree > now.expert]
    if wider:
        yield Candidate(override=f"{key}.expert={min(wider)}", setting=structs.replace(now, expert=min(wider)))
    elif room.role.context == 1 and room.role.replicas == 1 and not redundant and 2 * now.ranks in OPTIONS:
        yield from _more_ranks(room, now, other_nodes, drafting=drafting)


def _more_ranks(room: Room, now: Setting, other_nodes: int, *, drafting: bool) -> Iterator[Candidate]:
    ranks, site = 2 * now.ranks, room.scene.case.spec.cluster
    nodes = other_nodes + -(-ranks // room.role.hardware.node_devices)
    if isinstance(site, SiteCluster) and nodes > (site.num_nodes or nodes):
        return
    if ranks in valid_expert_degrees(room.scene.case.config, ranks, 0, drafting=drafting):
        setting = structs.replace(now, ranks=ranks, expert=ranks)
        yield Candidate(override=choose(room.role.name, OPTIONS[ranks]), setting=setting)


def _near(room: Room, step: StepTime) -> int:
    """Devices that a faster link than the one that holds a step up joins; any number where there is none."""
    links = room.scene.role.chip.links
    slow = links.get(step.bound.partition(" ")[2])
    faster = [link.devices for link in links.values() if slow and link.value > slow.value and link.devices > 1]
    return max(faster, default=room.role.expert)


def _can_compact(room: Room) -> bool:
    case = room.scene.case
    config, drafting = case.config, case.drafting
    cut = drafting.num_draft_layers and config.boundary_cuts_drafter
    return case.numerics.replay == "none" and not cut and config.sliding_window + drafting.backtrack <= KEPT_ROWS


KEPT_ROWS = 140  # of conf/replay/compact.yaml
